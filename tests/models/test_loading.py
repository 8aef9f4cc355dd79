"""Getting a model: by name, from a folder, from a GGUF file; and everything that is refused."""

import copy
import json
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
)

from interp.errors import InterpError
from interp.models import model as model_module
from interp.models.checkpoint_checks import check_config
from interp.models.model import load_model
from interp.models.tokens import encode, ordinary_ids, token_strings
from tests.families import tiny_model
from tests.tokenizers_ import VOCABULARY, word_tokenizer

IDS = torch.tensor([[1, 5, 9, 13, 17, 21, 25, 29, 33, 37]])


def logits(hf_model) -> torch.Tensor:
    with torch.no_grad():
        return hf_model(IDS).logits


@pytest.fixture
def saved(tmp_path) -> Path:
    """A folder with a tiny Llama and its tokenizer; each test may spoil its own."""
    return save(tmp_path / "tiny", tiny_model("llama"))


def save(folder: Path, hf_model, **options) -> Path:
    hf_model.save_pretrained(folder, **options)
    word_tokenizer(folder)
    return folder


def edit_weights(folder: Path, edit) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


# ---------------------------------------------------------------------------------------- a folder


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "deepseek_v3", "gpt_oss", "falcon"])
def test_a_folder_gives_the_same_model_in_eval_mode(family, tmp_path):
    hf_model = tiny_model(family)
    model = load_model(save(tmp_path, hf_model))
    assert model.source == "folder" and model.revision is None and model.name == str(tmp_path)
    assert not any(module.training for module in model.hf_model.modules())
    assert (model.dtype, model.device.type) == (torch.float32, "cpu")
    assert model.weight_hash == load_model((hf_model, None)).weight_hash
    assert torch.equal(logits(model.hf_model), logits(hf_model))
    assert encode(model.tokenizer, "t5 t6", bos="on") == [1, 5, 6]


def test_shards(tmp_path):
    hf_model = tiny_model("llama")
    folder = save(tmp_path, hf_model, max_shard_size="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert torch.equal(logits(load_model(folder).hf_model), logits(hf_model))
    shards[1].unlink()
    with pytest.raises(InterpError, match=rf"needs its weights in {shards[1].name} and has none"):
        load_model(folder)


def test_a_tied_unembedding_may_be_left_out(tmp_path):
    folder = save(tmp_path, tiny_model("llama", tie_word_embeddings=True))
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    hf_model = load_model(folder).hf_model
    assert hf_model.lm_head.weight is hf_model.model.embed_tokens.weight


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_on_the_cpu(saved, dtype):  # C22
    model = load_model(saved, dtype=dtype)
    assert model.dtype == getattr(torch, dtype)
    half, full = logits(model.hf_model).float(), logits(load_model(saved).hf_model)
    assert half.isfinite().all()
    assert (half.softmax(-1) - full.softmax(-1)).abs().max() < 0.1


def test_the_tokenizer_may_be_elsewhere(tmp_path, tokenizer):
    tiny_model("gpt2").save_pretrained(tmp_path / "model")
    word_tokenizer(tmp_path / "words")
    for given in (tokenizer, tmp_path / "words", str(tmp_path / "words")):
        found = load_model(tmp_path / "model", given).tokenizer
        assert encode(found, "t5", bos="on") == [1, 5]


def test_aliases_are_names_of_models(saved, monkeypatch):
    monkeypatch.setitem(model_module.ALIASES, "nickname", saved)
    model = load_model("nickname")
    assert (model.name, model.source) == ("nickname", "folder")
    assert (
        model_module.ALIASES["default"]
        == Path(model_module.__file__).parent.parent / "default_model"
    )


# ------------------------------------------------------------ device and dtype, checked first


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:0", ""])
def test_a_device_nobody_has(device):
    with pytest.raises(InterpError, match=r"device: expected cpu, cuda, cuda:N, mps or auto, got"):
        load_model("no/such/model", device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_here(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InterpError, match=rf"device: {device} is not available here; choose cpu"):
        load_model("no/such/model", device=device)


def test_one_gpu_of_two(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InterpError, match=r"device: cuda:1 is not available here"):
        load_model("no/such/model", device="cuda:1")


@pytest.mark.parametrize("dtype", ["fp16", "float64", "torch.float32"])
def test_a_dtype_that_is_not_served(dtype):
    with pytest.raises(InterpError, match=r"dtype: expected one of float32, bfloat16, float16"):
        load_model("no/such/model", dtype=dtype)


# -------------------------------------------------------------------------------- refused by name


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("bert", {}, "bert is an encoder"),
        ("roberta", {}, "roberta is an encoder"),
        ("xlnet", {}, "xlnet is an encoder"),
        ("t5", {}, "t5 is an encoder-decoder"),
        ("bart", {}, "bart is an encoder-decoder"),
        ("mamba", {}, "mamba has no attention heads"),
        ("rwkv", {}, "rwkv has no attention heads"),
        ("vit", {}, "vit is no causal language model"),
        ("modernbert", {}, "modernbert is no causal language model"),
    ],
)
def test_what_is_no_decoder_with_attention(model_type, changes, message, tmp_path):
    AutoConfig.for_model(model_type, **changes).save_pretrained(tmp_path)
    with pytest.raises(InterpError, match=message + r".*expected a decoder-only model with atten"):
        load_model(tmp_path)


