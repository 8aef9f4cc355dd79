"""What each kind of head looks at: a role names, for every query, the keys it should attend to.

A role is a function from a prompt to (query, key) pairs, positions counted from 0. A head's score is
the attention mass its queries put on their targets, so a query without a target is not scored.

    sink_first        key 0 (Xiao et al., 2309.17453; Gu et al., 2410.10781)
    sink_first_k      keys 0 … k − 1, for queries from k on
    sink_bos          every BOS token at or before the query, by token id
    sink_fresh        key 0, for queries whose token is new in the prompt
    sink_repeat       key 0, for queries whose token occurred before: beside sink_fresh it shows a head
                      that is dormant until there is something to copy (Guo et al., 2410.13835)
    sink_any          the position that draws most attention, found on other queries (AnySink)
    previous_token    key q − 1
    current_token     key q
    duplicate_token   every earlier copy of the query's token (Wang et al., 2211.00593)
    induction         the token after *every* earlier copy (Olsson et al., 2209.11895)
    induction_last    the token after the *last* earlier copy only

With several earlier copies ``induction`` sums the mass over all of them: a perfect head scores 1
however it spreads. A role of one's own takes three lines:

    @interp.role
    def two_back(prompt):
        return [(query, query - 2) for query in range(2, len(prompt.ids))]
"""

from __future__ import annotations

import difflib
import operator
import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from interp.errors import InterpError

if TYPE_CHECKING:
    from interp.inputs.prompts import Prompt

Targets = Callable[["Prompt"], Iterable[tuple[int, int]] | np.ndarray]


