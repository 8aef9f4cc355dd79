"""What the experiments share: a model, prompts, tables and figures in the run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from interp.config.common import AnyRun, Given, Prompts, RepeatedRandom, RunConfig, Text
    from interp.inputs.prompts import Prompt
    from interp.models.model import Model
    from interp.runs.parts import Parts
    from interp.runs.run_folder import RunFolder


class HasPrompts(Protocol):
    """A config that says where prompts come from."""

    @property
    def prompts(self) -> Prompts: ...  # noqa: D102
    @property
    def bos(self) -> Literal["on", "off", "tokenizer"]: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102


def set_threads(config: AnyRun, folder: RunFolder) -> None:
    """Set the CPU threads of torch, and record them."""
    import torch

    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder.record(threads=torch.get_num_threads())


def load(config: RunConfig, folder: RunFolder) -> Model:
    """Load the model, doubt it, and record both."""
    from interp.inputs import prompts as make
    from interp.models.checks import check_model
    from interp.models.model import load_model

    path = getattr(getattr(config, "prompts", None), "path", None)
    if path is not None:
        make.read_text(path)  # refused before a model is loaded, which may take minutes
    set_threads(config, folder)
    model = load_model(
        config.model,
        device=config.device,
        dtype=config.dtype,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
    )
    folder.log.info("loaded %r", model)
    checks = check_model(model)
    folder.record(model=model.describe(), checks=checks)
    return model


def make_prompts(
    config: HasPrompts, model: Model, folder: RunFolder, *, templates: bool = False
) -> list[Prompt]:
    """Prompts as the config asks for them; what they are goes into the manifest.

    Args:
        templates: whether prompts may share templates: the caller takes these together.

    Raises:
        InterpError: they do, and may not; or what the makers of prompts refuse.
    """
    from interp.errors import InterpError
    from interp.inputs.prompts import describe_prompts

    if not templates and getattr(config.prompts, "templates", None) is not None:
        raise InterpError(
            f"prompts.templates: {folder.name} takes each prompt by itself; leave them out"
        )
    found, source = prompts_for(config, model)
    folder.record(prompts=source | {"bos": config.bos} | describe_prompts(found))
    folder.log.info("%d prompts", len(found))
    return found


def prompts_for(config: HasPrompts, model: Model) -> tuple[list[Prompt], dict[str, object]]:
    """(prompts as the config asks for them, what the manifest says of the text that they are from)."""
    from interp.inputs import prompts as make

    source: RepeatedRandom | Text | Given = config.prompts
    record: dict[str, object] = {}
    if source.kind == "repeated_random":
        found = make.repeated_random_prompts(
            model,
            n_prompts=source.n_prompts,
            periods=source.periods,
            repeats=source.repeats,
            bos=config.bos,
            seed=config.seed,
        )
    elif source.kind == "given":
        found = make.given_prompts(
            model,
            source.texts,
            bos=config.bos,
            truncate=source.truncate,
            templates=source.templates,
        )
    else:
        name, text = make.source_text(source)
        record = {"source": name, "source_sha256": make.text_hash(text)}
        found = make.text_prompts(
            model,
            text,
            n_prompts=source.n_prompts,
            length=source.length,
            name=Path(name).stem if source.source == "file" else name,
            bos=config.bos,
            seed=config.seed,
        )
    return found, record


@contextmanager
def keeping(
    config: RunConfig, folder: RunFolder, model: Model, part: str, *of: str
) -> Iterator[Parts]:
    """What is finished is kept, and found again by the same command.

    Args:
        part: subfolder, where a run has several measurements.
        of: texts that differ where what is measured does, besides model and config.
    """
    from interp.runs.parts import Parts

    asked = config.model_dump_json(exclude={"out", "overwrite"})
    kept = Parts(folder.path("parts") / part, [part, model.weight_hash, asked, *of])
    yield kept
    if kept.n_loaded:
        folder.log.info("%d finished parts were taken over", kept.n_loaded)


def write_tables(folder: RunFolder, written: Mapping[str, pd.DataFrame]) -> None:
    """Write tables by their file names; each must keep its contract."""
    from interp.results import tables

    for name, table in written.items():
        folder.write(name, partial(tables.write, table))


def draw(folder: RunFolder, name: str, figure: Figure) -> None:
    """Write a figure, as PNG and PDF."""
    from interp.results import figures

    for ending in ("png", "pdf"):
        folder.write(f"{name}.{ending}", lambda path: figures.save_figure(figure, path))
