"""What is "it"? Pairs of sentences in which one adjective decides: what does the model say, and who tells it?

The preference for the right noun, by partial scoring and by a question, with a paired test against chance.
Then where heads look, and what carries the answer: activations of one sentence patched into the other of its
pair, head by head and place by place. A model at chance has no answer to be carried. Published sets (WSC273,
WinoGrande) can be read from a file or a data set of yours, for the preference by partial scoring only.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command_line.launch import launch, progress
from experiments.steps.common import draw, load, write_tables
from experiments.steps.effects import prompts_of, record_task, swept
from experiments.steps.evidence import say_too_few
from interp.errors import InterpError
from interp.lesson.config import PublishedSet
from interp.lesson.config import ResolvePronounConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.pronoun_sets import Choice
    from interp.inputs.tasks import Task
    from interp.models.model import Model

PATCHES: dict[str, tuple[Any, Any]] = {
    "heads": ("z", "together"),
    "places": ("z", "places"),
    "stream": ("resid_pre", "places"),
}
"""What is patched, by the name of its table: site and positions of interp/interventions/patching.py."""


def run(config: Config, folder: RunFolder) -> None:
    """Prefer; of our own sentences also look and patch; save, say, draw."""
    if config.sentences.kind == "published":
        prefer_published(config, config.sentences, folder)
    else:
        resolve(config, folder)


def resolve(config: Config, folder: RunFolder) -> None:
    """Prefer, look, patch, save, say, draw."""
    from interp.attention.door import check_serves
    from interp.interventions.patching import patch
    from interp.lesson import pronouns
    from interp.lesson.pronouns_figure import pronouns as figure
    from interp.results import summaries, tables

    model = load(config, folder)
    check_serves(model.hf_model)  # what can't be patched is refused before anything is said
    task, control = make_tasks(config, model)
    task = pronouns.with_places(model, task)
    record_task(task, folder)
    patched = replace(task, examples=task.examples[: 2 * config.n_patched])
    say_few_frames(config, len({example.template for example in task.examples}))
    say_too_few(config, folder, prompts_of(patched), model.n_layers * model.n_heads, sides=2)
    preferred = pronouns.preferences(model, task, control=control, bos=config.bos)
    written = {"per_prompt.parquet": preferred, "table.csv": summarise(config, preferred)}
    interval: dict[str, Any] = {"confidence": config.confidence, "seed": config.seed}
    tested = interval | {"correction": config.correction}
    looked = pronouns.looks(model, task, engine=config.engine, **tested)
    written["looks.csv"] = looked
    for name, (site, positions) in PATCHES.items():
        patching = partial(patch, site=site, positions=positions)
        rows, difference = swept(config, folder, model, patched, patching, name)
        folder.record(**{f"largest_difference_from_plain_passes_{name}": difference})
        written[f"{name}_per_prompt.parquet"] = rows
        written[f"{name}.csv"] = summaries.summarise_effects(rows, **tested)
    write_tables(folder, written)
    agreement = pronouns.looks_beside_patches(
        looked, written["heads_per_prompt.parquet"], **interval
    )
    folder.record(looks_beside_patches=agreement)
    say_preferences(config, written["table.csv"])
    say_heads(config, looked, *(written[f"{name}.csv"] for name in ("heads", "places")))
    say_stream(written["stream.csv"])
    say_looks(looked, agreement)
    sys.stdout.flush()
    names = ("table", "looks", *PATCHES)
    saved = (tables.read(folder.path(f"{name}.csv")) for name in names)
    draw(folder, "pronouns", figure(*saved))
    folder.remove("parts")


def prefer_published(config: Config, source: PublishedSet, folder: RunFolder) -> None:
    """Read a set, prefer, save, say, draw."""
    from interp.inputs.prompts import text_hash
    from interp.lesson import partial_scores
    from interp.lesson.pronouns_figure import preferences as figure
    from interp.results import tables

    name, choices, unread = published(source)  # before a model is loaded, which takes longer
    model = load(config, folder)
    chosen, unfit = partial_scores.readable(model, choices, config.bos)
    skipped = unread + unfit
    n_rows = len(chosen) + skipped.total()
    folder.record(
        task={
            "name": name,
            "n_examples": len(chosen),
            "n_templates": len({choice.group for choice in chosen}),
            "dropped": dict(skipped),
            "n_rows": n_rows,
            "sha256": text_hash(repr(choices)),
        }
    )
    why = "".join(f"; {count} × {reason}" for reason, count in skipped.most_common())
    said = f"{name}: {len(chosen)} of {n_rows} sentences scored, {skipped.total()} skipped{why}"
    if not chosen:
        raise InterpError(f"{said}: nothing is left for {model.name}")
    say_few_frames(config, len({choice.group for choice in chosen}))
    with progress(4 * len(chosen), "candidates") as advance:
        readings = partial_scores.partial_preferences(model, chosen, config.bos, progress=advance)
    preferred = partial_scores.preference_rows(model, name, chosen, readings)
    written = {"per_prompt.parquet": preferred, "table.csv": summarise(config, preferred)}
    write_tables(folder, written)
    print(said)
    say_preferences(config, written["table.csv"])
    sys.stdout.flush()
    draw(folder, "preferences", figure(tables.read(folder.path("table.csv"))))


def published(source: PublishedSet) -> tuple[str, list[Choice], Counter[str]]:
    """(name, choices, rows that could not be read and why) of a set."""
    from interp.inputs.prompts import dataset_rows
    from interp.inputs.pronoun_sets import choices_of, file_rows

    if source.path is not None:
        name, rows = Path(source.path).stem, file_rows(source.path)
    else:
        assert source.dataset is not None  # the config has seen to it
        name = Path(source.dataset).name
        rows = dataset_rows(
            source.dataset, source.split, subset=source.subset, revision=source.revision
        )
    return name, *choices_of(rows[: source.n_rows], name)


def make_tasks(config: Config, model: Model) -> tuple[Task, Task | None]:
    """The sentences, and for English ones the same questions without them."""
    from interp.inputs import sentences, tasks

    n, bos, seed = 2 * config.n_frames, config.bos, config.seed
    if config.sentences.kind == "little_world":
        return tasks.little_world(model, kind="pronoun", n_prompts=n, bos=bos, seed=seed), None
    whole, alone = (
        sentences.pronouns(model, n_prompts=n, question_only=only, bos=bos, seed=seed)
        for only in (False, True)
    )
    return whole, alone


def summarise(config: Config, preferred: pd.DataFrame) -> pd.DataFrame:
    """A row a reading, as the config asks."""
    from interp.lesson.pronouns import summarise_preferences

    return summarise_preferences(
        preferred, level=config.level, confidence=config.confidence, seed=config.seed
    )


# --- what is printed -----------------------------------------------------------------------------


def say_few_frames(config: Config, n_frames: int) -> None:
    """Print, before anything is measured, that so few frames can tell nothing from chance; refuse one."""
    from interp.lesson.pronouns import check_frames
    from interp.results.stats import Family, smallest_p

    check_frames(n_frames)
    smallest, needed = smallest_p(n_frames, sides=2), Family(1, 2).prompts_needed(config.level)
    if smallest >= config.level:
        cure = "no number of frames is enough" if needed is None else f"take {needed} or more"
        print(
            f"note: with {n_frames} frames no p is below {smallest:.2g}, so nothing can be told from chance "
            f"(p < {config.level:g}): {cure}",
            flush=True,
        )


def say_preferences(config: Config, summary: pd.DataFrame) -> None:
    """Print each reading's preference and accuracy, and what a reader must know beside."""
    from interp.results import stats, tables

    one = summary.iloc[0]
    print(
        f"preference of the right noun: {one.n_frames} frames, {one.n_prompts} sentences; chance: 0, 0.5"
    )
    said = ["chance", "both_right_low", "both_right_high", "n_frames", "n_prompts"]
    print(tables.as_text(summary.drop(columns=said)))
    enough = stats.smallest_p(int(one.n_frames), sides=2) < config.level
    if enough and (summary[summary.reading == "question"].verdict == "at chance").any():
        print(
            "note: the answers to the question are at chance, so that patches have no answer to bring back"
        )


