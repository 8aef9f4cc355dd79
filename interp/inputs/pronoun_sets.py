"""Published sets of pronouns to resolve, read at run time: none of them is part of this package.

    Winograd     text, pronoun, pronoun_loc, options, label        (WSC273, WSC285: Levesque et al., 2012)
    WinoGrande   sentence, option1, option2, answer                (Sakaguchi et al., 1907.10641)

``pronoun_loc`` is the character of ``text`` at which ``pronoun`` begins, ``options`` a list of two texts (in
CSV: as JSON), ``label`` 0 or 1; a WinoGrande sentence has its gap "_", and ``answer`` is 1 or 2. Other
columns are not read. Which of the two a set is, its columns say.

A row becomes a :class:`Choice`: text with a gap, and two candidates for it. WinoGrande's candidates are put
in as they are. Winograd's take the pronoun's place: "The" and its like are written small within a sentence,
and a candidate in place of a possessive pronoun gets "'s" ("her" is taken for one where another word follows
that could be owned). A row that can't be read is skipped and counted under its reason.

Rows of the same two candidates whose sentences share most of their words are twins, made to differ in the
word that decides. They are not independent, and get one group.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from interp.errors import InterpError
from interp.inputs.prompts import read_text

Row = dict[str, Any]

# Twins have at least this share of their words in common, in order.
TWINS = 0.7
DETERMINERS = {"A", "An", "The", "My", "Your", "His", "Her", "Its", "Our", "Their"}
POSSESSIVES = {"my", "your", "his", "her", "its", "our", "their"}
# After "her" these own nothing: "asked her to", "with her."
NOT_OWNED = {
    "a", "about", "after", "again", "an", "and", "as", "at", "away", "back", "because", "before", "but",
    "by", "down", "for", "from", "how", "if", "in", "into", "off", "on", "or", "out", "over", "she", "since",
    "so", "than", "that", "the", "then", "this", "to", "too", "until", "up", "what", "when", "where", "while",
    "who", "why", "with",
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A text with a gap, and two candidates for it.

    Attributes:
        name: unique in its set.
        group: choices of one group are dependent.
        before, after: the text on both sides of the gap, with their spaces.
        right, wrong: the candidates.
    """

    name: str
    group: str
    before: str
    after: str
    right: str
    wrong: str

    def begun(self, candidate: str, *, alone: bool = False) -> str:
        """The text up to the gap's end; ``alone``: the candidate and nothing before it."""
        if alone or not self.before.strip():
            return candidate[:1].upper() + candidate[1:]
        return self.before + candidate


# --- reading -------------------------------------------------------------------------------------


def file_rows(path: str) -> list[Row]:
    """The rows of a file: .jsonl (an object a line), .json (a list of objects) or .csv (with a header).

    Raises:
        InterpError: no such file, another kind of file, or what is not of its kind.
    """
    ending = Path(path).suffix.lower()
    if ending not in (".jsonl", ".json", ".csv"):
        raise InterpError(f"{path}: expected a .jsonl, .json or .csv file")
    text = read_text(path)
    if ending == ".csv":
        try:
            return list(csv.DictReader(io.StringIO(text), strict=True))
        except csv.Error as error:
            raise InterpError(f"{path}: is no CSV file: {error}") from error
    if ending == ".json":
        rows = _json(text, path)
        if not isinstance(rows, list):
            raise InterpError(
                f"{path}: holds one {type(rows).__name__}; expected a list of objects (an object a line is a "
                ".jsonl file)"
            )
        numbered: Iterable[tuple[str, Any]] = (
            (f"{path}, item {i}", row) for i, row in enumerate(rows)
        )
    else:
        lines = enumerate(text.splitlines(), start=1)
        places = ((f"{path}, line {i}", line) for i, line in lines if line.strip())
        numbered = ((place, _json(line, place)) for place, line in places)
    found = []
    for place, row in numbered:
        if not isinstance(row, dict):
            raise InterpError(f"{place}: expected an object with columns, got {row!r:.40}")
        found.append(row)
    return found


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InterpError(f"{place}: is no JSON: {error}") from error


