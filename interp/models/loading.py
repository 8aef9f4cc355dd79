"""Loading: from a name on the hub, a folder or a GGUF file to weights that can be trusted.

Only safetensors and GGUF are read, and no code that comes with a checkpoint runs unless asked for.
Whatever can be known from the configuration is checked before weights are downloaded or read, and
the weights are checked against the architecture afterwards; `checkpoint_checks` says what is
refused. With `HF_HUB_OFFLINE=1` nothing but the disk is asked.
"""

from __future__ import annotations

import contextlib
import re
import struct
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
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from interp.errors import InterpError
from interp.models.checkpoint_checks import (
    check_config,
    check_not_quantized,
    check_report,
    check_safetensors,
    first_line,
    read_json,
)

Source = Literal["hub", "folder", "gguf", "object"]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

SMALL_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")

BROKEN_GGUF = (OSError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError,
               RuntimeError, struct.error)  # fmt: skip
"""What the parsers of GGUF raise on a file that is cut or garbled: they don't check their input."""


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
            model, found = _read_gguf(path, tokenizer, dtype)
            return Checkpoint(model, found, "gguf", None)
        if path.is_file():
            raise InterpError(
                f"{path} is a file: expected a folder with {WEIGHTS}, a .gguf file or a hub id"
            )
        on_hub = not path.exists()
        small = SMALL_FILES + ["*.py"] * trust_remote_code
        folder = _snapshot(str(name), revision, small) if on_hub else path
        config = _read_config(folder, trust_remote_code)
        found = load_tokenizer(folder if tokenizer is None else tokenizer, trust_remote_code)
        if not on_hub:
            model = _read_folder(folder, config, dtype, trust_remote_code)
            return Checkpoint(model, found, "folder", None)
        _snapshot(str(name), folder.name, _weight_files(folder))  # folder.name is the commit
        model = _read_folder(folder, config, dtype, trust_remote_code)
        return Checkpoint(model, found, "hub", folder.name)


def read_config(
    name: str | Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedConfig:
    """The configuration of a model, without its weights: also of a JSON file by itself.

    Raises:
        InterpError: no such file, folder or id, no valid configuration, or no decoder with attention.
    """
    path = Path(name).expanduser()
    with _quiet():
        if path.suffix == ".gguf" and path.exists():
            return _gguf_config(path)
        if path.is_file():
            return _parse_config(path, trust_remote_code)
        if path.is_dir():
            return _parse_config(_config_file(path), trust_remote_code)
        small = SMALL_FILES + ["*.py"] * trust_remote_code
        folder = _snapshot(str(name), revision, small)
        return _parse_config(_config_file(folder), trust_remote_code)


def load_tokenizer(
    tokenizer: PreTrainedTokenizerBase | str | Path, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """A tokenizer as it is, or read from the folder or hub id that is given.

    Raises:
        InterpError: there is none; the message names the folder.
    """
    if isinstance(tokenizer, PreTrainedTokenizerBase):
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
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / file).is_file():
            read_json(folder / file)
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise InterpError(f"{folder}: the tokenizer can't be read: {first_line(error)}") from error


def check_dtype(dtype: str | None) -> torch.dtype | None:
    """The dtype by that name."""
    if dtype is None:
        return None
    if dtype not in DTYPES:
        raise InterpError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    return DTYPES[dtype]


def check_device(device: str | None) -> torch.device | None:
    """The device by that name, refused here if this machine has none, before anything is read."""
    if device is None:
        return None
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    mps = torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device):
        raise InterpError(f"device: expected cpu, cuda, cuda:N, mps or auto, got {device!r}")
    chosen = torch.device(device)
    if (chosen.type == "cuda" and (chosen.index or 0) >= cuda) or (
        chosen.type == "mps" and not mps
    ):
        raise InterpError(f"device: {device} is not available here; choose cpu or auto")
    return chosen


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
            f"{name}: there is no such file or folder, and it is no Hugging Face id"
        ) from error
    except RevisionNotFoundError as error:
        raise InterpError(f"{name}: the hub has no revision {revision!r} of it") from error
    except GatedRepoError as error:
        raise InterpError(
            f"{name}: the hub asks you to accept its licence first, and to log in (hf auth login)"
        ) from error
    except RepositoryNotFoundError as error:
        raise InterpError(
            f"{name}: there is no such file or folder, and no such model on the hub (or it is "
            "private: hf auth login)"
        ) from error
    except LocalEntryNotFoundError as error:
        offline = constants.HF_HUB_OFFLINE
        network = "off (HF_HUB_OFFLINE=1)" if offline else "unreachable"
        at = f" at revision {revision}" if revision else ""
        raise InterpError(
            f"{name}: there is no such file or folder, and the hub id is not (or not wholly) in "
            f"the cache{at} while the network is {network}; download it first, or give a folder"
        ) from error


