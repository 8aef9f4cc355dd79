"""Doubts about a checkpoint: what is refused before its numbers are believed.

An architecture that is no decoder with attention; quantized weights; a file that is a pickle
(reading one can run code), damaged or truncated; and weights that are missing, unknown or of
another size, which transformers would draw at random with only a warning.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from interp.errors import InterpError

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")

ALWAYS_CAUSAL = {"gpt_neox", "gpt_neox_japanese"}
"""Decoders whose config carries BERT's flag `is_decoder`, unset, though they have no other mode."""
NOT_CAUSAL = {"xlm", "xlnet", "flaubert"}
"""Called causal by transformers, but their attention sees the future."""

FIXED_BUFFERS = re.compile(
    r"(attn|attention)\.(masked_)?bias$|inv_freq$|embed_positions$|position_ids$|decoder\.version$"
)
"""Masks and position tables that older versions of transformers saved and newer ones compute."""


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Refuse what is no causal language model with attention.

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
    elif not _attention_heads(text):
        why = "has no attention heads, or not as many in each layer"
    else:
        return
    raise InterpError(f"{name}: {architecture} {why}; expected a decoder-only model with attention")


def _attention_heads(config: PreTrainedConfig) -> int | None:
    try:
        return getattr(config, "num_attention_heads", None)
    except RuntimeError:  # transformers': the number varies across layers
        return None


def check_not_quantized(config: PreTrainedConfig, name: str) -> None:
    """Refuse a checkpoint whose weights are packed: what is loaded here is plain numbers.

    Raises:
        InterpError: naming the method of quantization.
    """
    if getattr(config, "quantization_config", None) is None:
        return
    method = config.to_dict()["quantization_config"].get("quant_method", "by an unknown method")
    raise InterpError(
        f"{name}: the weights are quantized ({method}); expected plain floating-point weights: "
        "dequantize it with transformers, and give load_model the pair (hf_model, tokenizer)"
    )


def check_safetensors(path: Path) -> None:
    """Refuse a file that is not there, or whose length is not what its header says.

    Raises:
        InterpError: naming the file, or the pickle that is there in its place.
    """
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
            f"{path} is damaged or truncated ({first_line(error)}): fetch it again"
        ) from error


def check_report(report: dict[str, Any], path: Path, architecture: str) -> None:
    """Refuse a checkpoint whose weights are not exactly those of the architecture.

    Args:
        report: what `from_pretrained(..., output_loading_info=True)` says.
        path: the checkpoint, for the message.
        architecture: the class name of the model, for the message.

    Raises:
        InterpError: naming the first three of the weights.
    """
    unknown = [name for name in report["unexpected_keys"] if not FIXED_BUFFERS.search(name)]
    mismatched = [
        f"{name} (file {list(found)}, model {list(expected)})"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    for what, names in (
        ("lacks weights of", sorted(report["missing_keys"])),
        ("has weights unknown to", sorted(unknown)),
        ("has weights of other sizes than", mismatched),
        ("has weights that can't be converted for", report["error_msgs"]),
    ):
        if names:
            rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InterpError(
                f"{path} {what} {architecture}: {', '.join(map(str, names[:3]))}{rest}; is it the "
                "checkpoint of a whole causal language model?"
            )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an InterpError that names the file if it holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InterpError(f"{path} is damaged: it is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise InterpError(f"{path} is damaged: expected a JSON object")
    return content


def first_line(error: Exception) -> str:
    """The first line of an error's message: ours is one line, and it quotes no more."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
