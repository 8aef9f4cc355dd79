"""What a Model says of itself, and that looking at it through TransformerLens leaves it alone."""

import copy
import json

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel

from interp.errors import InterpError
from interp.models.model import _wrap, evaluating, load_model
from tests.families import (
    CONFIGS,
    D_HEAD,
    N_CTX,
    N_HEADS,
    N_KV_HEADS,
    N_LAYERS,
    VOCAB_SIZE,
    tiny_model,
)

IDS = torch.randint(3, VOCAB_SIZE, (2, 11), generator=torch.Generator().manual_seed(0))


def logits(hf_model) -> torch.Tensor:
    with torch.no_grad():
        return hf_model(IDS).logits


def ids_only(hf_model):
    return load_model((hf_model, None))


# ---------------------------------------------------------------------------------------- geometry


@pytest.mark.parametrize("family", CONFIGS)
def test_geometry_of_every_family(family):
    hf_model = tiny_model(family)
    model = ids_only(hf_model)
    config = CONFIGS[family]
    kv_heads = 1 if family == "falcon" else config.get("num_key_value_heads", N_HEADS)
    assert (model.n_layers, model.n_heads, model.n_kv_heads) == (N_LAYERS, N_HEADS, kv_heads)
    assert model.d_head == D_HEAD  # not d_model / heads = 9 where d_model is 36
    assert model.d_model == config.get("hidden_size", 40)
    assert model.vocab_size == VOCAB_SIZE
    assert model.n_ctx == (None if family == "bloom" else N_CTX)
    assert model.architecture == type(hf_model).__name__
    assert (model.dtype, model.device) == (torch.float32, torch.device("cpu"))


def test_head_size_is_not_divided_out():  # C31
    hf_model = tiny_model("qwen3", vocab_size=64, hidden_size=32, head_dim=24)
    assert ids_only(hf_model).d_head == 24
    assert hf_model.model.layers[0].self_attn.q_proj.out_features == 4 * 24


def test_head_size_of_latent_attention_is_not_that_of_its_rotary_part():
    hf_model = tiny_model("deepseek_v3")
    assert hf_model.config.head_dim == 4  # the trap
    assert ids_only(hf_model).d_head == 6 + 4


def test_grouped_queries_of_falcon_and_bigcode():
    new = tiny_model("falcon", new_decoder_architecture=True, num_kv_heads=N_KV_HEADS)
    assert ids_only(new).n_kv_heads == N_KV_HEADS
    assert ids_only(tiny_model("falcon", multi_query=False)).n_kv_heads == N_HEADS


def test_vocabulary_is_what_the_embedding_has():
    hf_model = tiny_model("llama")
    hf_model.resize_token_embeddings(67)
    assert ids_only(hf_model).vocab_size == 67


# ------------------------------------------------------------------------------- weights, manifest


def test_weight_hash_knows_the_weights_and_nothing_else():
    model = ids_only(tiny_model("llama", 0))
    same = ids_only(tiny_model("llama", 0))
    same.hf_model.config.name_or_path = "elsewhere"
    same.hf_model.train()
    assert len(model.weight_hash) == 64
    assert same.weight_hash == model.weight_hash
    assert ids_only(tiny_model("llama", 1)).weight_hash != model.weight_hash


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.2.mlp.up_proj.weight"])
def test_weight_hash_sees_one_bit(name):
    hf_model = tiny_model("llama")
    before = ids_only(hf_model).weight_hash
    parameter = hf_model.get_parameter(name).data.view(-1)
    parameter[-1] = torch.nextafter(parameter[-1], torch.tensor(9.0))
    assert ids_only(hf_model).weight_hash != before


def test_weight_hash_sees_dtype_shape_and_ties():
    hashes = [
        ids_only(hf_model).weight_hash
        for hf_model in (
            tiny_model("llama"),
            tiny_model("llama").bfloat16(),
            tiny_model("llama", tie_word_embeddings=True),
            tiny_model("llama", intermediate_size=29),
        )
    ]
    assert len(set(hashes)) == len(hashes)


def test_weight_hash_counts_saved_buffers_only():
    hf_model = tiny_model("deepseek_v3")  # its router has a correction bias: a saved buffer
    before = ids_only(hf_model).weight_hash
    hf_model.model.rotary_emb.inv_freq.mul_(2)  # computed by the model, not loaded
    assert ids_only(hf_model).weight_hash == before
    hf_model.get_buffer("model.layers.2.mlp.gate.e_score_correction_bias").add_(1)
    assert ids_only(hf_model).weight_hash != before


