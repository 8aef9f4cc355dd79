"""Cache sizes: published models row by row, the caches that transformers builds, and what is refused."""

import json

import pytest
import torch
from gguf import GGUFWriter
from pydantic import ValidationError
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from interp.errors import InterpError
from interp.lesson import figures
from interp.lesson.config import KvCacheSizeConfig
from interp.lesson.kv_cache import growth, measure, shape_by_hand, shape_of, sizes
from interp.models.model import load_config, load_model
from tests.families import N_LAYERS, WINDOW, tiny_model
from tests.needs import unavailable

KIB, MIB, GIB = 2**10, 2**20, 2**30
LONG = 2**18  # a context over which none of these is asked


def config(
    kind: type[PreTrainedConfig], layers: int, heads: int, kv: int, d: int, **more
) -> PreTrainedConfig:
    return kind(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=d,
        hidden_size=heads * d,
        max_position_embeddings=LONG,
        **more,
    )


def latent(kind: type[PreTrainedConfig], layers: int, heads: int) -> PreTrainedConfig:
    sizes = {
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    return config(kind, layers, heads, heads, 64, **sizes)


LOCAL_GLOBAL = ["sliding_attention", "full_attention"]
GEMMA_3_1B = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(26)]
# name: config, numbers a token, {tokens: bytes}, all with 2 bytes a number
PUBLISHED = {
    "GPT-2 124M": (GPT2Config(), 18_432, {1: 36 * KIB, 1024: 36 * MIB}),
    "SmolLM2-135M": (config(LlamaConfig, 30, 9, 3, 64), 11_520, {1: 22.5 * KIB, 8192: 180 * MIB}),
    "Qwen2.5-0.5B": (config(Qwen2Config, 24, 14, 2, 64), 6_144, {1: 12_288, 8192: 96 * MIB}),
    "Qwen2.5-1.5B": (config(Qwen2Config, 28, 12, 2, 128), 14_336, {1: 28_672, 8192: 224 * MIB}),
    "Qwen2.5-7B": (config(Qwen2Config, 28, 28, 4, 128), 28_672, {1: 56 * KIB, 8192: 448 * MIB}),
    "Qwen2.5-72B": (config(Qwen2Config, 80, 64, 8, 128), 163_840, {1: 327_680, 8192: 2.5 * GIB}),
    "Llama-2-7B": (config(LlamaConfig, 32, 32, 32, 128), 262_144, {1: 512 * KIB, 8192: 4 * GIB}),
    "Llama-2-70B": (config(LlamaConfig, 80, 64, 8, 128), 163_840, {1: 320 * KIB, 8192: 2.5 * GIB}),
    "Llama-3-8B": (config(LlamaConfig, 32, 32, 8, 128), 65_536, {1: 128 * KIB, 8192: GIB}),
    "Llama-3-70B": (config(LlamaConfig, 80, 64, 8, 128), 163_840, {1: 327_680, 8192: 2.5 * GIB}),
    "Llama-3.1-405B": (
        config(LlamaConfig, 126, 128, 8, 128),
        258_048,
        {1: 504 * KIB, 8192: 3.9375 * GIB},
    ),
    "Mistral-7B v0.1": (
        config(MistralConfig, 32, 32, 8, 128, sliding_window=4096),
        65_536,
        {1: 131_072, 4096: 512 * MIB, 8192: 512 * MIB},
    ),
    "Gemma-2-2B": (
        config(Gemma2Config, 26, 8, 4, 256, sliding_window=4096, layer_types=LOCAL_GLOBAL * 13),
        53_248,
        {1: 106_496, 8192: 624 * MIB},
    ),
    "Gemma-2-9B": (
        config(Gemma2Config, 42, 16, 8, 256, sliding_window=4096, layer_types=LOCAL_GLOBAL * 21),
        172_032,
        {1: 344_064, 8192: 2016 * MIB},
    ),
    "Gemma-2-27B": (
        config(Gemma2Config, 46, 32, 16, 128, sliding_window=4096, layer_types=LOCAL_GLOBAL * 23),
        188_416,
        {1: 376_832, 8192: 2208 * MIB},
    ),
    "Gemma-3-1B": (
        config(Gemma3TextConfig, 26, 4, 1, 256, sliding_window=512, layer_types=GEMMA_3_1B),
        13_312,
        {1: 26_624, 8192: 43 * MIB, 32_768: 139 * MIB},
    ),
    "gpt-oss-20b": (
        config(GptOssConfig, 24, 64, 8, 64, sliding_window=128, layer_types=LOCAL_GLOBAL * 12),
        24_576,
        {1: 48 * KIB, 8192: 195 * MIB, 131_072: 3075 * MIB},
    ),
    "gpt-oss-120b": (GptOssConfig(), 36_864, {1: 73_728}),
    "DeepSeek-V2": (latent(DeepseekV2Config, 60, 128), 34_560, {1: 69_120, 8192: 540 * MIB}),
    "DeepSeek-V2-Lite": (latent(DeepseekV2Config, 27, 16), 15_552, {1: 31_104, 8192: 243 * MIB}),
    "DeepSeek-V3": (latent(DeepseekV3Config, 61, 128), 35_136, {1: 70_272, 8192: 549 * MIB}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(name):
    given, values, expected = PUBLISHED[name]
    shape = shape_of(given, name)
    assert shape.values == values
    for tokens, size in expected.items():
        row = sizes([shape], context=tokens).iloc[0]
        assert row.bytes_per_user == pytest.approx(size, abs=MIB / 2 if "Gemma-3" in name else 0)
        assert row.bytes_per_token == 2 * values


def test_latent_attention_is_a_fiftieth_of_multi_head_attention():
    """DeepSeek-V2: 1,966,080 numbers a token as MHA, 56.9 times as many; as if of 2.25 groups."""
    shape = shape_of(PUBLISHED["DeepSeek-V2"][0], "x")
    assert shape.as_mha == 1_966_080 and shape.as_mha / shape.values == pytest.approx(
        56.9, abs=0.05
    )
    assert shape.values / (2 * 60 * 128) == 2.25 and shape.scheme == "latent"


def test_eighty_layers_by_hand():
    shapes = [shape_by_hand(80, 64, kv, 128) for kv in (64, 8, 1)]
    table = sizes(shapes, memory=80e9, users=7)
    assert table.scheme.tolist() == ["MHA", "GQA", "MQA"]
    assert table.values_per_token.tolist() == [1_310_720, 163_840, 20_480]
    assert table.bytes_per_token.tolist() == [2_621_440, 327_680, 40_960]
    assert (table.bytes_per_user[:2] / 1e9).round(2).tolist() == [10.74, 1.34]
    assert table.users_that_fit.tolist() == [7, 59, 476]
    assert (table.bytes == 7 * table.bytes_per_user).all()
    assert table.share_of_mha.tolist() == [1, 1 / 8, 1 / 64]
    assert (sizes(shapes, bytes_per_value=1).bytes_per_user * 2 == table.bytes_per_user).all()
    assert sizes(shapes).users_that_fit.isna().all()


@pytest.mark.parametrize(
    "family",
    ["gpt2", "llama", "mistral", "gemma2", "gemma3_text", "gpt_oss", "deepseek_v3", "falcon"],
)
def test_the_formula_is_the_cache_that_transformers_builds(family):
    """Below, at and over the window; the latent vectors of DeepSeek; falcon bypasses the door, not this."""
    model = load_model((tiny_model(family), None))
    shape = shape_of(model.config, family)
    table = measure(model, shape, (1, WINDOW - 1, WINDOW, 20))
    assert table.equal.all(), table
    assert table.formula_bytes[0] == 4 * shape.values and len(shape.layers) == N_LAYERS
    windowed = any(layer.window for layer in shape.layers)
    assert windowed == (family in ("mistral", "gemma2", "gemma3_text", "gpt_oss"))
    assert (table.formula_bytes[3] < 20 * 4 * shape.values) == windowed


SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "moe_intermediate_size": 8,
}  # fmt: skip
SHARING = {"num_kv_shared_layers": 6, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
ODD = {  # layers of several sizes, by the name of their config
    "wide": ("gemma4_text", {"num_hidden_layers": 6, "global_head_dim": 16, "sliding_window": 8}),
    "sharing": ("gemma4_text", {"num_hidden_layers": 12, "sliding_window": 8} | SHARING),
    "own heads": ("inkling_text", {
        "num_hidden_layers": 7, "swa_num_attention_heads": 4, "swa_num_key_value_heads": 4,
        "swa_head_dim": 8, "sliding_window_size": 6, "n_routed_experts": 4, "num_experts_per_tok": 2,
    }),
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_layers_of_several_sizes(kind):
    """Wider heads where all tokens are seen, caches shared on top of that, other heads in a window."""
    name, changes = ODD[kind]
    if name not in CONFIG_MAPPING:
        unavailable(f"this transformers has no {name}")
    if name == "gemma4_text":
        changes = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64} | changes
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**SMALL | changes)).eval()
    shape = shape_of(model.config, kind)
    assert len({layer.values for layer in shape.layers}) > 1 and shape.scheme == "GQA"
    for n in (1, 5, 20):
        with torch.no_grad():
            out = model(torch.arange(n)[None], use_cache=True)
        cache = out.get("cache") or out.get("past_key_values")
        held = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        numbers = sum(part.numel() for part in held if part is not None)  # None: shared
        assert shape.held(n, without_current=True) == numbers
    if name == "gemma4_text":
        with pytest.raises(
            InterpError, match="gemma4_text: the heads of its layers are of several"
        ):
            _ = load_model((model, None)).d_head


