"""Tiny random models of every family the attention code must serve.

`FAMILIES[name](seed)` builds one in eval mode, offline and in well under a second. Sizes cannot be
confused with one another: 3 layers, 4 query heads on 2 key-value heads (where the family has
grouped queries), a head size of 10, a vocabulary of 61, a context of 64, a window of 5. Where the
family lets the head size differ from d_model / heads it does: d_model is 36 there and 40 elsewhere.
Weights are drawn large enough that attention is far from uniform; biases, norms and learned sinks
are random too, since a zero hides a term that was forgotten.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

N_LAYERS, N_HEADS, N_KV_HEADS, D_HEAD, VOCAB_SIZE, N_CTX, WINDOW = 3, 4, 2, 10, 61, 64, 5
HYBRID = ["sliding_attention", "full_attention", "sliding_attention"]

COMMON = dict(vocab_size=VOCAB_SIZE, bos_token_id=1, eos_token_id=2)
GPT2_STYLE = COMMON | dict(n_embd=40, n_layer=N_LAYERS, n_head=N_HEADS, n_positions=N_CTX)
SINGLE = COMMON | dict(  # every query head has a key-value head of its own
    hidden_size=40, num_hidden_layers=N_LAYERS, num_attention_heads=N_HEADS,
    max_position_embeddings=N_CTX,
)  # fmt: skip
GROUPED = SINGLE | dict(num_key_value_heads=N_KV_HEADS, intermediate_size=28, pad_token_id=0)
FREE_HEAD = GROUPED | dict(hidden_size=36, head_dim=D_HEAD)
EXPERTS = dict(num_experts_per_tok=2, output_router_logits=False)

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2_STYLE,
    "gpt_neox": SINGLE | dict(intermediate_size=28),
    "gptj": GPT2_STYLE | dict(rotary_dim=4),
    "opt": SINGLE | dict(ffn_dim=28, word_embed_proj_dim=40),
    "llama": FREE_HEAD,
    "mistral": FREE_HEAD | dict(sliding_window=WINDOW),
    "qwen2": GROUPED,
    "qwen3": FREE_HEAD,
    "phi3": GROUPED,
    "gemma2": FREE_HEAD | dict(
        sliding_window=WINDOW, layer_types=HYBRID, attn_logit_softcapping=2.0,
        query_pre_attn_scalar=8,
    ),
    "gemma3_text": FREE_HEAD | dict(
        sliding_window=WINDOW, layer_types=HYBRID, query_pre_attn_scalar=8
    ),
    "gpt_oss": FREE_HEAD | EXPERTS | dict(
        sliding_window=WINDOW, layer_types=HYBRID, num_local_experts=4,
        rope_parameters=dict(rope_type="default", rope_theta=10_000.0),
    ),
    "deepseek_v3": GROUPED | EXPERTS | dict(
        num_key_value_heads=N_HEADS, q_lora_rank=12, kv_lora_rank=14, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=8, n_routed_experts=4, n_group=1, topk_group=1,
        moe_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1,
    ),
    "olmo2": GROUPED,
    "olmoe": GROUPED | EXPERTS | dict(num_experts=4),
    "cohere2": FREE_HEAD | dict(sliding_window=WINDOW, layer_types=HYBRID, logit_scale=1.0),
    "granite": GROUPED | dict(attention_multiplier=0.3, residual_multiplier=0.7),
    "smollm3": GROUPED | dict(no_rope_layers=[1, 0, 1]),
    "starcoder2": GROUPED | dict(sliding_window=WINDOW),
    "stablelm": GROUPED,
    "falcon": SINGLE,
    "bloom": COMMON | dict(hidden_size=40, n_layer=N_LAYERS, n_head=N_HEADS),
    "gpt_neo": COMMON | dict(
        hidden_size=40, num_layers=N_LAYERS, num_heads=N_HEADS, max_position_embeddings=N_CTX,
        attention_types=[[["global", "local", "global"], 1]], window_size=WINDOW,
    ),
}  # fmt: skip

BYPASSING = ("falcon", "bloom", "gpt_neo")
"""Families whose attention does not go through the `AttentionInterface` of transformers."""


def tiny_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model of `family` in eval mode; `changes` override entries of its config."""
    config = AutoConfig.for_model(family, **CONFIGS[family] | changes)
    return random_model(config, seed)


def random_model(config: Any, seed: int = 0) -> PreTrainedModel:
    """A random causal language model with this config; the global generators stay untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() >= 2:
                    parameter.normal_(0, 0.3)
                elif name.endswith("sinks"):
                    parameter.normal_(0, 1)
                else:  # biases start at 0, norm weights at 1 (or at 0 where 1 is added)
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return model


FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {
    family: partial(tiny_model, family) for family in CONFIGS
}
