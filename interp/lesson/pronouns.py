"""What is "it"? The model's preference, where heads look for it, and what they have to say about it.

    partial          log P of what follows "it", a noun in its place (:mod:`interp.lesson.partial_scores`)
    question         logit of a noun after "What was too small? The"
    … alone          the control, without the sentence: what noun and adjective say by themselves
    preference       of the right noun − of the wrong one; above 0: right

Every frame is read with both adjectives, and so each noun is right once: what a model thinks of the nouns
themselves cancels in the frame's mean, which is 0 by chance. Frames, not sentences, are independent.

    flip             attention from a query to the right noun − to the wrong one, mean over both sentences

"it" stands before the adjective, and a causal model can't know there what comes: its flip is 0 in any
head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention.kernels import Engine
from interp.attention.pattern import Pattern
from interp.editing.metrics import METRICS
from interp.errors import InterpError
from interp.inputs.pronoun_sets import Choice
from interp.inputs.sentences import word
from interp.inputs.tasks import Example, Task
from interp.lesson.partial_scores import partial_preferences, preference_rows
from interp.lesson.tables import LOOKS, PREFERENCES
from interp.models.forward import batches, capture, logits_at
from interp.models.model import Model
from interp.models.tokens import Bos
from interp.results import stats

QUERIES = ("it", "adjective", "END")


def with_places(model: Model, task: Task) -> Task:
    """The same task with the places that all its sentences have: nouns, it, adjective, END.

    Raises:
        InterpError: an example that is not one of a pair whose members differ in an adjective after "it".
    """
    it = word(model, "it")
    by_template: dict[str, list[str]] = {}
    examples = []
    for example in task.examples:
        prompt, other = example.prompt, example.corrupted
        by_template.setdefault(example.template, []).append(prompt.name)
        where = f"task {task.name}, example {prompt.name}"
        if other is None or it is None or it not in prompt.ids or example.answer == example.wrong:
            raise InterpError(f"{where}: expected a pair of sentences with 'it' and two nouns")
        changed = [i for i, (a, b) in enumerate(zip(prompt.ids, other.ids, strict=True)) if a != b]
        assert example.answer is not None and example.wrong is not None  # or its task has none
        right, wrong = (prompt.ids.index(token) for token in (example.answer, example.wrong))
        place = prompt.ids.index(it)
        if not changed or not max(right, wrong) < place < changed[0]:
            raise InterpError(f"{where}: expected nouns, 'it', and then the adjective that decides")
        names = {min(right, wrong): "first noun", max(right, wrong): "second noun", place: "it"}
        names |= {changed[0]: "adjective", len(prompt.ids) - 1: "END"}
        places = tuple((name, position) for position, name in sorted(names.items()))
        examples.append(replace(example, places=places))
    alone = [names[0] for names in by_template.values() if len(names) != 2]
    if alone:
        raise InterpError(
            f"task {task.name}: example {alone[0]} has no partner: expected both sentences of each frame "
            "(an even number of prompts)"
        )
    return Task(task.name, tuple(examples), task.dropped)


# --- preferences ---------------------------------------------------------------------------------


def gaps(model: Model, task: Task) -> list[Choice]:
    """The sentences without their questions, as texts with a gap where "it" stands, for both nouns.

    Raises:
        InterpError: a sentence without " it was ".
    """
    assert model.tokenizer is not None  # or there were no such task
    found = []
    for example in task.examples:
        told = (example.prompt.text or "").partition(".")[0] + "."
        before, pronoun, after = told.partition(" it was ")
        if not pronoun:
            raise InterpError(f"{example.prompt.text!r}: expected a sentence with ' it was '")
        assert (
            example.answer is not None and example.wrong is not None
        )  # with_places has seen to it
        right, wrong = (
            f"the{model.tokenizer.decode([token])}" for token in (example.answer, example.wrong)
        )
        name, group = example.prompt.name, example.template
        found.append(Choice(name, group, f"{before} ", f" was {after}", right, wrong))
    return found


def question_scores(model: Model, examples: Sequence[Example]) -> Float[np.ndarray, " example"]:
    """Logit of the right noun − of the wrong one, at the end of each prompt."""
    metric = METRICS["logit_difference"]
    found = np.full(len(examples), np.nan)
    place = {example.prompt.name: i for i, example in enumerate(examples)}
    for batch in batches([example.prompt for example in examples]):
        ids = torch.tensor([prompt.ids for prompt in batch], device=model.device)
        logits = logits_at(model, ids, torch.full_like(ids[:, :1], ids.shape[1] - 1))
        at = [place[prompt.name] for prompt in batch]
        values = metric.measure(logits, logits, [examples[i] for i in at])
        found[at] = values.double().cpu().numpy()
    return found


def preferences(
    model: Model, task: Task, *, control: Task | None = None, bos: Bos = "tokenizer"
) -> pd.DataFrame:
    """Each sentence's preference by each reading, as ``tables.PREFERENCES_PER_PROMPT`` describes.

    Args:
        control: the same task without its sentences: what nouns and adjectives say by themselves.
    """
    choices = gaps(model, task)
    readings = partial_preferences(model, choices, bos)
    readings["question"] = question_scores(model, task.examples)
    if control is not None:
        readings["question alone"] = question_scores(model, control.examples)
    return preference_rows(model, task.name, choices, readings)


def check_frames(n: int) -> None:
    """Refuse fewer than two frames."""
    if n < 2:
        raise InterpError(f"{n} frame of sentences: expected two or more, to be compared")


def summarise_preferences(
    rows: pd.DataFrame, *, level: float = 0.05, confidence: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Mean preference and share right by reading, with intervals and a paired test over frames.

    Means are over sentences, also where frames have several or one; ``both_right`` is over frames with two
    or more. ``verdict`` says "at chance" unless the mean preference differs from 0 at ``level``.

    Raises:
        InterpError: fewer than two frames.
    """
    found = []
    for reading, part in rows.groupby("reading", sort=False):
        right = part.assign(right=np.where(part.preference == 0, 0.5, part.preference > 0))
        by_frame = right.groupby("template", sort=False)
        n = by_frame.size().to_numpy(float)
        check_frames(len(n))
        pairs = n > 1
        sums = {
            "preference": (by_frame.preference.sum(), n),
            "accuracy": (by_frame.right.sum(), n),
            "both_right": ((by_frame.preference.min() > 0) & pairs, pairs.astype(float)),
        }
        above, below = (
            np.stack([np.asarray(one[i], dtype=float) for one in sums.values()], axis=1)
            for i in range(2)
        )
        means, low, high = stats.ratio_interval(above, below, confidence=confidence, seed=seed)
        one: dict[str, object] = {"reading": str(reading)}
        for i, name in enumerate(sums):
            one |= {name: means[i], f"{name}_low": low[i], f"{name}_high": high[i]}
        p = float(stats.two_sided_p(above[:, :1], seed=seed)[0])
        better = "better" if means[0] > 0 else "worse"
        verdict = f"{better} than chance" if p < level else "at chance"
        found.append(one | {"p": p, "verdict": verdict, "n_frames": len(n), "n_prompts": len(part)})
    table = pd.DataFrame(found).assign(model=rows.model.iloc[0], task=rows.task.iloc[0], chance=0.5)
    return PREFERENCES.validate(table[list(PREFERENCES.columns)])