def test_values_of_another_width_and_what_a_config_does_not_tell():
    text = config(LlamaConfig, 3, 4, 2, 8)
    text.v_head_dim = 4
    assert shape_of(text, "x").values == 3 * 2 * (8 + 4)
    text.model_type = "dory"
    with pytest.raises(InterpError, match="x: dory keeps a cache for each of its loops, of which"):
        shape_of(text, "x")


def test_configs_that_can_not_be(tmp_path):
    with pytest.raises(InterpError, match="llama: 8 query heads cannot share 3 key-value heads"):
        shape_of(LlamaConfig(num_attention_heads=8, num_key_value_heads=3, head_dim=8), "x")
    sound = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64}
    for wrong, message in (
        ({"num_hidden_layers": 10**12}, "x: num_hidden_layers: 1000000000000; expected 0 to 1,000"),
        ({"num_attention_heads": -4, "num_key_value_heads": -2}, "x: query heads of a layer: -4"),
        ({"head_dim": -8}, "x: numbers that a layer keeps of a token: -64"),
        ({"head_dim": 10**20}, "x: numbers that a layer keeps of a token: 8000"),
        ({"max_position_embeddings": -5}, "x: max_position_embeddings: -5"),
        (
            {"layer_types": ["sliding_attention"] * 4},
            "x: layer 0 .* the config has no sliding_window",
        ),
    ):
        with pytest.raises(InterpError, match=message):
            shape_of(LlamaConfig(**sound | wrong), "x")
    with pytest.raises(InterpError, match="x: tokens in a window: -5"):
        shape_of(MistralConfig(**sound | {"num_key_value_heads": 2, "sliding_window": -5}), "x")
    path = tmp_path / "odd.json"
    sound = {"model_type": "qwen2", "num_hidden_layers": 4, "num_attention_heads": 8}
    for wrong, message in (
        ({"num_attention_heads": 0, "model_type": "llama"}, "is no valid configuration: .*zero"),
        ({"num_attention_heads": "eight"}, "num_attention_heads.*eight"),
        ({"layer_types": ["full_attention"]}, r"num_hidden_layers.*\(4\)"),
    ):
        path.write_text(json.dumps(sound | wrong))
        with pytest.raises(InterpError, match=message):
            load_config(str(path))


