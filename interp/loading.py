"""Checkpoints: from a name on the hub, a folder or a GGUF file to weights that can be trusted.

What is refused, each in one line that names it: a pickle (reading one can run code), a damaged or
truncated file, a checkpoint that lacks weights or has some that the architecture does not know
(transformers would draw the missing ones at random and only warn), quantized weights, an
architecture that is no decoder with attention, and a folder without its tokenizer. Whatever can be
known from the configuration is checked before weights are downloaded or read.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import transformers
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    StrictDataclassError,
)
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from interp.errors import InterpError

Source = Literal["hub", "folder", "gguf", "object"]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

ALWAYS_CAUSAL = {"gpt_neox", "gpt_neox_japanese"}
"""Decoders whose config carries BERT's flag `is_decoder`, unset, though they have no other mode."""
NOT_CAUSAL = {"xlm", "xlnet", "flaubert"}
"""Called causal by transformers, but their attention sees the future."""


class Checkpoint(NamedTuple):
    """A model in eval mode on the CPU, its tokenizer, and where they came from."""

    hf_model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: Source
    revision: str | None


def read_checkpoint(
    name: str | Path,
    tokenizer: PreTrainedTokenizerBase | str | Path | None,
    *,
    dtype: torch.dtype,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Checkpoint:
    """The model called `name`: a `.gguf` file, a folder, or an id on the Hugging Face hub.

    Args:
        name: a path that exists is taken for one; anything else for an id.
        tokenizer: the tokenizer, or where to find it; None: beside the weights.
        dtype: of the parameters.
        revision: branch, tag or commit of a model on the hub.
        trust_remote_code: run the Python files that come with the checkpoint.

    Raises:
        InterpError: see the head of this file.
    """
    path = Path(name).expanduser()
    if revision is not None and path.exists():
        raise InterpError(f"revision={revision!r} is for models on the hub, but {path} is a path")
    with _quiet():
        if path.suffix == ".gguf" and path.exists():
            given = load_tokenizer(tokenizer, trust_remote_code)
            model, found = _read_gguf(path, dtype, with_tokenizer=given is None)
            return Checkpoint(model, given or found, "gguf", None)
        if path.is_dir():
            source: Source = "folder"
            folder, commit = path, None
        elif path.exists():
            raise InterpError(
                f"{path} is a file: expected a folder with {WEIGHTS}, a .gguf file or a hub id"
            )
        else:
            source = "hub"
            folder = _snapshot(str(name), revision, SMALL_FILES + ["*.py"] * trust_remote_code)
            commit = folder.name
        config = _read_config(folder, trust_remote_code)
        given = load_tokenizer(folder if tokenizer is None else tokenizer, trust_remote_code)
        if source == "hub":
            _snapshot(str(name), commit, _weight_files(folder))
        model = _read_folder(folder, config, dtype, trust_remote_code)
    return Checkpoint(model, given, source, commit)


def load_tokenizer(
    tokenizer: PreTrainedTokenizerBase | str | Path | None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase | None:
    """A tokenizer as it is, or read from the folder or hub id that is given.

    Raises:
        InterpError: there is none; the message names the folder.
    """
    if tokenizer is None or isinstance(tokenizer, PreTrainedTokenizerBase):
        return tokenizer
    if not isinstance(tokenizer, str | Path):
        raise InterpError(
            f"tokenizer: expected a transformers tokenizer, a folder or a hub id, got a "
            f"{type(tokenizer).__name__}"
        )
    folder = Path(tokenizer).expanduser()
    if not folder.is_dir():
        folder = _snapshot(str(tokenizer), None, SMALL_FILES)
    # Without its files transformers gives GPT-2's and Qwen's tokenizer an empty vocabulary.
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZER_FILES):
        raise InterpError(
            f"{folder} holds no tokenizer (no tokenizer.json or the like): add it, or name another "
            "place with tokenizer="
        )
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise InterpError(f"{folder}: the tokenizer can't be read: {_first_line(error)}") from error


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Refuse what is no causal language model with attention, or has quantized weights.

    Raises:
        InterpError: naming the architecture and why it is refused.
    """
    architecture = ", ".join(config.architectures or []) or config.model_type
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        why = "is an encoder-decoder"
    elif config.model_type in NOT_CAUSAL or (
        getattr(text, "is_decoder", None) is False and config.model_type not in ALWAYS_CAUSAL
    ):
        why = "is an encoder: its attention sees the future"
    elif getattr(config, "auto_map", None) is None and (
        config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and text.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    ):
        why = "is no causal language model of transformers"
    elif not getattr(text, "num_attention_heads", None):
        why = "has no attention heads"
    elif getattr(config, "quantization_config", None) is not None:
        method = config.to_dict()["quantization_config"].get("quant_method", "an unknown method")
        raise InterpError(
            f"{name}: the weights are quantized ({method}): expected plain floating-point weights; "
            "dequantize them with transformers and give load_model the (hf_model, tokenizer) pair"
        )
    else:
        return
    raise InterpError(f"{name}: {architecture} {why}; expected a decoder-only model with attention")


# ---------------------------------------------------------------------------------------------
# A name on the hub


def _snapshot(name: str, revision: str | None, patterns: list[str]) -> Path:
    """The folder in the hub's cache that holds these files of a model, downloaded if need be."""
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"]
            )
        )
    except HFValidationError as error:
        raise InterpError(
            f"{name}: there is no such folder, and it is no Hugging Face id"
        ) from error
    except RevisionNotFoundError as error:
        raise InterpError(f"{name}: the hub has no revision {revision!r} of it") from error
    except GatedRepoError as error:
        raise InterpError(
            f"{name}: the hub asks you to accept its licence first, and to log in (hf auth login)"
        ) from error
    except RepositoryNotFoundError as error:
        raise InterpError(
            f"{name}: there is no such folder, and no such model on the hub (or it is private: "
            "hf auth login)"
        ) from error
    except LocalEntryNotFoundError as error:
        offline = constants.HF_HUB_OFFLINE
        network = "off (HF_HUB_OFFLINE=1)" if offline else "unreachable"
        at = f" at revision {revision}" if revision else ""
        raise InterpError(
            f"{name}: there is no such folder, and the hub id is not (or not wholly) in the cache"
            f"{at} while the network is {network}; download it first, or give a folder"
        ) from error


