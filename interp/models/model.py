"""A model: weights, tokenizer and what is known of them; get one with :func:`load_model`.

`Model` wraps a Hugging Face causal language model without changing it. Residual-stream modules are
found by TransformerLens' names for them ("blocks.3.attn.o", "ln_final", ...) through its
architecture adapters, and :meth:`Model.bridge` gives a `TransformerBridge` over the same weights.
TransformerLens is imported only by those two.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from interp.errors import InterpError
from interp.models.checkpoint_checks import check_config
from interp.models.loading import (
    Source,
    check_device,
    check_dtype,
    load_tokenizer,
    read_checkpoint,
    read_config,
)

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.model_bridge.architecture_adapter import ArchitectureAdapter

ALIASES: dict[str, str | Path] = {
    "default": Path(__file__).parent.parent / "default_model",
    "gpt2": "openai-community/gpt2",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "smollm2-135m-instruct": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "pythia-70m": "EleutherAI/pythia-70m",
    "pythia-160m": "EleutherAI/pythia-160m",
    "pythia-410m": "EleutherAI/pythia-410m",
}
"""Short names; they win over a folder of the same name (write "./gpt2" for the folder)."""

Loadable = str | Path | PreTrainedModel | tuple[PreTrainedModel, PreTrainedTokenizerBase | None]


def load_model(
    model: Loadable,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Model:
    """Load a model by name, or wrap one that is in memory.

    By name it is read from safetensors (or GGUF), checked, set to eval mode, cast and moved. A
    model in memory is taken as it is: device, dtype and training flags stay (the code that runs it
    uses :func:`evaluating`).

    Args:
        model: an alias (`ALIASES`), a Hugging Face id, a folder, a `.gguf` file, a Hugging Face
            model, or a pair `(hf_model, tokenizer)`; `(hf_model, None)` works on ids only.
        tokenizer: a tokenizer or where to find one, if it is not beside the weights.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" (the best there is); None: "cpu".
        dtype: "float32", "bfloat16" or "float16"; None: "float32".
        revision: branch, tag or commit of a model on the hub.
        trust_remote_code: run the Python files that come with a checkpoint.

    Raises:
        InterpError: an unknown device or dtype or name, a model that is no decoder with attention,
            a damaged, incomplete or pickled checkpoint, a missing tokenizer.
    """
    chosen_device, chosen_dtype = check_device(device), check_dtype(dtype)
    if not isinstance(model, str | Path):
        wrapped = _wrap(model, tokenizer)
        asked_device = None if device == "auto" else chosen_device
        _check_unmoved(wrapped, asked_device, chosen_dtype, revision)
        return wrapped
    name = str(model)
    read = read_checkpoint(
        ALIASES.get(name, model),
        tokenizer,
        dtype=chosen_dtype or torch.float32,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    hf_model = read.hf_model
    hf_model.to(chosen_device or "cpu")  # type: ignore[arg-type]  # decorated by transformers
    return Model(hf_model, read.tokenizer, name, read.source, read.revision)


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A decoder-only language model with its tokenizer; made by :func:`load_model`.

    Attributes:
        hf_model: the Hugging Face model, unchanged.
        tokenizer: its tokenizer; None if it was given without one and takes ids only.
        name: the name it was asked for by.
        source: "hub", "folder", "gguf", or "object" for a model that was in memory.
        revision: the hub's commit hash, if it came from there.
    """

    hf_model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    source: Source
    revision: str | None = None

    @property
    def config(self) -> PreTrainedConfig:
        """The configuration of the text decoder."""
        return self.hf_model.config.get_text_config(decoder=True)

    @property
    def architecture(self) -> str:
        """The class name, such as "LlamaForCausalLM"."""
        return type(self.hf_model).__name__

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return self.config.num_hidden_layers

    @property
    def n_heads(self) -> int:
        """Number of query heads a layer."""
        return self.config.num_attention_heads

    @property
    def n_kv_heads(self) -> int:
        """Number of key-value heads a layer; smaller than `n_heads` with grouped queries."""
        return kv_heads_of(self.config)

    @property
    def d_head(self) -> int:
        """Size of a head's query and key; its value may be smaller (latent attention)."""
        return d_head_of(self.config)

    @property
    def d_model(self) -> int:
        """Size of the residual stream."""
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding: ids must be smaller. The tokenizer may know more or fewer."""
        return self._embedding.weight.shape[0]

    @property
    def n_ctx(self) -> int | None:
        """Longest context in tokens; None if the architecture sets no limit."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def device(self) -> torch.device:
        """Where the embedding is, and where ids must go."""
        return self._embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the embedding."""
        return self._embedding.weight.dtype

    @cached_property
    def weight_hash(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes of all weights, tied ones once.

        Computed at the first use (about a second for a gigabyte) and kept, so an edit of the
        weights after that does not show. Independent of the device; what the model computes by
        itself, such as rotary frequencies, does not count.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(_weights(self.hf_model), key=lambda item: item[0]):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(raw.numpy().data)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """What a manifest says of the model: plain values that go into JSON."""
        tokenizer = None if self.tokenizer is None else type(self.tokenizer).__name__
        return {
            "name": self.name,
            "source": self.source,
            "revision": self.revision,
            "weight_hash": self.weight_hash,
            "architecture": self.architecture,
            "n_layers": self.n_layers,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_kv_heads,
            "d_head": self.d_head,
            "d_model": self.d_model,
            "vocab_size": self.vocab_size,
            "n_ctx": self.n_ctx,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "tokenizer": tokenizer,
        }

    def component(self, path: str) -> nn.Module:
        """The module at a TransformerLens path: "embed", "blocks.3", "blocks.3.attn.o", "ln_final".

        Raises:
            InterpError: a path or a layer that is not there, or an architecture that
                TransformerLens has no adapter for.
        """
        layer = re.match(r"blocks\.(\d+)", path)
        if layer and int(layer[1]) >= self.n_layers:
            raise InterpError(
                f"{path}: {self.name} has layers 0 to {self.n_layers - 1}, no layer {layer[1]}"
            )
        try:
            module = self._adapter.get_component(self.hf_model, path)
        except (ValueError, AttributeError, IndexError) as error:
            raise InterpError(f"{path}: {self.architecture} has no such component") from error
        return module

    def bridge(self) -> TransformerBridge:
        """A `TransformerBridge` over the same weights, in eval mode with eager attention.

        Booting a bridge rebuilds the module tree, so it gets a tree of its own whose parameters and
        buffers are this model's. `hf_model` stays as it is, and no weight is copied but fused
        query-key-value matrices (GPT-2, GPT-NeoX, BLOOM, Falcon, Phi-3), which TransformerLens
        splits. The bridge runs the plain weights. `bridge.enable_compatibility_mode()` folds and
        centres them, and for mixtures of experts TransformerLens 4.3 does so *in place*, in this
        model too: boot a bridge of another copy for that.

        Raises:
            InterpError: TransformerLens has no adapter for the architecture.
        """
        from transformer_lens.model_bridge.sources import build_bridge_from_module

        self._require_adapter()
        tensors = chain(self.hf_model.parameters(), self.hf_model.buffers())
        twin = copy.deepcopy(self.hf_model, {id(tensor): tensor for tensor in tensors}).eval()
        twin.set_attn_implementation("eager")  # or hook_pattern would never fire
        with tempfile.TemporaryDirectory() as folder:
            # TransformerLens reads the tokenizer again, from where it says it came from.
            tokenizer = self.tokenizer
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
                tokenizer = AutoTokenizer.from_pretrained(folder)
            return build_bridge_from_module(
                twin,
                self.architecture,
                hf_config=twin.config,
                tokenizer=tokenizer,
                model_name=self.name,
            )

    @property
    def _embedding(self) -> nn.Embedding:
        return cast(nn.Embedding, self.hf_model.get_input_embeddings())

    @cached_property
    def _adapter(self) -> ArchitectureAdapter:
        """TransformerLens' map of this architecture."""
        from transformer_lens.factories.architecture_adapter_factory import (
            ArchitectureAdapterFactory,
        )
        from transformer_lens.model_bridge.sources import build_bridge_config_from_hf

        self._require_adapter()
        config = build_bridge_config_from_hf(
            self.hf_model.config, self.architecture, self.name, self.dtype
        )
        return ArchitectureAdapterFactory.select_architecture_adapter(config)

    def _require_adapter(self) -> None:
        from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

        if self.architecture not in SUPPORTED_ARCHITECTURES:
            raise InterpError(
                f"{self.name}: TransformerLens has no adapter for {self.architecture}"
            )

    def __repr__(self) -> str:
        heads = f"{self.n_heads} query heads on {self.n_kv_heads} key-value heads of {self.d_head}"
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"Model({self.name}: {self.architecture}, {self.n_layers} layers, {heads}, {dtype} on "
            f"{self.device})"
        )


