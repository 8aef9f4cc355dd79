"""Tasks of English sentences, from templates, names and nouns of our own.

- :func:`indirect_objects`: "When A and B went to the …, B gave a … to" → A and not B (Wang et al.,
  2211.00593); both orders of the names, in turn. The corrupted prompt has other names: three different
  ones ("abc": who gave is no longer named before, so there is nothing to answer from), or the giver and
  receiver exchanged ("symmetric": the opposite answer).
- :func:`pronouns`: "The trophy would not fit in the box because it was too small. What was too small? The"
  → " box", and with "big" " trophy"; each is the other's corrupted prompt
  (:mod:`interp.inputs.pronoun_frames`).

Years are in :mod:`interp.inputs.years`. A word is taken only if it is one token of the tokenizer at hand,
where it stands; others are dropped and counted. Nothing here says that a model can do these things:
measure that before taking it apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.pronoun_frames import FRAMES, Frame
from interp.inputs.tasks import Example, Task
from interp.models.model import Model
from interp.models.tokens import Bos, bos_id, encode, plain_ids

Corruption = Literal["abc", "symmetric"]
Places = tuple[tuple[str, int], ...]
INSTEAD = "take the task copying, or little_world for the default model"

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
        InterpError: fewer than five (``abc``) or two names that are one token with a space before them,
            or a template that does not name the giver twice.
    """
    known, dropped = known_words(model, names, "name")
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
        prompt = text_prompt(model, clean, name, bos)
        examples.append(
            Example(
                prompt,
                known[receiver],
                known[giver],
                corrupted=text_prompt(model, other, f"{name}-{corruption}", bos),
                template=template,
                places=_names_at(prompt, known[receiver], known[giver]),
            )
        )
    return Task("indirect_objects", tuple(examples), dropped)


def _names_at(prompt: Prompt, receiver: int, giver: int) -> Places:
    """Where the names stand, in the words of Wang et al. (2211.00593)."""
    (io,), (first, second) = stands(prompt, [receiver]), stands(prompt, [giver], 2)
    return (
        ("IO", io),
        ("S1", first),
        ("S1+1", first + 1),
        ("S2", second),
        ("END", len(prompt.ids) - 1),
    )


# --- pronouns ------------------------------------------------------------------------------------


def pronouns(
    model: Model,
    *,
    n_prompts: int = 16,
    question_only: bool = False,
    frames: Sequence[Frame] = FRAMES,
    bos: Bos = "tokenizer",
    seed: int = 0,
) -> Task:
    """What is "it"? Pairs of prompts that differ in one adjective, named in the sentence and in the question.

    Answer: the noun that the adjective speaks of; wrong: the other. Each of a pair is the other's corrupted
    prompt. Frames are drawn by ``seed``; an odd number of prompts leaves one without its partner.

    Args:
        question_only: the control. "What was too small? The", without the sentence, and the same answers:
            what a model gets right there it owes to nouns and adjectives that go together, not to "it".

    Raises:
        InterpError: most frames do not fit the tokenizer, or there are not as many prompts.
    """
    pairs, dropped = [], Counter[str]()
    for frame in frames:
        pair = _pair(model, frame, bos, question_only)
        if isinstance(pair, str):
            dropped[pair] += 1
        else:
            pairs.append(pair)
    why = "; ".join(f"{count} × {reason}" for reason, count in sorted(dropped.items())) or "none"
    if 2 * len(pairs) < len(frames) or not pairs:
        raise InterpError(
            f"pronouns: {len(pairs)} of {len(frames)} frames fit {model.name}'s tokenizer, expected at "
            f"least half (dropped: {why}); {INSTEAD} (its story=pronoun)"
        )
    if n_prompts > 2 * len(pairs):
        raise InterpError(
            f"pronouns: n_prompts={n_prompts}, and {len(pairs)} frames make {2 * len(pairs)} prompts "
            f"(dropped: {why}); lower n_prompts, or give more frames"
        )
    order = np.random.default_rng([seed, 4]).permutation(len(pairs))
    examples = [example for place in order for example in pairs[place]]
    name = "pronouns_question" if question_only else "pronouns"
    return Task(name, tuple(examples[:n_prompts]), tuple(sorted(dropped.items())))


def _pair(
    model: Model, frame: Frame, bos: Bos, question_only: bool
) -> tuple[Example, Example] | str:
    """Both examples of a frame, or why it doesn't fit the tokenizer."""
    first, second, it = (word(model, text) for text in (frame.first, frame.second, "it"))
    adjectives = [word(model, text) for text in (frame.of_first, frame.of_second)]
    if first is None or second is None or it is None:
        return "noun that is not one token"
    if None in adjectives:
        return "adjective that is not one token"
    one, two = (
        text_prompt(
            model,
            frame.question(text) if question_only else f"{frame.told(text)} {frame.question(text)}",
            f"{frame.first}-{frame.second}-{text}",
            bos,
        )
        for text in (frame.of_first, frame.of_second)
    )
    changed = [i for i, (a, b) in enumerate(zip(one.ids, two.ids, strict=False)) if a != b]
    mentions = 1 if question_only else 2
    if len(one.ids) != len(two.ids) or [one.ids[i] for i in changed] != adjectives[:1] * mentions:
        return "pair that differs in more than its adjective"
    nouns = () if question_only else (("first noun", first), ("second noun", second), ("it", it))
    places = (
        *((name, stands(one, [token])[0]) for name, token in nouns),
        *zip(("adjective", "adjective 2"), changed, strict=False),
        ("END", len(one.ids) - 1),
    )
    return (
        Example(one, first, second, corrupted=two, template=frame.template, places=places),
        Example(two, second, first, corrupted=one, template=frame.template, places=places),
    )


# --- words as tokens -----------------------------------------------------------------------------


def inside(model: Model, text: str) -> list[int]:
    """The ids of a text where it stands within a sentence; none if they can't be told from what is before."""
    before, whole = (plain_ids(model.tokenizer, part) for part in ("the", f"the{text}"))
    return whole[len(before) :] if whole[: len(before)] == before else []


def word(model: Model, text: str) -> int | None:
    """The id of a word with a space before it; None if it is several tokens, or one for unknown words."""
    ids = inside(model, f" {text}")
    assert model.tokenizer is not None  # or plain_ids had refused
    return ids[0] if len(ids) == 1 and ids[0] not in model.tokenizer.all_special_ids else None


def known_words(
    model: Model, words: Sequence[str], kind: str
) -> tuple[dict[str, int], tuple[tuple[str, int], ...]]:
    """The words that are one token, with their ids; and how many are not, as :attr:`Task.dropped` has it."""
    ids = {text: word(model, text) for text in words}
    known = {text: token for text, token in ids.items() if token is not None}
    lost = len(ids) - len(known)
    return known, ((f"{kind} that is not one token", lost),) if lost else ()


def stands(prompt: Prompt, tokens: Sequence[int], times: int = 1) -> list[int]:
    """Where some tokens in a row begin in a prompt.

    Raises:
        InterpError: they are there more or less often than they must.
    """
    n = len(tokens)
    found = [i for i in range(len(prompt.ids)) if prompt.ids[i : i + n] == tuple(tokens)]
    if len(found) != times:
        raise InterpError(
            f"{prompt.text!r}: the tokens {list(tokens)} are there {len(found)} times, expected {times}: "
            "change its template"
        )
    return found


def text_prompt(model: Model, text: str, name: str, bos: Bos) -> Prompt:
    """A prompt of a text."""
    return Prompt(
        tuple(encode(model.tokenizer, text, bos=bos)), name, bos_id(model.tokenizer), text
    )
