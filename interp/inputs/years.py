"""The task greater_than: a year that is later than another (Hanna, Liu & Variengien, 2305.00586).

    clean      The war went on from the year 1745 to the year 17   → 46 … 99, and not 00 … 45
    corrupted  The war went on from the year 1701 to the year 17   → rules out next to nothing

Templates and nouns are our own. Right and wrong are sets of tokens, so the measure is the paper's
``probability_difference``: Σ p(right) − Σ p(wrong), from −1 to 1. Tokenizers cut years in different ways; two
of them leave an answer to the next token (see :func:`greater_than`), others are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.sentences import INSTEAD, Places, inside, known_words, stands, text_prompt
from interp.inputs.tasks import Example, Task
from interp.models.model import Model
from interp.models.tokens import Bos

EVENTS = (
    "war", "siege", "trial", "drought", "strike", "voyage", "famine", "journey", "campaign", "dispute",
    "alliance", "plague", "rebellion", "expedition", "crisis", "search", "festival", "peace", "exile",
    "quarrel", "revolt", "experiment", "epidemic", "blockade",
)  # fmt: skip
YEARS = (
    "The {noun} went on from the year {start} to the year {century}",
    "The {noun} continued from the year {start} until the year {century}",
    "The {noun} began in the year {start} and ended in the year {century}",
    "They say that the {noun} started in {start} and was over in {century}",
    "According to the museum, the {noun} ran from {start} to {century}",
    "The old book about the {noun} covers the years from {start} to {century}",
    "Having begun in {start}, the {noun} came to an end in {century}",
    "The village still remembers the {noun} that lasted from {start} to {century}",
    "Nobody expected the {noun} of {start} to go on until {century}",
    "The first day of the {noun} was in {start} and the last day was in {century}",
    "What started as a small {noun} in {start} was finished only in {century}",
    "In the year {start} the {noun} began, and it stopped in the year {century}",
    "The letters about the {noun} were written between {start} and {century}",
    "The stone by the road says that the {noun} took place from {start} to {century}",
    "Three kings lived to see the {noun}, which stretched from {start} to {century}",
    "It was in {start} that the {noun} came, and it did not pass until {century}",
)
CENTURIES = tuple(map(str, range(11, 18)))


def greater_than(
    model: Model,
    *,
    n_prompts: int = 16,
    nouns: Sequence[str] = EVENTS,
    templates: Sequence[str] = YEARS,
    bos: Bos = "tokenizer",
    seed: int = 0,
) -> Task:
    """In which year did it end? Later than it began: "from the year 1745 to the year 17" → 46 to 99.

    What is asked of the next token depends on how the tokenizer cuts years:

        17|45    right: two digits above 45 (54 tokens); wrong: 00 to 45 (46 tokens); as in the paper, from
                 start years 02 to 98. The task is named ``greater_than``
        1|7|4|5  right: a digit above 4; wrong: one below 4. 4 itself counts for neither: what comes after it
                 decides. Start years 30 to 69, so that of the digits on average as many are right as
                 wrong. The task is named ``greater_than_digit``

    The measure is ``probability_difference``. In the corrupted prompt the start year ends in 01.

    Raises:
        InterpError: a tokenizer that cuts years otherwise, or to which most nouns are several tokens.
    """
    known, dropped = known_words(model, nouns, "noun")
    if 2 * len(known) < len(nouns) or not known:
        raise InterpError(
            f"greater_than: {len(known)} of {len(nouns)} nouns are one token of {model.name}'s tokenizer, "
            f"expected at least half: the model reads other text than this; {INSTEAD}"
        )
    years = _cut_years(model)
    if years.odd:
        dropped = (*dropped, ("start year that is cut otherwise", years.odd))
    rng = np.random.default_rng([seed, 3])
    examples = []
    for index in range(n_prompts):
        template = templates[index % len(templates)]
        noun = sorted(known)[rng.integers(len(known))]
        start = sorted(years.starts)[rng.integers(len(years.starts))]
        century, name = start[:2], f"{noun}-{start}-{index}"
        texts = [
            template.format(noun=noun, start=year, century=century)
            for year in (start, f"{century}01")
        ]
        prompt = text_prompt(model, texts[0], name, bos)
        right, wrong = years.answers(start)
        examples.append(
            Example(
                prompt,
                answers=right,
                wrongs=wrong,
                corrupted=text_prompt(model, texts[1], f"{name}-01", bos),
                template=template,
                places=_places(prompt, known[noun], years.starts[start], 2 // years.digits),
            )
        )
    return Task(
        "greater_than" if years.digits == 2 else "greater_than_digit", tuple(examples), dropped
    )


@dataclass(frozen=True)
class _Years:
    """How a tokenizer cuts years.

    Attributes:
        digits: how many follow the century in one token, 2 or 1.
        endings: "00" to "99" or "0" to "9", in order, with their ids.
        starts: years to start from, with their ids.
        odd: how many years to start from are cut otherwise.
    """

    digits: int
    endings: dict[str, int]
    starts: dict[str, list[int]]
    odd: int

    def answers(self, start: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that make a later year than this, and that do not; of one digit, the same is neither."""
        begun = start[2 : 2 + self.digits]
        later = {ending for ending in self.endings if ending > begun}
        open_ = {begun} if self.digits == 1 else set()
        return (
            tuple(token for ending, token in self.endings.items() if ending in later),
            tuple(token for ending, token in self.endings.items() if ending not in later | open_),
        )