def test_describe_goes_into_json(tokenizer):
    hf_model = tiny_model("gemma2").bfloat16()
    hf_model.config.name_or_path = "org/name"
    described = load_model(hf_model, tokenizer).describe()
    assert json.loads(json.dumps(described)) == described
    expected = {"name": "org/name", "source": "object", "architecture": "Gemma2ForCausalLM",
                "n_heads": 4, "n_kv_heads": 2, "d_head": 10, "dtype": "bfloat16", "device": "cpu",
                "tokenizer": "TokenizersBackend", "revision": None}  # fmt: skip
    assert {key: described[key] for key in expected} == expected


def test_repr_is_one_line_a_newcomer_can_read():
    assert repr(ids_only(tiny_model("qwen3"))) == (
        "Model(Qwen3ForCausalLM: Qwen3ForCausalLM, 3 layers, 4 query heads on 2 key-value heads of "
        "10, float32 on cpu)"
    )


# ------------------------------------------------------------------------------ a model in memory


def test_a_model_in_memory_is_not_changed(tokenizer):
    hf_model = tiny_model("gpt2").train()
    before = logits(hf_model.eval()), hf_model.train().config.to_json_string()
    model = load_model(hf_model, tokenizer)
    assert model.hf_model is hf_model and model.tokenizer is tokenizer
    assert all(module.training for module in hf_model.modules())
    assert hf_model.config.to_json_string() == before[1]
    assert torch.equal(logits(hf_model.eval()), before[0])
    assert load_model((hf_model, tokenizer)).source == "object"


def test_a_model_in_memory_without_tokenizer_must_say_so():
    hf_model = tiny_model("gpt2")
    with pytest.raises(InterpError, match=r"needs its tokenizer: .*\(hf_model, None\)"):
        load_model(hf_model)
    assert load_model((hf_model, None)).tokenizer is None


def test_a_model_in_memory_is_not_moved_or_cast(tokenizer):
    hf_model = tiny_model("gpt2").bfloat16()
    with pytest.raises(InterpError, match=r"dtype: torch.float32 was asked for.*torch.bfloat16"):
        load_model(hf_model, tokenizer, dtype="float32")
    with pytest.raises(InterpError, match=r"revision: abc was asked for"):
        load_model(hf_model, tokenizer, revision="abc")
    model = load_model(hf_model, tokenizer, device="cpu", dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert load_model(hf_model, tokenizer, device="auto").device.type == "cpu"


def test_what_is_no_language_model(tokenizer):
    with pytest.raises(InterpError, match=r"expected a name, a folder.*got a Linear"):
        _wrap((nn.Linear(2, 2), tokenizer), None)  # load_model, but for its type annotation
    headless = LlamaModel(LlamaConfig(**CONFIGS["llama"]))
    with pytest.raises(InterpError, match=r"LlamaModel has no language-model head"):
        load_model((headless, tokenizer))
    with pytest.raises(InterpError, match=r"expected a pair"):
        load_model((tiny_model("gpt2"), tokenizer), tokenizer)


# ---------------------------------------------------------------------------------- eval, dropout


def test_evaluating_stops_dropout_and_gives_every_flag_back():  # C26
    hf_model = tiny_model("gpt2").train()
    hf_model.transformer.h[1].eval()  # the user froze one block
    flags = [module.training for module in hf_model.modules()]
    assert not torch.equal(logits(hf_model), logits(hf_model))  # dropout is on
    with evaluating(hf_model):
        assert not any(module.training for module in hf_model.modules())
        assert torch.equal(logits(hf_model), logits(hf_model))
    assert [module.training for module in hf_model.modules()] == flags
    with pytest.raises(KeyboardInterrupt), evaluating(hf_model):
        raise KeyboardInterrupt
    assert [module.training for module in hf_model.modules()] == flags


# --------------------------------------------------------------------- TransformerLens' components


@pytest.mark.parametrize(
    ("family", "modules"),
    {
        "gpt2": "transformer.h.1, .attn, .attn.c_proj, .mlp, transformer.ln_f, transformer.wte",
        "gpt_neox": "gpt_neox.layers.1, .attention, .attention.dense, .mlp, "
        "gpt_neox.final_layer_norm, gpt_neox.embed_in",
        "llama": "model.layers.1, .self_attn, .self_attn.o_proj, .mlp, model.norm, "
        "model.embed_tokens",
        "gemma3_text": "model.layers.1, .self_attn, .self_attn.o_proj, .mlp, model.norm, "
        "model.embed_tokens",
        "gpt_oss": "model.layers.1, .self_attn, .self_attn.o_proj, .mlp, model.norm, "
        "model.embed_tokens",
        "deepseek_v3": "model.layers.1, .self_attn, .self_attn.o_proj, .mlp, model.norm, "
        "model.embed_tokens",
        "bloom": "transformer.h.1, .self_attention, .self_attention.dense, .mlp, transformer.ln_f, "
        "transformer.word_embeddings",
    }.items(),
)
def test_components_are_the_models_own_modules(family, modules):
    hf_model = tiny_model(family)
    model = ids_only(hf_model)
    block, attention, output, mlp, norm, embedding = modules.split(", ")
    for path, name in (
        ("blocks.1", block),
        ("blocks.1.attn", block + attention),
        ("blocks.1.attn.o", block + output),
        ("blocks.1.mlp", block + mlp),
        ("ln_final", norm),
        ("embed", embedding),
    ):
        assert model.component(path) is hf_model.get_submodule(name), path
    assert model.component("unembed") is hf_model.get_output_embeddings()


@pytest.mark.parametrize("path", ["blocks.3", "blocks.7.attn"])
def test_a_layer_that_is_not_there(path):
    with pytest.raises(InterpError, match=r"has layers 0 to 2, no layer [37]"):
        ids_only(tiny_model("llama")).component(path)


@pytest.mark.parametrize("path", ["blocks.0.atn", "blocks.0.attn.p", "ln_finale", "", "blocks.x"])
def test_a_component_that_is_not_there(path):
    with pytest.raises(InterpError, match=r"LlamaForCausalLM has no such component"):
        ids_only(tiny_model("llama")).component(path)


def test_no_adapter():
    hf_model = tiny_model("llama")
    hf_model.__class__ = type("NewForCausalLM", (type(hf_model),), {})
    model = ids_only(hf_model)
    for call in (lambda: model.component("ln_final"), model.bridge):
        with pytest.raises(InterpError, match=r"TransformerLens has no adapter for NewForCausalLM"):
            call()
    assert "NewForCausalLM" in repr(model)  # the rest works


# ------------------------------------------------------------------------------------- the bridge


def state(hf_model: nn.Module) -> list[tuple]:
    """All that a bridge might disturb: modules, flags, hooks, weights, configuration."""
    modules = [
        (name, type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks),
         len(m._backward_hooks), "forward" in m.__dict__)
        for name, m in hf_model.named_modules()
    ]  # fmt: skip
    tensors = [
        (name, t.data_ptr(), t._version, t.requires_grad)
        for name, t in (*hf_model.named_parameters(), *hf_model.named_buffers())
    ]
    return [
        *modules,
        *tensors,
        hf_model.config.to_json_string(),
        hf_model.config._attn_implementation,
    ]


