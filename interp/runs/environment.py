"""What else a number depends on: package versions, the code's commit, the machine.

All of it is read without importing the packages, and goes into the manifest of a run.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "interp",
    "torch",
    "transformers",
    "transformer-lens",
    "tokenizers",
    "safetensors",
    "gguf",
    "datasets",
    "numpy",
    "scipy",
    "statsmodels",
    "pandas",
    "pyarrow",
    "pandera",
    "matplotlib",
    "pydantic",
    "hydra-core",
    "omegaconf",
)


def describe_environment() -> dict[str, Any]:
    """Versions, commit and machine, as plain values; None for what is not there."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "source": source_commit(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "processor": processor(),
        "cpus": os.cpu_count(),
    }


def processor() -> str | None:
    """Which processor, for kernels are chosen by it and sums rounded in its order; None if not known."""
    known = dict(re.findall(r"^(\w[\w ]*?)\s*: (.+)$", _text("/proc/cpuinfo"), re.MULTILINE))
    if "model name" in known:
        more = (f", {key} {known[key]}" for key in ("cpu family", "model") if key in known)
        return known["model name"].strip() + "".join(more)
    return platform.processor() or None


def source_commit() -> dict[str, Any] | None:
    """The git commit of this code and whether the tree was dirty; None if it is no checkout.

    A package installed inside somebody else's repository is no checkout of ours.
    """
    root = Path(__file__).resolve().parents[2]
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root:
        return None
    changes = _git(root, "status", "--porcelain")
    return {
        "commit": _git(root, "rev-parse", "--verify", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def peak_memory() -> int | None:
    """The most memory this process has held so far, in bytes; None where it can't be known."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux: getrusage would count the process that started this one, too
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory() -> int | None:
    """Memory that a new tensor could take without swapping, in bytes; None where it can't be known.

    On Linux what the kernel says is available, or what the container is still allowed, if that is less.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text("/proc/meminfo"), re.MULTILINE)
    if not found:
        return None
    limit, used = (_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    free = int(found[1]) * 1024
    return min(free, int(limit) - int(used)) if limit.isdigit() and used.isdigit() else free


def _text(path: str) -> str:
    """What a file says; nothing if it is not there."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *words: str) -> str | None:
    """What git says, or None. Variables such as GIT_DIR would make it speak of another tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
