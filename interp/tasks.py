"""Tasks: prompts with an answer, so that an edit can be seen to matter.

- :func:`copying`: repeated random tokens; what counts is the loss on the repeat, all but its first
  token (the earliest that can be known from the copy).
- :func:`indirect_objects`: "When A and B went to the …, B gave a … to" → A and not B (Wang et al.,
  2211.00593), from templates and names of our own; both orders of the names, in turn. The corrupted
  prompt has other names: three different ones ("abc": who gave is no longer named before, so there is
  nothing to answer from), or the giver and receiver exchanged ("symmetric": the opposite answer).
- :func:`little_world`: held-out stories of the world that the default model was trained on, in pairs
  that differ in what decides (:mod:`interp.world`); the corrupted prompt is the other of the pair.

Answers are single tokens of the tokenizer at hand; what is not is dropped and counted, clean and
corrupted prompts have one length, and every example says which template it is from (examples of one
template are not independent: intervals take whole templates).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from interp.errors import InterpError
from interp.model import Model
from interp.prompts import Prompt, repeated_random_prompts
from interp.tokens import Bos, bos_id, encode, plain_ids
from interp.world import held_out_pairs

Corruption = Literal["abc", "symmetric"]


@dataclass(frozen=True)
class Example:
    """One prompt and what counts as right.

    Attributes:
        prompt: the clean prompt.
        answer, wrong: single token ids that the last position should and should not predict.
        scored: positions whose tokens' loss counts; empty for a task with an answer.
        corrupted: a prompt of the same length without the clean one's answer, or None.
        template: examples of one template are dependent.
    """

    prompt: Prompt
    answer: int | None = None
    wrong: int | None = None
    scored: tuple[int, ...] = ()
    corrupted: Prompt | None = None
    template: str = ""

    def __post_init__(self) -> None:
        name, n = self.prompt.name, len(self.prompt.ids)
        if self.answer is None and not self.scored:
            raise InterpError(f"example {name}: expected an answer, or positions to score")
        if self.corrupted is not None and len(self.corrupted.ids) != n:
            raise InterpError(
                f"example {name}: the clean prompt has {n} tokens, the corrupted one "
                f"{len(self.corrupted.ids)}; they must be of one length, position by position"
            )
        wrong = [position for position in self.scored if not 1 <= position < n]
        if wrong:
            raise InterpError(
                f"example {name}: the token at position {wrong[0]} is predicted by none; "
                f"expected 1 to {n - 1}"
            )


@dataclass(frozen=True)
class Task:
    """Examples with their name and what was left out in making them.

    Attributes:
        name: such as "indirect_objects".
        examples: at least one.
        dropped: reason → number of candidates that were refused.
    """

    name: str
    examples: tuple[Example, ...]
    dropped: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.examples:
            why = "; ".join(f"{count} × {reason}" for reason, count in self.dropped)
            raise InterpError(f"task {self.name}: no examples are left{f' ({why})' if why else ''}")


def copying(
    model: Model, *, n_prompts: int = 16, period: int = 30, bos: Bos = "tokenizer", seed: int = 0
) -> Task:
    """A random segment twice; scored are the tokens of the repeat but its first.

    Raises:
        InterpError: a period below 2, or what :func:`~interp.prompts.repeated_random_prompts` refuses.
    """
    if period < 2:
        raise InterpError(f"period={period}: expected 2 or more tokens, so that one can be copied")
    prompts = repeated_random_prompts(
        model, n_prompts=n_prompts, periods=[period], bos=bos, seed=seed
    )
    return Task(
        "copying",
        tuple(
            Example(
                prompt,
                scored=tuple(range(len(prompt.ids) - period + 1, len(prompt.ids))),
                template=prompt.name,
            )
            for prompt in prompts
        ),
    )


NAMES = (
    "Mary", "John", "Anna", "Mark", "Lucy", "Paul", "Kate", "Tom", "Sarah", "David", "Emma", "Peter",
    "Laura", "James", "Alice", "Robert", "Julia", "George", "Martha", "Simon",
)  # fmt: skip
TEMPLATES = (
    "When {a} and {b} went to the store, {s} gave a drink to",
    "After {a} and {b} came back from school, {s} handed a book to",
    "While {a} and {b} were working at the office, {s} passed a letter to",
    "Since {a} and {b} had met at the station, {s} offered a ticket to",
    "Once {a} and {b} had sat down in the garden, {s} brought a cup of tea to",
    "Because {a} and {b} were late for the party, {s} sent a message to",
    "Before {a} and {b} left for the airport, {s} lent a coat to",
    "As {a} and {b} walked along the river, {s} showed a map to",
    "When {a} and {b} finished their lunch, {s} paid the money to",
    "After {a} and {b} found the old house, {s} gave the key to",
    "While {a} and {b} waited for the doctor, {s} read a story to",
    "Since {a} and {b} were neighbours, {s} often sold eggs to",
    "Once {a} and {b} had cleaned the kitchen, {s} made a cake for",
    "Although {a} and {b} had argued at work, {s} wrote a note to",
    "Then {a} and {b} went into the museum, and {s} explained the picture to",
    "Later {a} and {b} sat by the fire, and {s} sang a song to",
)


def indirect_objects(
    model: Model,
    *,
    n_prompts: int = 16,
    corruption: Corruption = "abc",
    names: Sequence[str] = NAMES,
    templates: Sequence[str] = TEMPLATES,
    bos: Bos = "tokenizer",
    seed: int = 0,
) -> Task:
    """Who was given it? Answer: the name that was named once; wrong: the giver's.

    Raises:
        InterpError: fewer than five (``abc``) or two names that are one token with a space before them.
    """
    dropped: dict[str, int] = {}
    known: dict[str, int] = {}
    for name in names:
        ids = plain_ids(model.tokenizer, f" {name}")
        if len(ids) == 1:
            known[name] = ids[0]
        else:
            dropped["name of several tokens"] = dropped.get("name of several tokens", 0) + 1
    needed = 5 if corruption == "abc" else 2
    if len(known) < needed:
        raise InterpError(
            f"indirect_objects: {len(known)} of {len(names)} names are one token of {model.name}'s "
            f"tokenizer, expected at least {needed}; give other names, or take the task little_world, "
            "which is made of the default model's words"
        )
    rng = np.random.default_rng([seed, 1])
    examples = []
    for index in range(n_prompts):
        template = templates[index % len(templates)]
        first, second, *others = rng.permutation(sorted(known))[:needed].tolist()
        # Both orders in turn, over all templates: the receiver is named first, then second.
        receiver, giver = (first, second) if index // len(templates) % 2 == 0 else (second, first)
        clean = template.format(a=first, b=second, s=giver)
        if corruption == "abc":
            other = template.format(a=others[0], b=others[1], s=others[2])
        else:
            other = template.format(a=first, b=second, s=receiver)
        name = f"{template.split()[0].lower()}-{index}"
        mark = bos_id(model.tokenizer)
        prompt, corrupted = (
            Prompt(tuple(encode(model.tokenizer, text, bos=bos)), label, mark, text)
            for label, text in ((name, clean), (f"{name}-{corruption}", other))
        )
        examples.append(
            Example(prompt, known[receiver], known[giver], corrupted=corrupted, template=template)
        )
    return Task("indirect_objects", tuple(examples), tuple(sorted(dropped.items())))


def little_world(
    model: Model,
    *,
    kind: Literal["indirect_object", "pronoun", "recurring_name", "possession"] = "indirect_object",
    n_prompts: int = 16,
    bos: Bos = "tokenizer",
    seed: int = 0,
) -> Task:
    """Held-out pairs of the little world; both of a pair are examples, each the other's corrupted one.

    Raises:
        InterpError: the tokenizer splits the world's words (it is not the default model's).
    """
    pairs = held_out_pairs(kind, -(-n_prompts // 2), random.Random(seed))
    mark = bos_id(model.tokenizer)
    examples = []
    for index, pair in enumerate(pairs):
        words = [plain_ids(model.tokenizer, text) for text in (pair[0].right, pair[0].wrong)]
        if any(len(ids) != 1 for ids in words):
            raise InterpError(
                f"little_world: {pair[0].right!r} is not one token of {model.name}'s tokenizer; this task is "
                "for the default model and its kin"
            )
        (right,), (wrong,) = words
        both = [
            Prompt(
                tuple(encode(model.tokenizer, cloze.prompt, bos=bos)),
                f"{kind}-{index}{member}",
                mark,
                cloze.prompt,
            )
            for member, cloze in zip("ab", pair, strict=True)
        ]
        for own, other, answer, against in (
            (both[0], both[1], right, wrong),
            (both[1], both[0], wrong, right),
        ):
            examples.append(
                Example(own, answer, against, corrupted=other, template=f"{kind}-{index}")
            )
    return Task(f"little_world_{kind}", tuple(examples[:n_prompts]))
