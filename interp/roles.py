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
import runpy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from interp.errors import InterpError

if TYPE_CHECKING:
    from interp.prompts import Prompt

Targets = Callable[["Prompt"], Iterable[tuple[int, int]]]


@dataclass(frozen=True)
class Role:
    """A kind of head, by what it looks at.

    Attributes:
        name: as it stands in tables.
        targets: prompt → (query, key) pairs; a query may have several targets, or none.
        absent: why a prompt may hold no target at all: the table's ``undefined_reason``.
    """

    name: str
    targets: Targets
    absent: str = "no query in the prompt has a target"

    def pairs(self, prompt: Prompt) -> list[tuple[int, int]]:
        """The role's pairs on a prompt, without repetition, in order.

        Raises:
            InterpError: the role returned something else than pairs of positions in the prompt, or a
                key that lies after its query.
        """
        n = len(prompt.ids)
        try:
            found = sorted({(int(query), int(key)) for query, key in self.targets(prompt)})
        except (TypeError, ValueError) as error:
            raise InterpError(
                f"role {self.name}: expected (query, key) pairs of integers on prompt {prompt.name}: "
                f"{error}"
            ) from error
        for query, key in found:
            if not 0 <= key <= query < n:
                raise InterpError(
                    f"role {self.name}, prompt {prompt.name}: query {query} cannot look at key {key}; "
                    f"expected 0 ≤ key ≤ query < {n}"
                )
        return found


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

    def targets(prompt: Prompt) -> Iterable[tuple[int, int]]:
        return ((query, key) for query in range(k, len(prompt.ids)) for key in range(k))

    return Role(f"sink_first_{k}", targets, f"no query after the first {k} positions")


def _sink_bos(prompt: Prompt) -> Iterable[tuple[int, int]]:
    places = [i for i, token in enumerate(prompt.ids) if token == prompt.bos_id]
    return ((query, key) for query in range(len(prompt.ids)) for key in places if key <= query)


def _sink_by_novelty(repeated: bool, prompt: Prompt) -> Iterable[tuple[int, int]]:
    return ((q, 0) for q, copies in _copies(prompt) if q > 0 and bool(copies) == repeated)


def _offset(distance: int, prompt: Prompt) -> Iterable[tuple[int, int]]:
    return ((query, query - distance) for query in range(distance, len(prompt.ids)))


def _copies(prompt: Prompt) -> Iterable[tuple[int, list[int]]]:
    """Each query with the places of all earlier copies of its token."""
    places: dict[int, list[int]] = {}
    for query, token in enumerate(prompt.ids):
        yield query, list(places.get(token, ()))
        places.setdefault(token, []).append(query)


def _duplicate(prompt: Prompt) -> Iterable[tuple[int, int]]:
    return ((query, copy) for query, copies in _copies(prompt) for copy in copies)


def _induction(last_only: bool, prompt: Prompt) -> Iterable[tuple[int, int]]:
    for query, copies in _copies(prompt):
        for copy in copies[-1:] if last_only else copies:
            # Right after the copy stands the query itself: that is the current token, not induction.
            if copy + 1 < query:
                yield query, copy + 1


FIRST_K = "sink_first_k"
NO_REPEAT = "no token of the prompt occurs twice"

ROLES: dict[str, Role | AnySink] = {
    found.name: found
    for found in (
        Role("sink_first", lambda p: ((q, 0) for q in range(1, len(p.ids)))),
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
    found = runpy.run_path(path).get(name)
    if callable(found) and not isinstance(found, Role):
        found = role(found)
    if not isinstance(found, Role | AnySink):
        raise InterpError(f"roles: {path} defines no role named {name!r}")
    return found
