"""Prompts: token ids with what a reader of the table must know about them.

Three makers, all seeded and recorded by hash:

- :func:`repeated_random_prompts`: [BOS], r, r, …: a random segment repeated (Olsson et al.,
  2209.11895, §prefix matching; Elhage et al. 2021). Ids are drawn on the CPU from a generator of
  their own among *ordinary* tokens, without repetition inside a segment, so that every query of a
  later copy has exactly one target in each earlier copy.
- :func:`text_prompts`: windows of plain text; by default Python's own documentation, which every
  Python carries.
- :func:`given_prompts`: the user's own sentences.

BOS is explicit: "on", "off", or "tokenizer" (as the tokenizer does); never doubled, and recorded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interp.errors import InterpError
from interp.models.tokens import (
    Bos,
    bos_id,
    check_length,
    encode,
    id_lists,
    ordinary_ids,
    plain_ids,
    prefix_ids,
)

if TYPE_CHECKING:
    from torch import Tensor

    from interp.config.common import Text
    from interp.models.model import Model


@dataclass(frozen=True)
class Prompt:
    """One sequence of tokens.

    Attributes:
        ids: token ids, BOS included where there is one.
        name: unique within its set, e.g. "random-50-3".
        bos_id: the tokenizer's BOS id, or None if it has none (or there is no tokenizer).
        text: the text it came from, if any.
        truncated_from: number of tokens before truncation, if any were cut.
        template: what it was made from: prompts of one template are dependent, so that intervals and
            tests take them together; None: it stands alone.
    """

    ids: tuple[int, ...]
    name: str
    bos_id: int | None = None
    text: str | None = None
    truncated_from: int | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        if not self.ids:
            raise InterpError(f"prompt {self.name} is empty: expected at least one token")

    @property
    def group(self) -> str:
        """What it counts as one observation with: its template, or itself alone."""
        return self.name if self.template is None else self.template

    @property
    def has_bos(self) -> bool:
        """Whether position 0 holds the BOS token."""
        return self.bos_id is not None and self.ids[0] == self.bos_id


def prompts_of_ids(
    ids: Tensor | Sequence[int] | Sequence[Sequence[int]], bos_id: int | None = None
) -> list[Prompt]:
    """Prompts from token ids: one list of ids, a list of lists, or a tensor with one or two axes.

    A flat list is one prompt, never as many prompts of one token.
    """
    return [Prompt(tuple(row), f"ids-{n}", bos_id) for n, row in enumerate(id_lists(ids))]


def repeated_random_prompts(
    model: Model,
    *,
    n_prompts: int = 16,
    periods: Sequence[int] = (50,),
    repeats: int = 2,
    bos: Bos = "tokenizer",
    seed: int = 0,
) -> list[Prompt]:
    """``n_prompts`` prompts [BOS], r × ``repeats``; prompt i has period ``periods[i % len]`` tokens.

    The same seed gives the same ids on every device; the global generators are left alone.

    Raises:
        InterpError: fewer ordinary tokens than a period needs, or a prompt over the model's context.
    """
    _check_count(n_prompts, seed)
    if not isinstance(periods, Sequence) or not periods or min(periods) < 1 or repeats < 1:
        raise InterpError(f"periods={periods!r}, repeats={repeats}: expected numbers of 1 or more")
    tokenizer = model.tokenizer
    pool = np.array(ordinary_ids(tokenizer, model.vocab_size))
    if max(periods) > len(pool):
        raise InterpError(
            f"periods: {max(periods)} distinct tokens asked for, the model has {len(pool)} ordinary ones"
        )
    first = prefix_ids(tokenizer, bos)
    prompts = []
    for index in range(n_prompts):
        period = periods[index % len(periods)]
        segment = np.random.default_rng([seed, index]).choice(pool, period, replace=False).tolist()
        ids = (*first, *segment * repeats)
        name = f"random-{period}x{repeats}-{index}"
        check_length(ids, model.n_ctx, name, "lower periods or repeats")
        prompts.append(Prompt(ids, name, bos_id(tokenizer)))
    return prompts


def text_prompts(
    model: Model,
    text: str,
    *,
    n_prompts: int = 16,
    length: int = 256,
    bos: Bos = "tokenizer",
    seed: int = 0,
    name: str = "text",
) -> list[Prompt]:
    """Windows of ``length`` tokens (BOS included) that do not overlap, drawn at random from a text.

    Raises:
        InterpError: the text is too short for so many windows, or a window is over the context.
    """
    tokenizer = model.tokenizer
    first = prefix_ids(tokenizer, bos)
    _check_count(n_prompts, seed)
    check_length(range(length), model.n_ctx, f"a window of {name}", "lower length")
    body = length - len(first)
    if body < 1:
        raise InterpError(f"length={length} leaves no room for text beside BOS: expected 2 or more")
    ids = plain_ids(tokenizer, text)
    if ids[0] == bos_id(tokenizer):
        raise InterpError(
            f"{name} itself begins with the BOS token: remove it there; each window gets its own by "
            "the rule bos"
        )
    n_windows = len(ids) // body
    if n_windows < n_prompts:
        raise InterpError(
            f"{name} holds {len(ids)} tokens: enough for {n_windows} windows of {length}, "
            f"{n_prompts} asked for; lower n_prompts or length, or give a longer text"
        )
    chosen = sorted(
        np.random.default_rng(seed).choice(n_windows, n_prompts, replace=False).tolist()
    )
    return [
        Prompt((*first, *ids[w * body : (w + 1) * body]), f"{name}-{w}", bos_id(tokenizer))
        for w in chosen
    ]


def given_prompts(
    model: Model,
    texts: Iterable[str],
    *,
    bos: Bos = "tokenizer",
    truncate: bool = False,
    templates: Sequence[str] | None = None,
) -> list[Prompt]:
    """The user's own texts; one over the context is refused, or cut and recorded if ``truncate``.

    Args:
        templates: what each text was made from; None: each stands alone.

    Raises:
        InterpError: no text, an empty one, one over the context, none of more than one token, or not a
            template for each.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    if templates is not None and len(templates) != len(texts):
        raise InterpError(f"templates: {len(templates)} for {len(texts)} texts; expected one each")
    prompts = []
    for index, text in enumerate(texts):
        ids = encode(model.tokenizer, text, bos=bos)
        whole = None
        if truncate and model.n_ctx is not None and len(ids) > model.n_ctx:
            whole, ids = len(ids), ids[: model.n_ctx]
        check_length(ids, model.n_ctx, f"prompt {index}", "shorten it or ask for truncation")
        token = bos_id(model.tokenizer)
        template = None if templates is None else templates[index]
        prompts.append(Prompt(tuple(ids), f"given-{index}", token, text, whole, template))
    if not prompts:
        raise InterpError("no prompts: expected at least one text")
    if all(len(prompt.ids) == 1 for prompt in prompts):
        raise InterpError(
            f"the prompt {prompts[0].text!r} is one token, which can look at nothing but itself: "
            "expected two or more"
        )
    return prompts