def test_a_model_that_gives_no_cache_back(monkeypatch):
    model = load_model((tiny_model("llama"), None))
    forward = model.hf_model.forward
    monkeypatch.setattr(
        model.hf_model, "forward", lambda *a, **k: forward(*a, **k | {"use_cache": False})
    )
    with pytest.raises(InterpError, match="NoneType holds no keys and values"):
        measure(model, shape_of(model.config, "x"), (3,))


def test_a_cache_of_another_size_is_seen():
    model = load_model((tiny_model("llama"), None))
    wrong = shape_by_hand(N_LAYERS, 4, 4, 10)
    assert not measure(model, wrong, (5,)).equal.any()


def test_layers_that_keep_nothing():
    """Gemma 3n's last layers reuse a cache; multi-query heads of GPT-BigCode; a hybrid's other layers."""
    text = config(Gemma3TextConfig, 4, 4, 1, 8, layer_types=LOCAL_GLOBAL * 2, sliding_window=16)
    text.num_kv_shared_layers = 2
    assert [layer.values for layer in shape_of(text, "x").layers] == [16, 16, 0, 0]
    multi_query = shape_of(GPTBigCodeConfig(n_layer=2, n_head=4, n_embd=32), "x")
    assert multi_query.scheme == "MQA" and multi_query.values == 2 * 2 * 8
    text.num_kv_shared_layers, text.layer_types = 0, ["linear_attention"] * 3 + ["full_attention"]
    row = sizes([shape_of(text, "x")]).iloc[0]
    assert (row.full_layers, row.other_layers, row.values_per_token) == (1, 3, 16)
    text.layer_types = ["linear_attention"] * 4
    with pytest.raises(InterpError, match="has no layer with attention"):
        shape_of(text, "x")
    text.layer_types = ["full_attention", "odd"] * 2
    with pytest.raises(InterpError, match="layer 1 is of kind 'odd', whose cache is not known"):
        shape_of(text, "x")


