"""What is "it"? Pairs of sentences in which one adjective decides: what does the model say, and who tells it?

The preference for the right noun, by partial scoring and by a question, with a paired test against chance.
Then where heads look, and what carries the answer: activations of one sentence patched into the other of its
pair, head by head and place by place. A model at chance has no answer to be carried.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.effects import record_task, swept
from experiments.launch import launch
from experiments.scoring import draw, load, write_tables
from interp.lesson.config import ResolvePronounConfig as Config
from interp.runs.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from interp.inputs.tasks import Task
    from interp.models.model import Model

RESUMES = True
PATCHES: dict[str, tuple[Any, Any]] = {
    "heads": ("z", "together"),
    "places": ("z", "places"),
    "stream": ("resid_pre", "places"),
}
"""What is patched, by the name of its table: site and positions of interp/interventions/patching.py."""


def run(config: Config, folder: RunFolder) -> None:
    """Prefer, look, patch, save, say, draw."""
    from interp.interventions.patching import patch
    from interp.lesson import pronouns
    from interp.lesson.pronouns_figure import pronouns as figure
    from interp.results import summaries, tables

    model = load(config, folder)
    task, control = make_tasks(config, model)
    task = pronouns.with_places(model, task)
    record_task(task, folder)
    preferred = pronouns.preferences(model, task, control=control, bos=config.bos)
    summary = pronouns.summarise_preferences(
        preferred, level=config.level, confidence=config.confidence, seed=config.seed
    )
    looked = pronouns.looks(
        model, task, engine=config.engine, confidence=config.confidence, seed=config.seed
    )
    written = {"per_prompt.parquet": preferred, "table.csv": summary, "looks.csv": looked}
    patched = replace(task, examples=task.examples[: 2 * config.n_patched])
    for name, (site, positions) in PATCHES.items():
        patching = partial(patch, site=site, positions=positions)
        rows, difference = swept(config, folder, model, patched, patching, name)
        folder.record(**{f"largest_difference_from_plain_passes_{name}": difference})
        written[f"{name}_per_prompt.parquet"] = rows
        written[f"{name}.csv"] = summaries.summarise_effects(
            rows, confidence=config.confidence, seed=config.seed
        )
    write_tables(folder, written)
    agreement = pronouns.looks_beside_patches(
        looked,
        written["heads_per_prompt.parquet"],
        confidence=config.confidence,
        seed=config.seed,
    )
    folder.record(looks_beside_patches=agreement)
    patches = [written[f"{name}.csv"] for name in PATCHES]
    say(config, summary, looked, agreement, *patches)
    sys.stdout.flush()
    names = ("table", "looks", *PATCHES)
    saved = (tables.read(folder.path(f"{name}.csv")) for name in names)
    draw(folder, "pronouns", figure(*saved))
    folder.remove("parts")


def make_tasks(config: Config, model: Model) -> tuple[Task, Task | None]:
    """The sentences, and for English ones the same questions without them."""
    from interp.inputs import sentences, tasks

    n, bos, seed = 2 * config.n_frames, config.bos, config.seed
    if config.sentences == "little_world":
        return tasks.little_world(model, kind="pronoun", n_prompts=n, bos=bos, seed=seed), None
    whole, alone = (
        sentences.pronouns(model, n_prompts=n, question_only=only, bos=bos, seed=seed)
        for only in (False, True)
    )
    return whole, alone


def say(
    config: Config,
    summary: pd.DataFrame,
    looked: pd.DataFrame,
    agreement: tuple[float, float, float],
    heads: pd.DataFrame,
    places: pd.DataFrame,
    stream: pd.DataFrame,
) -> None:
    """Print the preferences, the heads of the largest patches beside where they look, and the places."""
    from interp.results import tables

    one = summary.iloc[0]
    print(
        f"preference of the right noun: {one.n_frames} frames, {one.n_prompts} sentences; chance: 0, 0.5"
    )
    said = ["chance", "both_right_low", "both_right_high", "n_frames", "n_prompts"]
    print(tables.as_text(summary.drop(columns=said)))
    question = summary[summary.reading == "question"].iloc[0]
    if question.verdict == "at chance":
        print(
            "note: the answers to the question are at chance, so that patches have no answer to bring back"
        )
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
    best = stream.sort_values("effect", ascending=False).drop_duplicates("place")
    carried = "; ".join(
        f"{one.place} {one.effect:.1f} [{one.ci_low:.1f}, {one.ci_high:.1f}] before layer {one.layer}"
        for one in best[best.effect > 0.05].itertuples()
    )
    print(
        f"residual stream, what a patch of a place brings back at its best: {carried or 'nothing'}"
    )
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