def say_heads(
    config: Config, looked: pd.DataFrame, heads: pd.DataFrame, places: pd.DataFrame
) -> None:
    """Print the heads of the largest patches, each beside its best place and where it looks."""
    from interp.results import tables

    flips = looked.pivot_table(index=["layer", "head"], columns="query", values="flip")
    shown = heads[["layer", "head", "effect", "ci_low", "ci_high", "q"]].head(config.top)
    shown = shown.join(flips[["END"]].rename(columns={"END": "flip_END"}), on=["layer", "head"])
    where = places.loc[places.effect.abs().groupby([places.layer, places["head"]]).idxmax()]
    where = where.set_index(["layer", "head"])[["place", "effect"]].rename(
        columns={"effect": "at_place"}
    )
    print(
        f"heads whose patch brings most back, of {len(heads)} ({heads.n_templates.iloc[0]} frames); at which "
        "place; END's attention, right − wrong"
    )
    print(tables.as_text(shown.join(where, on=["layer", "head"])))


def say_stream(stream: pd.DataFrame) -> None:
    """Print what a patch of the residual stream brings back at its best layer, place by place."""
    best = stream.sort_values("effect", ascending=False).drop_duplicates("place")
    carried = "; ".join(
        f"{one.place} {one.effect:.1f} [{one.ci_low:.1f}, {one.ci_high:.1f}] before layer {one.layer}"
        for one in best[best.effect > 0.05].itertuples()
    )
    print(
        f"residual stream, what a patch of a place brings back at its best: {carried or 'nothing'}"
    )


def say_looks(looked: pd.DataFrame, agreement: tuple[float, float, float]) -> None:
    """Print what "it" looks at, and whether looking and carrying go together."""
    it = looked[looked["query"] == "it"].assign(nouns=lambda rows: rows.right + rows.wrong)
    most = it.sort_values("nouns", ascending=False).iloc[0]
    print(
        f"from 'it' {most.layer}.{most['head']} looks most at the nouns: {most.nouns:.2f}; its "
        f"largest flip in any head is {it.flip.abs().max():.1g}: the adjective comes later"
    )
    print(
        "size of flip at END and of patch, rank correlation over heads: "
        f"{agreement[0]:.2f} [{agreement[1]:.2f}, {agreement[2]:.2f}]"
    )


if __name__ == "__main__":
    sys.exit(launch("resolve_pronoun"))