@pytest.mark.parametrize(
    "family", ["gpt2", "gpt_neox", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "falcon", "bloom"]
)
def test_a_bridge_leaves_the_model_alone(family):
    hf_model = tiny_model(family)
    before, expected = state(hf_model), logits(hf_model)
    bridge = ids_only(hf_model).bridge()
    bridged, cache = bridge.run_with_cache(IDS)
    assert (bridged - expected).abs().max() < 3e-5
    assert cache["blocks.1.attn.hook_pattern"].shape == (2, N_HEADS, 11, 11)
    assert state(hf_model) == before
    assert torch.equal(logits(hf_model), expected)


def test_a_bridge_shares_the_weights():
    hf_model = tiny_model("llama")
    own = {parameter.data_ptr() for parameter in hf_model.parameters()}
    bridge = ids_only(hf_model).bridge()
    copied = [n for n, p in bridge.original_model.named_parameters() if p.data_ptr() not in own]
    assert copied == []
    with torch.no_grad():
        hf_model.model.norm.weight.mul_(2)  # seen by both
    assert (bridge(IDS) - logits(hf_model)).abs().max() < 6e-5


def test_a_bridge_of_a_training_model_has_no_dropout():
    hf_model = tiny_model("gpt2").train()
    bridge = ids_only(hf_model).bridge()
    assert hf_model.training and not any(module.training for module in bridge.modules())
    assert torch.equal(bridge(IDS), bridge(IDS))


def test_a_bridge_keeps_the_dtype():
    bridge = ids_only(tiny_model("llama").bfloat16()).bridge()
    assert bridge(IDS).dtype == torch.bfloat16


def test_a_bridge_reads_text_with_a_tokenizer_from_memory(tokenizer):
    in_memory = copy.deepcopy(tokenizer)
    in_memory.init_kwargs.pop(
        "name_or_path", None
    )  # as of one built from its parts: KeyError in TL
    before = copy.deepcopy(in_memory.init_kwargs)
    model = load_model(tiny_model("llama"), in_memory)
    bridge = model.bridge()
    assert bridge.to_tokens("t5 t6", prepend_bos=False).tolist() == [[5, 6]]
    assert bridge.to_tokens("t5 t6", prepend_bos=True).tolist() == [[1, 5, 6]]
    assert model.tokenizer.init_kwargs == before
