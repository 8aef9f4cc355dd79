"""Sets of heads: named by a reader, the first of a ranking, or other heads of the same layers.

    "9.9 9.10; inhibition: 7.3 7.9"    a circuit as text: heads are layer.head, two whole numbers and never
                                       a decimal (9.10 is not 9.1); classes by name, with ; between
    top k                              the first k heads of a ranking, k being shares of all heads, at least 1
    relabelled                         the heads of each layer exchanged: as many in every layer, and sets
                                       within one another stay so

One relabelling is applied to all sets, so that a growing row of them becomes a growing row of random ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int

from interp.arguments import whole_number, whole_numbers
from interp.errors import InterpError

Head = tuple[int, int]
"""(layer, head), both from 0."""
Family = Literal["growing", "named"]

# Of MIB (2504.13151), there of edges.
SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
UNNAMED = "heads"


@dataclass(frozen=True)
class HeadSet:
    """Heads that are kept, or taken away, together.

    Attributes:
        name: such as "top 5" or "circuit".
        heads: (layer, head), each once.
        family: "growing" for one of a row of sets each within the next, "named" for one by itself.
    """

    name: str
    heads: tuple[Head, ...]
    family: Family = "named"

    def __post_init__(self) -> None:
        heads = tuple(whole_numbers(f"set {self.name!r}: head", head) for head in self.heads)
        wrong = [head for head in heads if len(head) != 2]
        if wrong:
            raise InterpError(
                f"set {self.name!r}: {wrong[0]} is no head: expected (layer, head) each"
            )
        object.__setattr__(self, "heads", heads)
        if not self.heads:
            raise InterpError(f"set {self.name!r} has no heads; expected at least one")
        _refuse_twice(f"set {self.name!r}", self.heads)


def heads_in(text: str) -> tuple[Head, ...]:
    """The heads of a text such as "9.9, 9.10" or "[9.9,9.10]".

    Raises:
        InterpError: something that is not layer.head, one that is there twice, or none at all.
    """
    words = re.split(r"[\s,]+", re.sub(r"^\s*\[|\]\s*$", "", text).strip())
    heads = []
    for word in filter(None, words):
        found = re.fullmatch(r"(\d+)\.(\d+)", word)
        if found is None:
            raise InterpError(
                f"{word!r} is no head: expected layer.head, two whole numbers such as 9.10"
            )
        heads.append((int(found[1]), int(found[2])))
    if not heads:
        raise InterpError(f"{text!r} names no head: expected such as 9.9 10.0")
    _refuse_twice(repr(text), heads)
    return tuple(heads)


def classes_in(text: str) -> dict[str, tuple[Head, ...]]:
    """Classes of heads by name, from "movers: 9.9 10.0; inhibition: 7.3"; unnamed ones are "heads".

    Raises:
        InterpError: what :func:`heads_in` refuses, a class named twice, or a head in two classes.
    """
    classes: dict[str, tuple[Head, ...]] = {}
    for part in re.sub(r"^\s*\[|\]\s*$", "", text).split(";"):
        name, _, heads = part.rpartition(":")
        name = name.strip() or UNNAMED
        if name in classes:
            raise InterpError(f"class {name!r} is there twice: put its heads together")
        classes[name] = heads_in(heads)
    check_classes(classes)
    return classes


def check_classes(classes: Mapping[str, Sequence[Head]]) -> None:
    """Refuse a head that is in two classes, or in one twice."""
    _refuse_twice(
        f"classes {', '.join(classes)}", [head for heads in classes.values() for head in heads]
    )


def _refuse_twice(where: str, heads: Sequence[Head]) -> None:
    twice = [head for head, count in Counter(heads).items() if count > 1]
    if twice:
        layer, head = twice[0]
        raise InterpError(f"{where}: head {layer}.{head} is there twice; expected each once")


def named_sets(classes: Mapping[str, Sequence[Head]]) -> list[HeadSet]:
    """The circuit; where it has several classes also the circuit less each, and each by itself."""
    check_classes(classes)
    whole = [head for heads in classes.values() for head in heads]
    sets = [HeadSet("circuit", tuple(whole))]
    if len(classes) > 1:
        for name, heads in classes.items():
            rest = tuple(head for head in whole if head not in heads)
            sets.append(HeadSet(f"circuit less {name}", rest))
        sets += [HeadSet(name, tuple(heads)) for name, heads in classes.items()]
    return sets


def sizes(n_heads: int, shares: Sequence[float] = SHARES) -> list[int]:
    """Head counts of shares of all heads: at least 1, each once, rising, and all heads at the end."""
    wrong = [share for share in shares if not 0 < share <= 1]
    if wrong or not shares:
        raise InterpError(f"shares={list(shares)}: expected numbers above 0, and no more than 1")
    return sorted({max(1, round(share * n_heads)) for share in shares} | {n_heads})


def growing_sets(ranking: Sequence[Head], shares: Sequence[float] = SHARES) -> list[HeadSet]:
    """The first k of all heads, best first."""
    return [HeadSet(f"top {k}", tuple(ranking[:k]), "growing") for k in sizes(len(ranking), shares)]


def relabellings(
    n_layers: int, n_heads: int, count: int, seed: int
) -> Int[np.ndarray, "draw layer head"]:
    """Random orders of the heads of each layer."""
    count = whole_number("n_random", count, least=0)
    rng = np.random.default_rng([whole_number("seed", seed, least=0), 5])
    return rng.permuted(np.tile(np.arange(n_heads), (count, n_layers, 1)), axis=-1)


def relabelled(heads: Sequence[Head], order: Int[np.ndarray, "layer head"]) -> tuple[Head, ...]:
    """Other heads of the same layers, as many in each."""
    return tuple((layer, int(order[layer, head])) for layer, head in heads)
