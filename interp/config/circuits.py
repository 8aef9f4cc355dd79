"""Keys of `check_circuit`: which sets of heads, and how the others are ablated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    model_validator,
)

from interp.circuits.head_sets import SHARES, Head, check_classes, classes_in, heads_in
from interp.config.common import Listed, NonEmpty, Strict, text_for
from interp.config.effects import AnyTask, LittleWorld, TaskConfig
from interp.errors import InterpError

Heads = Annotated[NonEmpty, text_for(classes_in)]


class _Circuit(Strict):
    """Classes of heads, a key each."""

    @property
    def classes(self) -> dict[str, tuple[Head, ...]]:
        """Class → heads, in the order of the keys."""
        names = [name for name in type(self).model_fields if name != "kind"]
        return {name.replace("_", " "): heads_in(getattr(self, name)) for name in names}

    @model_validator(mode="after")
    def _each_head_once(self) -> _Circuit:
        try:
            check_classes(self.classes)
        except InterpError as error:
            raise ValueError(str(error)) from error
        return self


class NoCircuit(_Circuit):
    """No named circuit: the growing sets of the ranking only."""

    kind: Literal["none"] = "none"


class GivenCircuit(_Circuit):
    """A circuit as you write it."""

    kind: Literal["given"] = "given"
    heads: Heads = Field(
        description="Heads as layer.head, two whole numbers (9.10 is not 9.1); classes by name, with ; "
        "between.",
        examples=["[9.9,9.10]", "'movers: 9.9 10.0; inhibition: 7.3 7.9'"],
    )

    @property
    def classes(self) -> dict[str, tuple[Head, ...]]:
        """Class → heads, as written."""
        return classes_in(self.heads)


class DefaultIndirectObjects(_Circuit):
    """Six heads of the default model that find the indirect object in stories of the little world."""

    kind: Literal["default_indirect_objects"] = "default_indirect_objects"
    movers: Heads = Field(
        default="2.3 2.5", description="At the end they look at the giver, or just behind."
    )
    giver: Heads = Field(default="0.0", description="At the end it looks at the giver.")
    previous_token: Heads = Field(default="0.5", description="Looks one token back.")
    current_token: Heads = Field(
        default="0.4 0.7", description="Where the giver is they look at that token itself."
    )


class Gpt2IndirectObjects(_Circuit):
    """The 26 heads that Wang et al. (2211.00593) found for indirect objects in GPT-2 small."""

    kind: Literal["gpt2_indirect_objects"] = "gpt2_indirect_objects"
    name_movers: Heads = Field(
        default="9.9 10.0 9.6", description="Copy the receiver's name; active at END."
    )
    negative_name_movers: Heads = Field(
        default="10.7 11.10", description="Write against the name they look at; at END."
    )
    s_inhibition: Heads = Field(
        default="7.3 7.9 8.6 8.10", description="Turn name movers from the giver; at END."
    )
    induction: Heads = Field(
        default="5.5 6.9 5.8 5.9", description="Tell that the giver was named before; at S2."
    )
    duplicate_token: Heads = Field(
        default="0.1 3.0 0.10", description="Tell that the giver was named before; at S2."
    )
    previous_token: Heads = Field(
        default="2.2 4.11", description="Copy the giver one token on; at S1+1."
    )
    backup_name_movers: Heads = Field(
        default="9.0 9.7 10.1 10.2 10.6 10.10 11.2 11.9",
        description="Take over where name movers are taken away; at END.",
    )


AnyCircuit = Annotated[
    NoCircuit | GivenCircuit | DefaultIndirectObjects | Gpt2IndirectObjects,
    Field(discriminator="kind"),
]


class CheckCircuitConfig(TaskConfig):
    """Only a set of heads kept, all others ablated."""

    task: AnyTask = Field(
        default=LittleWorld(),
        description="What the model is to do; half of the templates choose heads if `ranking` is made "
        "here.",
        examples=["indirect_objects", "greater_than", "pronouns", "copying"],
    )
    circuit: AnyCircuit = Field(
        default=NoCircuit(),
        description="A circuit by name, checked as a whole and class by class.",
        examples=["default_indirect_objects", "given"],
    )
    ablation: Literal["mean", "resample", "zero"] = Field(
        default="mean",
        description="What z of the other heads becomes: its mean over corrupted prompts by position, that "
        "of the example's own corrupted prompt, or 0.",
    )
    mean_within: Literal["length", "template"] = Field(
        default="length",
        description="With ablation=mean, which corrupted prompts it is over: all of the prompt's length, or "
        "of its template.",
    )
    ranking: NonEmpty = Field(
        default="patching",
        description="Which heads are kept first: patching, or its estimate attribution (by the size of the "
        "noising effect on half of the templates; the other half tests), or the table.csv of a run (all "
        "prompts test: make it on others).",
        examples=["attribution", "runs/heads/table.csv"],
    )
    shares: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Listed] = Field(
        default=SHARES,
        min_length=1,
        description="Sizes of the growing sets, as shares of all heads; at least one head, and all heads "
        "at the end.",
        examples=["[0.05,0.1,0.25,0.5]"],
    )
    n_random: int = Field(
        default=20,
        ge=20,
        description="Random sets beside each set, as many heads in every layer; p is at least 1 / (1 + "
        "n_random).",
    )

    @model_validator(mode="after")
    def _means_only(self) -> CheckCircuitConfig:
        if self.mean_within != "length" and self.ablation != "mean":
            raise ValueError(
                f"mean_within is read with ablation=mean only, and ablation is {self.ablation}"
            )
        if self.ranking == "attribution" and self.metric in ("kl", "flips"):
            raise ValueError(
                f"metric={self.metric} has no gradient at the clean prompt, which ranking=attribution takes; "
                "expected another metric, or ranking=patching"
            )
        return self
