"""Tasks: prompts with an answer, so that an edit can be seen to matter.

- :func:`copying`: repeated random tokens; what counts is the loss on the repeat, all but its first
  token (the earliest that can be known from the copy). In the corrupted prompt other random tokens stand
  in the place of the first copy, so that there is nothing to copy.
- :func:`little_world`: held-out stories of the world that the default model was trained on, in pairs
  that differ in what decides (:mod:`interp.pretraining.world`); the corrupted prompt is the other of the
  pair.

Tasks of English sentences are in :mod:`interp.inputs.sentences` and :mod:`interp.inputs.years`.

Examples name the *places* that matter in them (IO, S1, S2, END …), so that effects at a place can be averaged
over templates in which it stands at different positions.

Answers are single tokens of the tokenizer at hand; what is not is dropped and counted, clean and
corrupted prompts have one length, and every example says which template it is from (examples of one
template are not independent: intervals take whole templates).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal

from interp.arguments import whole_numbers
from interp.errors import InterpError
from interp.inputs.prompts import Prompt, repeated_random_prompts
from interp.models.model import Model, check_loaded
from interp.models.tokens import Bos, bos_id, check_ids, check_length, encode, plain_ids
from interp.pretraining.world import held_out_pairs


@dataclass(frozen=True)
class Example:
    """One prompt and what counts as right.

    Attributes:
        prompt: the clean prompt.
        answer, wrong: single token ids that the last position should and should not predict.
        answers, wrongs: the same where several tokens are right and several wrong; they come together.
        scored: positions whose tokens' loss counts; empty for a task with an answer.
        corrupted: a prompt of the same length without the clean one's answer, or None.
        template: examples of one template are dependent; both prompts take it over if they have none.
        places: (name, position) of tokens that matter, the same in the corrupted prompt.
    """

    prompt: Prompt
    answer: int | None = None
    wrong: int | None = None
    scored: tuple[int, ...] = ()
    corrupted: Prompt | None = None
    template: str = ""
    places: tuple[tuple[str, int], ...] = ()
    answers: tuple[int, ...] = ()
    wrongs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for prompt in (self.prompt, *([] if self.corrupted is None else [self.corrupted])):
            if not isinstance(prompt, Prompt):
                raise InterpError(
                    f"example: expected a Prompt, such as given_prompts makes, got a {type(prompt).__name__}"
                )
        name, n = self.prompt.name, len(self.prompt.ids)
        self._share_template()
        self._take_integers()
        if self.answer is None and not self.answers and not self.scored:
            raise InterpError(f"example {name}: expected an answer, answers, or positions to score")
        both = set(self.answers) & set(self.wrongs)
        if both or bool(self.answers) != bool(self.wrongs):
            raise InterpError(
                f"example {name}: {len(self.answers)} answers and {len(self.wrongs)} wrongs, {len(both)} of "
                "them both; expected some of each, and no token in both"
            )
        if self.corrupted is not None and len(self.corrupted.ids) != n:
            raise InterpError(
                f"example {name}: the clean prompt has {n} tokens, the corrupted one "
                f"{len(self.corrupted.ids)}; they must be of one length, position by position"
            )
        if self.answer is not None and self.answer == self.wrong:
            raise InterpError(
                f"example {name}: token {self.answer} is both answer and wrong; expected two"
            )
        if [*self.scored] != sorted({*self.scored}):
            raise InterpError(
                f"example {name}: scored={self.scored}: expected rising positions, each once"
            )
        wrong = [position for position in self.scored if not 1 <= position < n]
        if wrong:
            raise InterpError(
                f"example {name}: the token at position {wrong[0]} is predicted by none; "
                f"expected 1 to {n - 1}"
            )
        for place, position in self.places:
            if not 0 <= position < n:
                raise InterpError(
                    f"example {name}: place {place} is at position {position}; expected 0 to {n - 1}"
                )
        if len(dict(self.places)) < len(self.places):
            raise InterpError(f"example {name}: a place is named twice in {self.places}")

    def _share_template(self) -> None:
        """Both prompts are of the example's template, unless they have one of their own."""
        for name in ("prompt", "corrupted"):
            prompt = getattr(self, name)
            if self.template and prompt is not None and prompt.template is None:
                object.__setattr__(self, name, replace(prompt, template=self.template))

    def _take_integers(self) -> None:
        """Ids and positions as Python's own, in tuples, wherever they are from (NumPy, a list)."""
        name = self.prompt.name
        for one in ("answer", "wrong"):
            token = getattr(self, one)
            if token is not None and (not isinstance(token, Integral) or isinstance(token, bool)):
                raise InterpError(
                    f"example {name}: {one} {token!r}: expected the id of one token; where several are "
                    "right, give answers and wrongs"
                )
            object.__setattr__(self, one, None if token is None else int(token))
        for several in ("scored", "answers", "wrongs"):
            found = whole_numbers(f"example {name}: {several}", getattr(self, several))
            object.__setattr__(self, several, found)


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
        object.__setattr__(self, "examples", tuple(self.examples))
        wrong = [one for one in self.examples if not isinstance(one, Example)]
        if wrong:
            raise InterpError(
                f"task {self.name}: expected an Example each, got a {type(wrong[0]).__name__}"
            )
        if not self.examples:
            why = "; ".join(f"{count} × {reason}" for reason, count in self.dropped)
            raise InterpError(f"task {self.name}: no examples are left{f' ({why})' if why else ''}")
        names = Counter(example.prompt.name for example in self.examples)
        (name, count), *_ = names.most_common(1)
        if count > 1:  # rows of a table, donors and templates go by it
            raise InterpError(
                f"task {self.name}: {count} prompts are named {name!r}; expected a name of its own for each"
            )