def choices_of(rows: Sequence[Row], name: str) -> tuple[list[Choice], Counter[str]]:
    """(the choices, how many rows were skipped for which reason).

    Args:
        rows: of a Winograd or WinoGrande set, all of one.
        name: what the choices are called by: "wsc273-17" is the 17th row.

    Raises:
        InterpError: no rows, or columns of neither set.
    """
    if not rows:
        raise InterpError(f"{name}: holds no rows; expected sentences with two candidates each")
    read = next((one for columns, one in SETS.items() if set(columns) <= rows[0].keys()), None)
    if read is None:
        wanted = " or ".join(", ".join(columns) for columns in SETS)
        raise InterpError(
            f"{name}: has the columns {', '.join(map(str, rows[0]))}; expected {wanted}"
        )
    skipped: Counter[str] = Counter()
    groups: dict[frozenset[str], list[tuple[list[str], str]]] = {}
    found = []
    for number, row in enumerate(rows, start=1):
        parts = read(row)
        if isinstance(parts, str):
            skipped[parts] += 1
            continue
        before, after, right, wrong = parts
        one = f"{name}-{number}"
        found.append(Choice(one, _group(groups, one, *parts), before, after, right, wrong))
    return found, skipped


def _group(
    groups: dict[frozenset[str], list[tuple[list[str], str]]],
    name: str,
    before: str,
    after: str,
    right: str,
    wrong: str,
) -> str:
    """The group of the first sentence that is a twin of this one; else its own, which is noted."""
    alike = groups.setdefault(frozenset({right.casefold(), wrong.casefold()}), [])
    words = f"{before}_{after}".split()
    for others, group in alike:
        if SequenceMatcher(None, others, words, autojunk=False).ratio() >= TWINS:
            return group
    alike.append((words, name))
    return name


# --- a row of each set: its parts, or why it is skipped --------------------------------------------

Parts = tuple[str, str, str, str]
"""before, after, right, wrong"""


def _winogrande(row: Row) -> Parts | str:
    sentence, first, second = (row.get(name) for name in ("sentence", "option1", "option2"))
    if not isinstance(sentence, str) or sentence.count("_") != 1:
        return "sentence without exactly one gap '_'"
    before, _, after = sentence.partition("_")
    return _parts(before, after, [first, second], row.get("answer"), ("1", "2"))


def _winograd(row: Row) -> Parts | str:
    text, pronoun = row.get("text"), row.get("pronoun")
    options, place = row.get("options"), str(row.get("pronoun_loc"))
    if isinstance(options, str):
        try:
            options = json.loads(options)
        except (ValueError, RecursionError):
            options = None
    if not isinstance(options, list):
        return "options that are no list"
    if not isinstance(text, str) or not isinstance(pronoun, str) or not place.isdecimal():
        return "row without text, pronoun and its place"
    end = int(place) + len(pronoun)
    before, there, after = text[: int(place)], text[int(place) : end], text[end:]
    if not pronoun or there.casefold() != pronoun.casefold():
        return "pronoun that is not where pronoun_loc says"
    fitted = [
        _in_place_of(option, pronoun, before, after) if isinstance(option, str) else option
        for option in options
    ]
    return _parts(before, after, fitted, row.get("label"), ("0", "1"))


SETS: dict[tuple[str, ...], Callable[[Row], Parts | str]] = {
    ("sentence", "option1", "option2", "answer"): _winogrande,
    ("text", "pronoun", "pronoun_loc", "options", "label"): _winograd,
}
"""How a row is read, by the columns that must be there."""


def _parts(
    before: str, after: str, options: Sequence[Any], label: Any, labels: tuple[str, str]
) -> Parts | str:
    """What both sets have in common."""
    if len(options) != 2 or not all(isinstance(one, str) and one.strip() for one in options):
        return "row without two candidates"
    if str(label) not in labels:  # sets to be judged by others come without
        return f"row whose answer is neither {labels[0]} nor {labels[1]}"
    before, after = (re.sub(r"\s+", " ", part) for part in (before, after))
    if not after.strip():
        return "nothing after the gap, so nothing to score"
    right = labels.index(str(label))
    candidates = [one.strip() for one in options]
    if candidates[0].casefold() == candidates[1].casefold():
        return "two candidates that are the same"
    return before, after, candidates[right], candidates[1 - right]


def _in_place_of(option: str, pronoun: str, before: str, after: str) -> str:
    """A candidate as it would stand where the pronoun stands."""
    first, space, rest = option.strip().partition(" ")
    begins = re.search(r"(^|[.!?][\"'”’)]*)\s*$", before) is not None  # a sentence
    if not begins and first in DETERMINERS:
        first = first.lower()
    candidate = f"{first}{space}{rest}"
    if begins:
        candidate = candidate[:1].upper() + candidate[1:]
    return f"{candidate}'s" if _owns(pronoun, after) else candidate


def _owns(pronoun: str, after: str) -> bool:
    if pronoun.casefold() not in POSSESSIVES:
        return False
    following = re.match(r"\s+(\w+)", after)
    owned = following is not None and following[1].casefold() not in NOT_OWNED
    return owned or pronoun.casefold() != "her"