# ---------------------------------------------------------------------------------------------
# A folder


def _read_config(folder: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """The checked configuration of a folder."""
    path = folder / "config.json"
    if not path.is_file():
        found = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; name the file: {folder / found[0]}" if found else ""
        raise InterpError(f"{folder} holds no model: it has no config.json{hint}")
    raw = _read_json(path)
    model_type = raw.get("model_type")
    if "auto_map" in raw and not trust_remote_code and model_type not in CONFIG_MAPPING:
        raise InterpError(
            f"{folder}: {model_type} brings Python code of its own; read it, then allow it with "
            "trust_remote_code=True"
        )
    if "auto_map" not in raw and model_type not in CONFIG_MAPPING:
        raise InterpError(
            f"{path}: transformers {transformers.__version__} knows no architecture {model_type!r}"
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
        raise InterpError(f"{path} is no valid configuration: {_first_line(error)}") from error
    check_config(config, str(folder))
    return config


def _read_folder(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, trust_remote_code: bool
) -> PreTrainedModel:
    """The model of a folder, in eval mode, every weight of it from the files."""
    for file in _weight_files(folder):
        if file != INDEX:
            _check_safetensors(folder / file)
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are in the report then, and refused below
    )
    _check_report(report, folder, type(model).__name__)
    return model


def _weight_files(folder: Path) -> list[str]:
    """The names of the safetensors files: the only one, or the index and its shards."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [WEIGHTS]
    shards = _read_json(index).get("weight_map", {})
    return [INDEX, *sorted(set(shards.values()))]


def _check_safetensors(path: Path) -> None:
    """Refuse a file that is not there, or whose length is not what its header says."""
    folder = path.parent
    if not path.is_file():
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        found = f"only the pickle {pickles[0]}, and reading one can run code" if pickles else "none"
        raise InterpError(
            f"{folder} needs its weights in {path.name} and has {found}; if you trust a pickle, "
            f"convert it: AutoModelForCausalLM.from_pretrained({str(folder)!r}, "
            "use_safetensors=False).save_pretrained(NEW_FOLDER)"
        )
    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise InterpError(
            f"{path} is damaged or truncated ({_first_line(error)}): fetch it again"
        ) from error


def _check_report(report: dict[str, Any], path: Path, architecture: str) -> None:
    """Refuse a checkpoint whose weights are not exactly those of the architecture."""
    mismatched = [
        f"{name} (file {list(found)}, model {list(expected)})"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    for what, names in (
        ("lacks weights of", sorted(report["missing_keys"])),
        ("has weights unknown to", sorted(report["unexpected_keys"])),
        ("has weights of other sizes than", mismatched),
        ("has weights that can't be converted for", report["error_msgs"]),
    ):
        if names:
            rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InterpError(
                f"{path} {what} {architecture}: {', '.join(map(str, names[:3]))}{rest}; is it the "
                "checkpoint of a whole causal language model?"
            )


# ---------------------------------------------------------------------------------------------
# A GGUF file


def _read_gguf(
    path: Path, dtype: torch.dtype, *, with_tokenizer: bool
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """The model of a GGUF file, dequantized, and the tokenizer that the file carries."""
    # transformers prefers a file of that name in the working directory: give it the whole path.
    file = str(path.resolve())
    folder = str(path.resolve().parent)
    tokenizer = None
    try:
        config = AutoConfig.from_pretrained(folder, gguf_file=file)
        check_config(config, str(path))
        if with_tokenizer:
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        model, report = AutoModelForCausalLM.from_pretrained(
            folder, config=config, gguf_file=file, dtype=dtype, output_loading_info=True
        )
    except ImportError as error:
        raise InterpError(f"{path}: reading GGUF needs a package: {_first_line(error)}") from error
    except (OSError, ValueError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise InterpError(_what_is_wrong_with_gguf(path, error)) from error
    _check_report(report, path, type(model).__name__)
    # The weights are plain tensors now. What is left of the quantizer would make deepcopy, moving
    # and saving the model fail.
    for holder, leftover in (
        (model.config, "quantization_config"),
        (model.config, "_is_quantized"),
        (model, "is_quantized"),
        (model, "hf_quantizer"),
        (model, "quantization_method"),
    ):
        holder.__dict__.pop(leftover, None)
    model.config.architectures = [type(model).__name__]
    return model, tokenizer


def _what_is_wrong_with_gguf(path: Path, error: Exception) -> str:
    """Tell a damaged file from one that transformers can't read; parsing it takes seconds."""
    from gguf import GGUFReader

    try:
        GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError, OverflowError, MemoryError):
        return f"{path} is damaged or truncated, or no GGUF file: fetch it again"
    return f"{path}: transformers can't read this GGUF file: {_first_line(error)}"


# ---------------------------------------------------------------------------------------------


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InterpError(f"{path} is damaged: it is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise InterpError(f"{path} is damaged: expected a JSON object")
    return content


def _first_line(error: Exception) -> str:
    return str(error).strip().partition(os.linesep)[0] or type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No load report from transformers (we make our own), no progress bars off a terminal."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    if not sys.stderr.isatty():
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
