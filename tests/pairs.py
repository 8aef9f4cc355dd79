"""Clean and corrupted prompts of random tokens, and what one plain pass over one of them gives.

`value` is the witness of the tests of patching: one prompt, one pass, nothing kept or batched.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from interp.editing.edits import Edit, Recording, edited
from interp.editing.metrics import METRICS, positions
from interp.editing.sites import Site
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task
from interp.models.forward import logits_at
from interp.models.model import Model, load_model
from tests.families import tiny_model

# (length, place where the prompts differ): two of one length, one that is shorter.
SHAPES = ((8, 1), (8, 3), (6, 2))


def tiny(family: str, **changes: Any) -> Model:
    """A random model of this family."""
    return load_model((tiny_model(family, **changes), None))


def pairs(shapes: Sequence[tuple[int, int]] = SHAPES, seed: int = 0) -> Task:
    """Examples whose prompts differ at one place, "A", and at the last token but two."""
    generator = np.random.default_rng(seed)
    examples = []
    for i, (length, place) in enumerate(shapes):
        ids = generator.integers(3, 60, length)
        other = ids.copy()
        other[[place, length - 3]] = (ids[[place, length - 3]] + 20) % 57 + 3
        clean, corrupted = (
            Prompt(tuple(int(token) for token in tokens), f"{name}{i}")
            for name, tokens in (("p", ids), ("c", other))
        )
        examples.append(
            Example(
                clean,
                5 + i,
                20 + i,
                corrupted=corrupted,
                template=f"t{i}",
                places=(("A", place), ("END", length - 1)),
            )
        )
    return Task("pairs", tuple(examples))


def recorded_alone(model: Model, prompt: Prompt, *kinds: str) -> Recording:
    """Activations of these kinds, in all layers, of one prompt by itself."""
    recording = Recording(Site(kind, layer) for kind in kinds for layer in range(model.n_layers))
    with edited(model, recording=recording):
        logits_at(model, torch.tensor([prompt.ids]), torch.tensor([[len(prompt.ids) - 1]]))
    return recording


def value(
    model: Model,
    example: Example,
    edits: Sequence[Edit] = (),
    *,
    run: Prompt | None = None,
    metric: str | None = None,
) -> float:
    """The metric after these edits on one prompt: the clean one, if none is given."""
    where = torch.tensor([positions(example)])
    with edited(model, edits):
        logits = logits_at(model, torch.tensor([(run or example.prompt).ids]), where)
    reference = logits
    if metric in ("kl", "flips"):
        with edited(model):
            reference = logits_at(model, torch.tensor([example.prompt.ids]), where)
    measured = METRICS[metric or "logit_difference"].measure(logits, reference, [example])
    return float(measured[0])