# ---------------------------------------------------------------------------------------------
# A folder


def _read_config(folder: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """The checked configuration of a folder whose weights are to be read."""
    config = _parse_config(_config_file(folder), trust_remote_code)
    check_not_quantized(config, str(folder))
    return config


def _config_file(folder: Path) -> Path:
    """The config.json of a folder."""
    path = folder / "config.json"
    if not path.is_file():
        found = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; name the file: {folder / found[0]}" if found else ""
        raise InterpError(f"{folder} holds no model: it has no config.json{hint}")
    return path


def _parse_config(path: Path, trust_remote_code: bool) -> PreTrainedConfig:
    """The configuration in a JSON file, of a decoder with attention."""
    raw, folder = read_json(path), path.parent
    # Code that comes along is looked for in the folder, any other file is read by itself.
    source = folder if path.name == "config.json" else path
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
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (ValueError, TypeError, KeyError, ArithmeticError, StrictDataclassError) as error:
        reason = " ".join(
            str(error).split()
        )  # the field stands on one line, what is wrong on the next
        raise InterpError(f"{path} is no valid configuration: {reason}") from error
    check_config(config, str(source))
    return config


def _read_folder(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, trust_remote_code: bool
) -> PreTrainedModel:
    """The model of a folder, in eval mode, every weight of it from the files."""
    for file in _weight_files(folder):
        if file != INDEX:
            check_safetensors(folder / file)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are in the report then, and refused below
    )
    model, report = loaded
    check_report(report, folder, type(model).__name__)
    return model


def _weight_files(folder: Path) -> list[str]:
    """The names of the safetensors files: the only one, or the index and its shards."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [WEIGHTS]
    shards = read_json(index).get("weight_map", {})
    return [INDEX, *sorted(set(shards.values()))]


# ---------------------------------------------------------------------------------------------
# A GGUF file


def _read_gguf(
    path: Path, tokenizer: PreTrainedTokenizerBase | str | Path | None, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a GGUF file, dequantized, and the tokenizer (None: that of the file)."""
    if tokenizer is not None:
        tokenizer = load_tokenizer(tokenizer)
    # transformers prefers a file of that name in the working directory: give it the whole path.
    file = str(path.resolve())
    folder = str(path.resolve().parent)
    config = _gguf_config(path)
    try:
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            gguf_file=file,
            dtype=dtype,
            # Else the weights may stay packed, under an attention function of their own, and what
            # is left of the quantizer would make copying, casting and saving the model fail.
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    except ImportError as error:
        raise InterpError(f"{path}: reading GGUF needs a package: {first_line(error)}") from error
    except BROKEN_GGUF as error:
        raise InterpError(_what_is_wrong_with_gguf(path, error)) from error
    model, report = loaded
    check_report(report, path, type(model).__name__)
    return model, tokenizer


def _gguf_config(path: Path) -> PreTrainedConfig:
    """The configuration of a GGUF file."""
    file = path.resolve()
    try:
        config = AutoConfig.from_pretrained(str(file.parent), gguf_file=str(file))
    except ImportError as error:
        raise InterpError(f"{path}: reading GGUF needs a package: {first_line(error)}") from error
    except BROKEN_GGUF as error:
        raise InterpError(_what_is_wrong_with_gguf(path, error)) from error
    check_config(config, str(path))
    return config


def _what_is_wrong_with_gguf(path: Path, error: Exception) -> str:
    """Tell a damaged file from one that transformers can't read; parsing it takes seconds."""
    from gguf import GGUFReader

    try:
        GGUFReader(path)
    except BROKEN_GGUF:
        return f"{path} is damaged or truncated, or no GGUF file: fetch it again"
    return f"{path}: transformers can't read this GGUF file: {first_line(error)}"


# ---------------------------------------------------------------------------------------------


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