def test_the_architecture_is_named(tmp_path):
    T5Config(architectures=["T5ForConditionalGeneration"]).save_pretrained(tmp_path)
    with pytest.raises(InterpError, match=r"T5ForConditionalGeneration is an encoder-decoder"):
        load_model(tmp_path)


def test_an_encoder_in_memory_is_refused_and_made_a_decoder_it_is_not(tokenizer):
    size = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    with pytest.raises(InterpError, match=r"bert is an encoder"):
        load_model(BertLMHeadModel(BertConfig(**size)), tokenizer)
    decoder = BertLMHeadModel(BertConfig(**size, is_decoder=True))
    assert load_model(decoder, tokenizer).n_heads == 2


def test_every_family_of_ours_is_let_through():
    for model_type in ("gpt_neox", "gpt2", "falcon_h1", "jamba", "bamba", "gemma3", "qwen3_next"):
        check_config(AutoConfig.for_model(model_type), "x")  # hybrids have attention somewhere


def edit_config(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_unknown_architecture(saved):
    edit_config(saved, model_type="llamoid")
    with pytest.raises(InterpError, match=r"transformers 5\S+ knows no architecture 'llamoid'"):
        load_model(saved)


def test_code_of_its_own_does_not_run(saved):
    edit_config(saved, model_type="llamoid", auto_map={"AutoConfig": "own.OwnConfig"})
    (saved / "own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(InterpError, match=r"brings Python code of its own.*trust_remote_code=T"):
        load_model(saved)


def test_quantized_weights(saved):
    edit_config(saved, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(InterpError, match=r"the weights are quantized \(gptq\)"):
        load_model(saved)


# ------------------------------------------------------------------------- damaged, incomplete


def test_a_pickle_is_refused(saved):
    (saved / "model.safetensors").unlink()
    torch.save(tiny_model("llama").state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(InterpError, match=r"only the pickle pytorch_model.bin.*use_safetensors="):
        load_model(saved)
    (saved / "pytorch_model.bin").unlink()
    with pytest.raises(InterpError, match=r"needs its weights in model.safetensors and has none"):
        load_model(saved)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_truncated_safetensors(saved, keep):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InterpError, match=r"model.safetensors is damaged or truncated \(.*header"):
        load_model(saved)


@pytest.mark.parametrize("content", ["{", "", "[]"])
def test_damaged_config(saved, content):
    (saved / "config.json").write_text(content)
    with pytest.raises(InterpError, match=r"config.json is damaged: (it is no|expected a) JSON"):
        load_model(saved)


def test_nonsense_in_the_config(saved):
    edit_config(saved, hidden_size="many")
    with pytest.raises(InterpError, match=r"config.json is no valid configuration: .*hidden_size"):
        load_model(saved)


def test_damaged_index(tmp_path):
    folder = save(tmp_path, tiny_model("llama"), max_shard_size="40KB")
    (folder / "model.safetensors.index.json").write_text("{")
    with pytest.raises(InterpError, match=r"model.safetensors.index.json is damaged"):
        load_model(folder)


def test_missing_weights_are_not_drawn_at_random(saved):
    edit_weights(saved, lambda weights: weights.pop("model.layers.1.self_attn.q_proj.weight"))
    with pytest.raises(
        InterpError, match=r"lacks weights of LlamaForCausalLM: model.layers.1.self_attn.q_proj.wei"
    ):
        load_model(saved)


def test_many_missing_weights_are_counted(saved):
    edit_weights(saved, lambda w: [w.pop(name) for name in list(w) if "layers.2" in name])
    with pytest.raises(InterpError, match=r"lacks weights .*, .*, .* and 6 more; is it the check"):
        load_model(saved)


def test_unknown_weights(saved):
    edit_weights(saved, lambda weights: weights.update({"model.extra.weight": torch.ones(3)}))
    with pytest.raises(InterpError, match=r"weights unknown to LlamaForCausalLM: model.extra.weig"):
        load_model(saved)


def test_weights_of_another_size(saved):
    edit_weights(saved, lambda weights: weights.update({"model.norm.weight": torch.ones(35)}))
    with pytest.raises(
        InterpError,
        match=r"of other sizes than LlamaForCausalLM: model.norm.weight \(file \[35\], m",
    ):
        load_model(saved)


@pytest.mark.parametrize(
    ("family", "names"),
    {
        "llama": ["model.layers.0.self_attn.rotary_emb.inv_freq"],
        "gpt2": ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"],
        "gpt_neo": ["transformer.h.0.attn.attention.bias"],
        "gpt_neox": ["gpt_neox.layers.0.attention.masked_bias"],
    }.items(),
)
def test_masks_of_older_checkpoints_are_no_unknown_weights(family, names, tmp_path):
    folder = save(tmp_path, tiny_model(family))
    edit_weights(folder, lambda weights: weights.update({n: torch.ones(1, 4) for n in names}))
    assert torch.equal(logits(load_model(folder).hf_model), logits(tiny_model(family)))


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "qwen2", "llama"])
def test_a_missing_tokenizer(family, tmp_path):
    tiny_model(family).save_pretrained(tmp_path)  # GPT-2's would come out empty, without an error
    with pytest.raises(InterpError, match=rf"{tmp_path} holds no tokenizer .*tokenizer="):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", "{", r"tokenizer.json is damaged: it is no JSON"),
        ("tokenizer.json", "{}", r"the tokenizer can't be read"),
        ("tokenizer_config.json", "", r"tokenizer_config.json is damaged: it is no JSON"),
    ],
)
def test_a_damaged_tokenizer(saved, file, content, message):
    (saved / file).write_text(content)
    with pytest.raises(InterpError, match=message):
        load_model(saved)