def _cut_years(model: Model) -> _Years:
    """Two digits in a token where the tokenizer has them all, else one."""
    stems = {century: inside(model, f" {century}") for century in CENTURIES}
    for digits, numbers in ((2, range(2, 99)), (1, range(30, 70))):
        endings = _endings(model, digits)
        years = [f"{century}{number:02d}" for century in CENTURIES for number in numbers]
        cut = {}  # the ids of each year, in the corrupted prompts too, if it is its century and endings
        for year in [*years, *(f"{century}01" for century in CENTURIES)] if endings else []:
            rest = [endings[year[at : at + digits]] for at in range(2, 4, digits)]
            whole = inside(model, f" {year}")
            if whole == [*stems[year[:2]], *rest]:
                cut[year] = whole
        starts = {year: cut[year] for year in years if year in cut and f"{year[:2]}01" in cut}
        if starts:
            return _Years(digits, endings, starts, len(years) - len(starts))
    raise InterpError(
        f"greater_than: {model.name}'s tokenizer cuts years neither as 17|45 nor as 1|7|4|5 (1745 is "
        f"{len(inside(model, ' 1745'))} tokens): no token after 17 says which year is later; {INSTEAD}"
    )


def _endings(model: Model, digits: int) -> dict[str, int]:
    """So many digits as one token after two others: all of them in order, or none."""
    wanted = [f"{number:0{digits}d}" for number in range(10**digits)]
    found: dict[str, int] = {}
    for century in range(
        11, 100
    ):  # some years of the common ones are one token, like 1700 in GPT-2
        stem = inside(model, f" {century}")
        for ending in wanted:
            ids = inside(model, f" {century}{ending}") if ending not in found else []
            if len(ids) == len(stem) + 1 and ids[:-1] == stem:
                found[ending] = ids[-1]
        if not found or len(found) == len(wanted):
            break
    complete = len(set(found.values())) == len(wanted)
    return {ending: found[ending] for ending in wanted} if complete else {}


def _places(prompt: Prompt, noun: int, year: list[int], n_endings: int) -> Places:
    """Where the noun, the century (XX, its last token) and the rest of the start year (YY) stand."""
    (at,), (start,) = stands(prompt, [noun]), stands(prompt, year)
    rest = start + len(year) - n_endings
    return (
        ("noun", at),
        ("XX", rest - 1),
        *((f"YY {k + 1}" if k else "YY", rest + k) for k in range(n_endings)),
        ("END", len(prompt.ids) - 1),
    )