def source_text(source: Text) -> tuple[str, str]:
    """(name, text) of the plain text that a config asks for."""
    if source.source == "file":
        assert source.path is not None
        return source.path, read_text(source.path)
    if source.source == "dataset":
        assert source.dataset is not None
        return source.dataset, dataset_text(source.dataset, source.split, source.column)
    return "python_docs", python_docs()


def text_hash(text: str) -> str:
    """sha256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def _check_count(n_prompts: int, seed: int) -> None:
    if not isinstance(n_prompts, int) or n_prompts < 1:
        raise InterpError(f"n_prompts={n_prompts!r}: expected a number of 1 or more")
    if not isinstance(seed, int) or seed < 0:
        raise InterpError(f"seed={seed!r}: expected a number of 0 or more")


def as_prompts(prompts: object) -> list[Prompt]:
    """A list of prompts, or one alone.

    Raises:
        InterpError: anything else; the message says how prompts are made.
    """
    several = isinstance(prompts, Iterable) and not isinstance(prompts, str)
    found: list[Any] = list(prompts) if several else [prompts]  # type: ignore[call-overload]
    wrong = [one for one in found if not isinstance(one, Prompt)]
    if wrong or not found:
        came = f"a {type(wrong[0]).__name__}" if wrong else "none"
        raise InterpError(
            f"prompts: expected one Prompt or more, got {came}: make them with given_prompts(model, "
            "texts), prompts_of_ids(ids), text_prompts or repeated_random_prompts"
        )
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InterpError(
            f"prompts: two are named {twice!r}, so their rows could not be told apart: rename one "
            "(dataclasses.replace(prompt, name=...))"
        )
    return found


def python_docs() -> str:
    """Python's own documentation of its topics (``pydoc_data.topics``), as one text."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | Path) -> str:
    """A text file in UTF-8."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")  # a BOM is no token
    except FileNotFoundError:
        raise InterpError(f"no text file {path}") from None
    except OSError as error:
        raise InterpError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InterpError(f"{path} is not text in UTF-8 (byte {error.start}); convert it") from None
    except ValueError as error:  # a null byte
        raise InterpError(f"cannot read {str(path)!r}: {error}") from None
    if not text.strip():
        raise InterpError(f"{path} is empty: expected text")
    return text


def dataset_text(name: str, split: str = "train", column: str = "text", rows: int = 2000) -> str:
    """The first ``rows`` rows of a Hugging Face data set's column, as one text (needs its network)."""
    found = dataset_rows(name, split, first=rows)
    if any(column not in row for row in found):
        raise InterpError(f"data set {name} has no column {column!r}")
    texts = [row[column] for row in found]
    wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
    if wrong:
        raise InterpError(f"data set {name}, column {column!r} holds {wrong[0]}: expected text")
    return "\n\n".join(texts)


def dataset_rows(
    name: str,
    split: str,
    *,
    subset: str | None = None,
    revision: str | None = None,
    first: int | None = None,
) -> list[dict[str, Any]]:
    """The rows of a Hugging Face data set: of a hub's by its name, or of a folder of data files.

    Args:
        subset: one of its configurations, if it has several.
        revision: branch, tag or commit.
        first: read no more than so many, and download no more than needed; None: all, of which a copy stays
            in Hugging Face's cache and serves without a network.

    Raises:
        InterpError: it can't be had, for the reason that ``datasets`` gives.
    """
    import datasets

    options: dict[str, Any] = {"split": split, "revision": revision, "streaming": first is not None}
    try:
        found = datasets.load_dataset(name, subset, **options)
        return [dict(row) for row in (found if first is None else found.take(first))]
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InterpError(f"data set {name}, split {split}: cannot be loaded: {reason}") from error


def describe_prompts(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What the manifest records: counts, lengths, BOS, truncation, and a hash of all ids."""
    lengths = [len(prompt.ids) for prompt in prompts]
    return {
        "n_prompts": len(prompts),
        "n_templates": len({prompt.group for prompt in prompts}),
        "n_tokens": sum(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
        "bos_at_position_0": sum(prompt.has_bos for prompt in prompts),
        "truncated": {p.name: p.truncated_from for p in prompts if p.truncated_from is not None},
        "sha256": prompt_hash(prompts),
    }


def prompt_hash(prompts: Sequence[Prompt]) -> str:
    """sha256 of the token ids of all prompts, in order."""
    return text_hash(json.dumps([prompt.ids for prompt in prompts], separators=(",", ":")))