# ------------------------------------------------------------------------------ names, the hub


def test_nothing_by_that_name(tmp_path):
    with pytest.raises(InterpError, match=r"a/b/c: there is no such file or folder, and it is no"):
        load_model("a/b/c")
    with pytest.raises(InterpError, match=r"there is no such file or folder"):
        load_model(tmp_path / "missing.gguf")
    with pytest.raises(InterpError, match=r"holds no model: it has no config.json"):
        load_model(tmp_path)


def test_files_that_are_no_model(saved):
    with pytest.raises(InterpError, match=r"model.safetensors is a file: expected a folder"):
        load_model(saved / "model.safetensors")


def test_a_folder_with_gguf_files_names_one(tmp_path):
    (tmp_path / "x.gguf").touch()
    with pytest.raises(InterpError, match=r"has no config.json; name the file: .*/x.gguf"):
        load_model(tmp_path)


def test_a_revision_is_for_the_hub(saved):
    with pytest.raises(InterpError, match=r"revision='main' is for models on the hub"):
        load_model(saved, revision="main")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An offline hub cache that holds org/tiny; its snapshot folder."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / "models--org--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    return save(repo / "snapshots" / COMMIT, tiny_model("llama"))


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_model_in_the_hubs_cache(hub, revision):
    model = load_model("org/tiny", revision=revision)
    assert (model.name, model.source, model.revision) == ("org/tiny", "hub", COMMIT)
    assert torch.equal(logits(model.hf_model), logits(tiny_model("llama")))


def test_a_model_that_is_not_in_the_cache(hub):
    with pytest.raises(
        InterpError, match=r"org/other: there is no such file or folder, .*off \(HF_HUB_OFFLINE=1\)"
    ) as error:
        load_model("org/other")
    assert "\n" not in str(error.value)
    with pytest.raises(InterpError, match=r"in the cache at revision v2 while the network is off"):
        load_model("org/tiny", revision="v2")


def test_a_cache_without_the_weights(hub):
    (hub / "model.safetensors").unlink()
    with pytest.raises(InterpError, match=r"needs its weights in model.safetensors and has none"):
        load_model("org/tiny")


# ----------------------------------------------------------------------------------------- GGUF