def test_configs_by_every_name(tmp_path):
    """Alias, folder, config.json, JSON of another name: no weights are there."""
    LlamaConfig(num_hidden_layers=2, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    other = tmp_path / "other.json"
    other.write_text((tmp_path / "config.json").read_text())
    for name in (tmp_path, tmp_path / "config.json", other):
        assert load_config(str(name)).num_hidden_layers == 2
    assert load_config("default").num_hidden_layers == 3
    packed = json.loads(other.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    other.write_text(json.dumps(packed))
    assert load_config(str(other)).num_hidden_layers == 2  # packed weights make no difference here
    for text, message in (
        (
            MambaConfig(architectures=["MambaForCausalLM"]).to_json_string(),
            "has no attention heads",
        ),
        ('{"model_type": "unheard_of"}', "knows no architecture 'unheard_of'"),
        ("{", "other.json"),
    ):
        other.write_text(text)
        with pytest.raises(InterpError, match=message):
            load_config(str(other))
    with pytest.raises(InterpError, match=r"no config\.json"):
        (tmp_path / "empty").mkdir()
        load_config(str(tmp_path / "empty"))


def write_gguf(path, *, layers=80, heads=64, kv=8, width=128, context=8192):
    """A GGUF file of metadata alone, as if its weights were still to come."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(heads * width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(28_672)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(32_000)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_gguf_file_without_weights(tmp_path):
    """Its metadata is enough; and a file that is none is refused in one line."""
    path = write_gguf(tmp_path / "big.gguf")
    row = sizes([shape_of(load_config(str(path)), "big")], users=2).iloc[0]
    assert (row.scheme, row.full_layers, row.values_per_token) == ("GQA", 80, 163_840)
    assert row.bytes == 2 * 2 * 163_840 * 4096 and row.context == 4096
    shape = shape_of(load_config(str(write_gguf(tmp_path / "mqa.gguf", kv=1))), "mqa")
    assert (shape.scheme, shape.values, shape.limit) == ("MQA", 20_480, 8192)
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:60])
    with pytest.raises(InterpError, match=r"cut.gguf is damaged or truncated, or no GGUF file"):
        load_config(str(tmp_path / "cut.gguf"))


def test_the_growth_and_the_figure():
    shapes = [shape_by_hand(2, 4, 4, 8), shape_of(PUBLISHED["Mistral-7B v0.1"][0], "mistral")]
    table = growth(shapes, context=8191)
    assert table.context[table.name == "mistral"].tolist() == [*(2**i for i in range(13)), 8191]
    assert table.bytes.iloc[-1] == table.bytes.iloc[-2] == 512 * MIB
    left, right = figures.cache_sizes(sizes(shapes, context=8191, memory=1e9), table).axes
    assert left.lines[1].get_ydata()[-1] == 512 * MIB / 1e6
    assert [text.get_text() for text in right.texts] == [" 476", " 1"]


def test_what_is_refused():
    limited = shape_of(GPT2Config(), "gpt2")
    with pytest.raises(InterpError, match="context=1025: gpt2 has a context of 1024 tokens"):
        sizes([limited], context=1025)
    assert sizes([limited]).context.item() == 1024
    with pytest.raises(InterpError, match="d_head=0: expected 1 or more"):
        shape_by_hand(1, 1, 1, 0)
    with pytest.raises(InterpError, match="64 query heads cannot share 7 key-value heads"):
        shape_by_hand(80, 64, 7, 128)


def test_the_largest_numbers_that_a_config_takes_can_be_counted():
    """And what is larger or smaller is refused by its key, before it overflows."""
    bounds = {
        "n_layers": (1, 10**5), "n_heads": (1, 10**6), "d_head": (1, 10**6), "context": (1, 10**9),
        "users": (1, 10**9), "bytes_per_value": (0.125, 16.0), "memory_gb": (1e-9, 1e9),
    }  # fmt: skip
    for name, (least, most) in bounds.items():
        for wrong in (least / 2 if least < 1 and name != "memory_gb" else 0, most * 2):
            with pytest.raises(ValidationError, match=name):
                KvCacheSizeConfig(**{name: wrong})
    for end in (0, 1):
        for memory in bounds["memory_gb"]:
            given = {name: pair[end] for name, pair in bounds.items()} | {"memory_gb": memory}
            config = KvCacheSizeConfig(models=(), kv_heads=(given["n_heads"],), **given)
            shape = shape_by_hand(
                config.n_layers, config.n_heads, config.kv_heads[0], config.d_head
            )
            counted = {"context": config.context, "bytes_per_value": config.bytes_per_value}
            row = sizes([shape], users=config.users, memory=memory * 1e9, **counted).iloc[0]
            tokens = config.context * config.bytes_per_value
            assert row.bytes_per_user == pytest.approx(shape.values * tokens)
            assert row.users_that_fit == memory * 1e9 // row.bytes_per_user
            assert growth([shape], **counted).bytes.iloc[-1] == row.bytes_per_user


@pytest.mark.smollm2
def test_a_trained_model(smollm2_model):
    shape = shape_of(smollm2_model.config, "smollm2")
    assert shape.values == 11_520
    assert measure(smollm2_model, shape, (16,)).equal.all()
    assert smollm2_model.dtype == torch.float32
