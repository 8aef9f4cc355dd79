"""What all tests share: no network, few threads, tiny tokenizers, the default model and a real one."""

from __future__ import annotations

import os

# Before transformers is imported, which reads it only once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import copy
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from experiments.command_line.compose import _defaults as _read_defaults
from tests import smollm2
from tests.needs import unavailable
from tests.tokenizers_ import word_tokenizer

if TYPE_CHECKING:
    from interp.models.model import Model

torch.set_num_threads(1)  # tiny models: a second thread mostly waits for the first


def pytest_runtest_setup() -> None:
    """A run with ``threads=2`` leaves two behind, and sums are rounded in another order with two."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """The word-level tokenizer, which adds nothing by itself. Don't change it."""
    return word_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def auto_bos_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """The same tokenizer, but it puts a BOS first by itself, as LLaMA's does. Don't change it."""
    return word_tokenizer(tmp_path_factory.mktemp("auto_bos_tokenizer"), template="<bos> $A")


@pytest.fixture
def composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra is asked once for each choice of defaults; test_config asks it every time."""

    def defaults(name: str, kinds: dict[str, str]) -> dict[str, Any]:
        return copy.deepcopy(_defaults(name, tuple(kinds.items())))

    monkeypatch.setattr("experiments.command_line.compose._defaults", defaults)


@functools.cache
def _defaults(name: str, kinds: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return _read_defaults(name, dict(kinds))


@pytest.fixture(scope="session")
def model() -> Model:
    """The default model, which a file that tests another puts its own in place of. Don't change it."""
    from interp.models.model import load_model

    return load_model("default")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """A folder with the pretrained SmolLM2-135M-Instruct."""
    try:
        return smollm2.folder()
    except smollm2.Unavailable as reason:
        unavailable(f"SmolLM2 can't be had: {reason}")


@pytest.fixture(scope="module")
def smollm2_model(smollm2_folder):
    """The model itself, on one thread: with a test process on every core, a second one waits for others."""
    from interp.models.model import load_model

    return load_model(smollm2_folder)