def check_asked(model: object, task: object) -> None:
    """Refuse what is no model of ``load_model``, and what is no task."""
    check_loaded(model)
    if not isinstance(task, Task):
        raise InterpError(
            f"task: expected a Task, got a {type(task).__name__}: Task(name, examples), or a maker such as "
            "copying"
        )


def check_examples(model: Model, examples: Sequence[Example]) -> None:
    """Refuse prompts that the model can't read and answers that it has no logit of.

    Raises:
        InterpError: a prompt longer than the context, an id outside the vocabulary.
    """
    for example in examples:
        for prompt in filter(None, (example.prompt, example.corrupted)):
            check_ids(prompt.ids, model.vocab_size, f"prompt {prompt.name}")
            check_length(prompt.ids, model.n_ctx, f"prompt {prompt.name}")
        for token in (example.answer, example.wrong, *example.answers, *example.wrongs):
            if token is not None and not 0 <= token < model.vocab_size:
                raise InterpError(
                    f"example {example.prompt.name}: answer {token} is not in the model's vocabulary "
                    f"(0 to {model.vocab_size - 1}); is this the model's own tokenizer?"
                )


def copying(
    model: Model, *, n_prompts: int = 16, period: int = 30, bos: Bos = "tokenizer", seed: int = 0
) -> Task:
    """A random segment twice; scored are the tokens of the repeat but its first.

    Raises:
        InterpError: a period below 2, or what :func:`~interp.inputs.prompts.repeated_random_prompts` refuses.
    """
    if period < 2:
        raise InterpError(f"period={period}: expected 2 or more tokens, so that one can be copied")
    try:
        prompts, others = (
            repeated_random_prompts(model, n_prompts=n_prompts, periods=[period], bos=bos, seed=one)
            for one in (seed, seed + 1_000_003)
        )
    except InterpError as error:
        raise InterpError(f"copying, period={period}: {error}") from None
    examples = []
    for prompt, other in zip(prompts, others, strict=True):
        n = len(prompt.ids)
        nothing_to_copy = replace(
            prompt,
            ids=other.ids[: n - period] + prompt.ids[n - period :],
            name=f"{prompt.name}-other",
        )
        examples.append(
            Example(
                prompt,
                scored=tuple(range(n - period + 1, n)),
                corrupted=nothing_to_copy,
                template=prompt.name,
            )
        )
    return Task("copying", tuple(examples))


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
        if any(len(ids) != 1 for ids in words) or words[0] == words[1]:
            raise InterpError(
                f"little_world: {pair[0].right!r} and {pair[0].wrong!r} are not a token each of "
                f"{model.name}'s tokenizer; this task is for the default model and its kin"
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
                Example(
                    own,
                    answer,
                    against,
                    corrupted=other,
                    template=f"{kind}-{index}",
                    places=_occurrences(own, other, answer, against),
                )
            )
    return Task(f"little_world_{kind}", tuple(examples[:n_prompts]))


def _occurrences(
    prompt: Prompt, corrupted: Prompt, answer: int, wrong: int
) -> tuple[tuple[str, int], ...]:
    """Where the answer and the wrong one stand, where the corrupted prompt differs, and the end."""
    places = {len(prompt.ids) - 1: "END"}
    for position, (token, other) in enumerate(zip(prompt.ids, corrupted.ids, strict=True)):
        kind = "answer" if token == answer else "wrong" if token == wrong else "changed"
        if position not in places and (kind != "changed" or token != other):
            known = sum(name.startswith(kind) for name in places.values())
            places[position] = f"{kind} {known + 1}" if known else kind
    return tuple((name, position) for position, name in sorted(places.items()))