def check_loaded(model: object) -> None:
    """Refuse what is no model of :func:`load_model`."""
    if not isinstance(model, Model):
        raise InterpError(
            f"model: expected one from load_model, got a {type(model).__name__}: "
            "load_model(name), or load_model((hf_model, tokenizer))"
        )


def kv_heads_of(config: PreTrainedConfig) -> int:
    """Number of key-value heads a layer, by the config of a text decoder."""
    if getattr(config, "multi_query", False) and not getattr(
        config, "new_decoder_architecture", False
    ):
        return 1  # Falcon-7B, GPT-BigCode
    found = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    return found or config.num_attention_heads


def d_head_of(config: PreTrainedConfig) -> int:
    """Size of a head's query and key, by the config of a text decoder."""
    if getattr(config, "qk_nope_head_dim", None):  # latent attention; its head_dim is RoPE's
        return config.qk_nope_head_dim + config.qk_rope_head_dim
    # Never d_model / n_heads unless nothing else is said: Qwen3 and Gemma differ.
    try:
        return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    except RuntimeError as error:  # transformers': it varies across layers
        raise InterpError(
            f"{config.model_type}: the heads of its layers are of several sizes (Gemma 4 and its like); "
            "expected one for all"
        ) from error


def load_config(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedConfig:
    """The config of a model by any of the names that :func:`load_model` takes, or of a config.json alone.

    No weights are read; those of a model on the hub are not downloaded.

    Raises:
        InterpError: no such model, no valid config, or no decoder with attention.
    """
    place = ALIASES.get(name, name)
    return read_config(place, revision=revision, trust_remote_code=trust_remote_code)


@contextlib.contextmanager
def evaluating(hf_model: nn.Module) -> Iterator[None]:
    """Eval mode (no dropout) inside the block; afterwards every submodule has its own flag back."""
    training = [module for module in hf_model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _wrap(model: Any, tokenizer: PreTrainedTokenizerBase | str | Path | None) -> Model:
    """A model in memory, checked but not changed."""
    ids_only = False
    if isinstance(model, tuple):
        if len(model) != 2 or tokenizer is not None:
            raise InterpError("model: expected a pair (hf_model, tokenizer), and tokenizer= unset")
        model, tokenizer = model
        ids_only = tokenizer is None
    if not isinstance(model, PreTrainedModel):
        raise InterpError(
            "model: expected a name, a folder, a .gguf file or a transformers model, got a "
            f"{type(model).__name__}"
        )
    name = model.config.name_or_path or type(model).__name__
    check_config(model.config, name)
    if model.get_output_embeddings() is None:
        raise InterpError(
            f"{name}: {type(model).__name__} has no language-model head, so no logits; expected a "
            "model of AutoModelForCausalLM"
        )
    if tokenizer is None and not ids_only:
        raise InterpError(
            f"{name}: a model in memory needs its tokenizer: give tokenizer=, or (hf_model, None) "
            "to work on token ids only"
        )
    revision = getattr(model.config, "_commit_hash", None)
    found = None if tokenizer is None else load_tokenizer(tokenizer)
    return Model(model, found, name, "object", revision)


def _check_unmoved(
    model: Model, device: torch.device | None, dtype: torch.dtype | None, revision: str | None
) -> None:
    """A model in memory is not moved or cast behind its owner's back."""
    for what, asked, has, cure in (
        ("device", device and device.type, model.device.type, f"hf_model.to({str(device)!r})"),
        ("dtype", dtype, model.dtype, f"hf_model.to({dtype})"),
        ("revision", revision, model.revision, "load it by its id"),
    ):
        if asked is not None and asked != has:
            raise InterpError(
                f"{what}: {asked} was asked for, but {model.name} is in memory with {has}: {cure} "
                f"first, or leave {what} out"
            )


def _weights(hf_model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Parameters and those buffers that are saved with them, each tensor once."""
    saved = hf_model.state_dict().keys()
    yield from hf_model.named_parameters()
    yield from ((name, buffer) for name, buffer in hf_model.named_buffers() if name in saved)