# --- where heads look ----------------------------------------------------------------------------


def noun_masses(
    model: Model, task: Task, *, engine: Engine = "auto"
) -> Float[np.ndarray, "example layer head query noun"]:
    """Weights from it, adjective and END to the right noun and to the wrong one."""
    shape = (len(task.examples), model.n_layers, model.n_heads, len(QUERIES), 2)
    found = np.full(shape, np.nan)
    place = {example.prompt.name: i for i, example in enumerate(task.examples)}
    for batch in batches([example.prompt for example in task.examples]):
        at = [place[prompt.name] for prompt in batch]
        triples = []
        for b, i in enumerate(at):
            example = task.examples[i]
            places = dict(example.places)
            for query in QUERIES:
                for token in (example.answer, example.wrong):
                    assert token is not None  # with_places has seen to that
                    triples.append((b, places[query], example.prompt.ids.index(token)))
        asked = torch.tensor(triples, device=model.device).T

        def look(
            layer: int, pattern: Pattern, z: Tensor, at: list[int] = at, asked: Tensor = asked
        ) -> None:
            weights = pattern.pairs(*asked).double().cpu().numpy()  # (head, triple)
            found[at, layer] = weights.reshape(-1, len(at), len(QUERIES), 2).swapaxes(0, 1)

        capture(model, batch, look, engine=engine)
    return found


def looks(
    model: Model,
    task: Task,
    *,
    engine: Engine = "auto",
    confidence: float = 0.95,
    correction: stats.Correction = "bh",
    seed: int = 0,
) -> pd.DataFrame:
    """Each head's mass on the nouns and its flip, by query, as ``tables.LOOKS`` describes.

    Args:
        correction: how q holds false discoveries over all heads and queries.
    """
    masses = noun_masses(model, task, engine=engine)
    templates = [example.template for example in task.examples]
    order = list(dict.fromkeys(templates))
    members = [[i for i, one in enumerate(templates) if one == template] for template in order]
    by_frame = np.stack([masses[part].mean(0) for part in members])
    layer, head, query = np.indices(by_frame.shape[1:4]).reshape(3, -1)
    right, wrong = (by_frame[..., i].reshape(len(order), -1) for i in range(2))
    table = pd.DataFrame({"model": model.name, "task": task.name, "layer": layer, "head": head})
    table["query"] = np.array(QUERIES)[query]
    table["right"], table["wrong"] = right.mean(0), wrong.mean(0)
    table["flip"] = (right - wrong).mean(0)
    table["ci_low"], table["ci_high"] = stats.bootstrap_interval(
        right - wrong, confidence=confidence, seed=seed
    )
    # "it" can't know: its flip is 0 but for rounding, and there is nothing to test.
    p = stats.two_sided_p(right - wrong, seed=seed)
    table["p"] = np.where(table["query"] == "it", np.nan, p)
    table["q"] = stats.false_discovery_q(table.p.to_numpy(), correction)
    table["n_frames"], table["n_prompts"] = len(order), len(templates)
    table = table.dropna(subset="flip")  # hybrids have layers without attention
    return LOOKS.validate(table[list(LOOKS.columns)].reset_index(drop=True))


def looks_beside_patches(
    looked: pd.DataFrame,
    rows: pd.DataFrame,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float, float]:
    """(rank correlation, low, high) over heads: size of the flip at END, and of what a patch brings back.

    Args:
        looked: the table of :func:`looks`; its means are taken as they are.
        rows: a row a head and prompt, of :func:`interp.interventions.patching.patch`; the interval is over
        its frames.
    """
    end = looked[looked["query"] == "END"].set_index(["layer", "head"]).flip
    effects = rows.groupby(["layer", "head", "template"]).effect.mean().unstack("template")
    flips = np.tile(end.reindex(effects.index).to_numpy(), (effects.shape[1], 1))
    return stats.spearman_interval(
        flips, effects.to_numpy().T, absolute=(True, True), confidence=confidence, seed=seed
    )