@dataclass(frozen=True)
class Role:
    """A kind of head, by what it looks at.

    Attributes:
        name: as it stands in tables.
        targets: prompt → (query, key) pairs, or an integer array of them; a query may have several
            targets, or none.
        absent: why a prompt may hold no target at all: the table's ``undefined_reason``.
    """

    name: str
    targets: Targets
    absent: str = "no query in the prompt has a target"

    def pairs(self, prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
        """The role's (query, key) pairs on a prompt, without repetition, in order.

        Raises:
            InterpError: the function failed, or returned something else than pairs of positions in
                the prompt, a key after its query, or more pairs than fit in memory.
        """
        where = f"role {self.name}, prompt {prompt.name}"
        try:
            found = self.targets(prompt)
            if not isinstance(found, np.ndarray):
                found = [(operator.index(query), operator.index(key)) for query, key in found]
        except InterpError:
            raise
        except (TypeError, ValueError) as error:
            raise InterpError(
                f"{where}: expected (query, key) pairs of integers: {error}"
            ) from error
        except (Exception, SystemExit) as error:  # the user's own code may raise anything
            raise InterpError(f"{where}: it raised {type(error).__name__}: {error}") from error
        query, key = np.asarray(found, dtype=np.int64).reshape(-1, 2).T
        n = len(prompt.ids)
        wrong = np.flatnonzero((key < 0) | (key > query) | (query >= n))
        if len(wrong):
            raise InterpError(
                f"{where}: query {query[wrong[0]]} cannot look at key {key[wrong[0]]}; "
                f"expected 0 ≤ key ≤ query < {n}"
            )
        # As one number each: to sort rows of two takes several times as long.
        return np.stack(np.divmod(np.unique(query * n + key), max(n, 1)), axis=1)


@dataclass(frozen=True)
class AnySink:
    """Whatever single position draws most attention: found on some queries, measured on others.

    For each head and prompt the column with the largest mean weight is found from ``rows`` even
    queries, among columns that at least ``viewers`` of all tokens can still see; its mass is measured
    on the odd queries after it, so that choosing the largest of many does not flatter the score.

    Attributes:
        rows: number of queries, spread evenly, that the column totals are taken over.
        viewers: share of the prompt that must lie after a position for it to be a candidate.
    """

    name: str = "sink_any"
    rows: int = 64
    viewers: float = 0.25
    absent: str = "prompt too short to find a position on one half and measure it on the other"


def sink_first_k(k: int) -> Role:
    """Mass on the first ``k`` positions together, for queries from position k on."""
    if k < 1:
        raise InterpError(f"first_k={k}: expected at least 1 position")

    def targets(prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
        return _pairs(np.arange(k, len(prompt.ids))[:, None], np.arange(k))

    return Role(f"sink_first_{k}", targets, f"no query after the first {k} positions")


def _pairs(
    query: Int[np.ndarray, "*queries"], key: Int[np.ndarray, "*keys"]
) -> Int[np.ndarray, "pair 2"]:
    """Queries and keys, broadcast against each other: an array takes a tenth of the time of tuples."""
    return np.stack(np.broadcast_arrays(query, key), axis=-1).reshape(-1, 2)


def _sink_first(prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
    return _pairs(np.arange(1, len(prompt.ids)), np.array(0))


def _sink_bos(prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
    places = np.flatnonzero([token == prompt.bos_id for token in prompt.ids])
    pairs = _pairs(np.arange(len(prompt.ids))[:, None], places)
    return pairs[pairs[:, 1] <= pairs[:, 0]]


def _offset(distance: int, prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
    query = np.arange(distance, len(prompt.ids))
    return _pairs(query, query - distance)


def _copies(prompt: Prompt, last_only: bool = False) -> Int[np.ndarray, "pair 2"]:
    """(query, earlier place of the same token), for every earlier copy or only the last.

    Raises:
        InterpError: a token repeats so often that there are over ``MOST_PAIRS`` of them.
    """
    ids = np.asarray(prompt.ids)
    order = np.argsort(ids, kind="stable")  # places of one token side by side, earliest first
    begins = np.flatnonzero(np.r_[True, np.diff(ids[order]) != 0]) if len(ids) else order
    earlier = np.arange(len(ids)) - np.repeat(begins, np.diff(np.r_[begins, len(ids)]))
    if last_only:
        again = np.flatnonzero(earlier)
        return np.stack([order[again], order[again - 1]], axis=1)
    total = int(earlier.sum())
    if total > MOST_PAIRS:
        raise InterpError(
            f"prompt {prompt.name}: its tokens repeat so often that there are {total:,} pairs of copies, "
            f"over {MOST_PAIRS:,}; shorten it, or score induction_last in place of the roles over all copies"
        )
    query = np.repeat(np.arange(len(ids)), earlier)
    back = np.arange(total) - np.repeat(np.cumsum(earlier) - earlier, earlier) + 1
    return np.stack([order[query], order[query - back]], axis=1)


def _sink_by_novelty(repeated: bool, prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
    again = _copies(prompt, last_only=True)[:, 0]
    queries = again if repeated else np.setdiff1d(np.arange(1, len(prompt.ids)), again)
    return _pairs(queries, np.array(0))


def _duplicate(prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
    return _copies(prompt)


def _induction(last_only: bool, prompt: Prompt) -> Int[np.ndarray, "pair 2"]:
    query, copy = _copies(prompt, last_only).T
    # Right after the copy stands the query itself: that is the current token, not induction.
    kept = copy + 1 < query
    return _pairs(query[kept], copy[kept] + 1)


FIRST_K = "sink_first_k"
MOST_PAIRS = 4_000_000
NO_REPEAT = (
    "no token of the prompt occurs twice (with and without a space before it a word is two tokens)"
)

ROLES: dict[str, Role | AnySink] = {
    found.name: found
    for found in (
        Role("sink_first", _sink_first),
        Role("sink_bos", _sink_bos, "no BOS token in the prompt"),
        Role("sink_fresh", partial(_sink_by_novelty, False)),
        Role("sink_repeat", partial(_sink_by_novelty, True), NO_REPEAT),
        AnySink(),
        Role("previous_token", partial(_offset, 1)),
        Role("current_token", partial(_offset, 0)),
        Role("duplicate_token", _duplicate, NO_REPEAT),
        Role("induction", partial(_induction, False), NO_REPEAT),
        Role("induction_last", partial(_induction, True), NO_REPEAT),
    )
}


def role(targets: Targets) -> Role:
    """Decorator: make a role of a function from a prompt to (query, key) pairs."""
    return Role(targets.__name__, targets)


def as_roles(roles: object) -> list[Role | AnySink]:
    """Roles, names of roles, or functions from a prompt to pairs: one or several, or ``ROLES``.

    Raises:
        InterpError: anything else, an unknown name, or two roles of one name.
    """
    if isinstance(roles, Mapping):
        roles = roles.values()
    one = isinstance(roles, Role | AnySink | str) or callable(roles)
    given = [roles] if one or not isinstance(roles, Iterable) else list(roles)
    found: list[Role | AnySink] = []
    for each in given:
        if isinstance(each, str):
            found += find_roles([each])
        elif isinstance(each, Role | AnySink):
            found.append(each)
        elif callable(each):
            found.append(role(each))
        else:
            raise InterpError(f"roles: expected roles or their names, got a {type(each).__name__}")
    names = [each.name for each in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not found:
        raise InterpError(
            f"roles: {', '.join(twice)} is there twice" if twice else "roles: none given"
        )
    return found


def check_names(names: Sequence[str]) -> str | None:
    """What is wrong with a list of role names (the nearest right one is named), or None."""
    known = [*ROLES, FIRST_K]
    for name in names:
        if name not in known and ".py:" not in name:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            return f"there is no role '{name}'; {hint} (your own: FILE.py:NAME)"
        if names.count(name) > 1:
            return f"the role {name} is there twice"
    return None if names else "expected at least one role"


def find_roles(names: Sequence[str], first_k: int = 4) -> list[Role | AnySink]:
    """Roles by name; ``sink_first_k`` takes its k from ``first_k``; ``FILE.py:NAME`` is a user's own.

    Raises:
        InterpError: no such role (the nearest is named), a name given twice, or a file without it.
    """
    if isinstance(names, str):
        names = [names]
    wrong = check_names(names)
    if wrong:
        raise InterpError(f"roles: {wrong}")
    found = [_find(name, first_k) for name in names]
    by_name = [one.name for one in found]
    twice = sorted({name for name in by_name if by_name.count(name) > 1})
    if twice:
        raise InterpError(f"roles: {', '.join(twice)} named by two roles; rename one")
    return found


def _find(name: str, first_k: int) -> Role | AnySink:
    if name == FIRST_K:
        return sink_first_k(first_k)
    return ROLES[name] if name in ROLES else _own_role(name)


def _own_role(reference: str) -> Role | AnySink:
    path, _, name = reference.rpartition(":")
    if not Path(path).is_file():
        raise InterpError(f"roles: no file {path} to take the role {name!r} from")
    try:
        found = runpy.run_path(path).get(name)
    except (Exception, SystemExit) as error:  # the user's own code may raise anything
        raise InterpError(f"roles: {path} raised {type(error).__name__}: {error}") from error
    if callable(found) and not isinstance(found, Role):
        found = role(found)
    if not isinstance(found, Role | AnySink):
        raise InterpError(f"roles: {path} defines no role named {name!r}")
    if found.name in (*ROLES, FIRST_K):
        raise InterpError(
            f"roles: {path}: {found.name} is the name of a built-in role: rename yours"
        )
    return found