def permuted(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Query or key rows in llama.cpp's order: pairs of rotary dimensions side by side."""
    rows, columns = weight.shape
    halves = weight.reshape(n_heads, 2, rows // n_heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


GGUF_NAMES = {
    "model.layers": "blk", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "model.norm": "output_norm", "lm_head": "output",
    "model.embed_tokens": "token_embd",
}  # fmt: skip


def gguf_name(name: str) -> str:
    for ours, theirs in GGUF_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def write_gguf(path: Path, hf_model: LlamaForCausalLM, leave_out: str = "-") -> Path:
    """A tiny Llama as llama.cpp would write it, in float32, with a word-level vocabulary."""
    config: LlamaConfig = hf_model.config
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(VOCABULARY)[: config.vocab_size])
    writer.add_token_types([3, 3, 3, *[1] * (config.vocab_size - 3)])
    writer.add_token_scores([0.0] * config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in hf_model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        part = name.split(".")[-2]
        stored = permuted(weight, heads[part]) if part in heads else weight
        if leave_out not in gguf_name(name):
            writer.add_tensor(gguf_name(name), stored.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_round_trip(tmp_path, tokenizer):  # C34
    hf_model = tiny_model("llama")
    model = load_model(write_gguf(tmp_path / "tiny.gguf", hf_model), tokenizer)
    assert model.source == "gguf" and not model.hf_model.training
    assert (model.n_heads, model.n_kv_heads, model.d_head, model.n_ctx) == (4, 2, 10, 64)
    for name, weight in hf_model.state_dict().items():
        assert torch.equal(model.hf_model.state_dict()[name], weight), name
    assert (logits(model.hf_model) - logits(hf_model)).abs().max() < 1e-5


def test_a_model_from_gguf_is_like_any_other(tmp_path, tokenizer):
    model = load_model(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama")), tokenizer)
    expected = logits(model.hf_model)
    assert torch.equal(logits(copy.deepcopy(model.hf_model)), expected)
    model.hf_model.to(torch.bfloat16).to(torch.float32)
    model.hf_model.save_pretrained(tmp_path / "saved")
    word_tokenizer(tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    assert again.weight_hash == load_model((model.hf_model, None)).weight_hash
    assert (model.bridge()(IDS) - logits(model.hf_model)).abs().max() < 3e-5


def test_gguf_brings_its_tokenizer(tmp_path):
    model = load_model(write_gguf(tmp_path / "tiny.gguf", tiny_model("llama")))
    assert model.tokenizer.convert_ids_to_tokens([1, 5]) == ["<bos>", "t5"]
    assert ordinary_ids(model.tokenizer, model.vocab_size) == list(range(3, 61))


def test_gguf_in_half_precision(tmp_path, tokenizer):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    assert load_model(path, tokenizer, dtype="bfloat16").dtype == torch.bfloat16


def test_a_gguf_of_that_name_in_the_working_directory_is_another(tmp_path, tokenizer, monkeypatch):
    wanted = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama", 0))
    (tmp_path / "cwd").mkdir()
    write_gguf(tmp_path / "cwd" / "tiny.gguf", tiny_model("llama", 1))
    monkeypatch.chdir(tmp_path / "cwd")
    model = load_model(wanted, tokenizer)
    assert model.weight_hash == load_model((tiny_model("llama", 0), None)).weight_hash


@pytest.mark.parametrize("keep", [0, 3, 100, 1500, -40])
def test_truncated_gguf(tmp_path, tokenizer, keep):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InterpError, match=r"tiny.gguf is damaged or truncated, or no GGUF file"):
        load_model(path, tokenizer)


def test_gguf_without_a_tensor(tmp_path, tokenizer):
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), leave_out="blk.1.attn_q")
    with pytest.raises(InterpError, match=r"lacks weights .*: model.layers.1.self_attn.q_proj.wei"):
        load_model(path, tokenizer)


def test_gguf_of_an_unknown_architecture(tmp_path, tokenizer):
    writer = GGUFWriter(tmp_path / "x.gguf", "novel")
    writer.add_name("x")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InterpError, match=r"transformers can't read this GGUF file: .*novel"):
        load_model(tmp_path / "x.gguf", tokenizer)


# ---------------------------------------------------------------------------------- a real model


@pytest.mark.smollm2
def test_smollm2(smollm2_folder):
    model = load_model(smollm2_folder)
    assert (model.n_layers, model.n_heads, model.n_kv_heads, model.d_head) == (30, 9, 3, 64)
    assert (model.n_ctx, model.vocab_size) == (8192, 49152)
    assert ordinary_ids(model.tokenizer, model.vocab_size) == list(range(17, 49152))
    ids = encode(model.tokenizer, "The capital of France is", bos="tokenizer")
    assert token_strings(model.tokenizer, ids) == ["The", " capital", " of", " France", " is"]
    with torch.no_grad():
        answer = model.hf_model(torch.tensor([ids])).logits[0, -1].argmax()
    assert token_strings(model.tokenizer, [int(answer)]) == [" Paris"]
