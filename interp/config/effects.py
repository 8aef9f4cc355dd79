"""Keys of the experiments that intervene: tasks, metrics, what is edited."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveInt,
    field_validator,
    model_validator,
)

from interp.config.common import (
    BatchTokens,
    Correction,
    Heads,
    Listed,
    NonEmpty,
    Prompts,
    RunConfig,
    Strict,
    Text,
    level_over,
    prompts_from,
)
from interp.scoring.roles import ROLES, Role
from interp.sinks.prompt_length import least_for_effects, least_for_masses


class Copying(Strict):
    """Random tokens, twice: the loss on the repeat."""

    kind: Literal["copying"] = "copying"
    n_prompts: int = Field(default=16, ge=1, le=100_000, description="Number of prompts.")
    period: int = Field(default=30, ge=2, description="Tokens in one copy.")


class IndirectObjects(Strict):
    """When A and B went to the store, B gave a drink to … A, and not B (2211.00593)."""

    kind: Literal["indirect_objects"] = "indirect_objects"
    n_prompts: int = Field(default=32, ge=1, le=100_000, description="Number of prompts.")
    corruption: Literal["abc", "symmetric"] = Field(
        default="abc",
        description="The corrupted prompt: abc has three other names, symmetric exchanges giver "
        "and receiver.",
    )


class GreaterThan(Strict):
    """The war went on from the year 1745 to the year 17 … a later year, not an earlier one (2305.00586)."""

    kind: Literal["greater_than"] = "greater_than"
    n_prompts: int = Field(default=32, ge=1, le=100_000, description="Number of prompts.")


class Pronouns(Strict):
    """It was too small: what was? Pairs of sentences in which one adjective decides."""

    kind: Literal["pronouns"] = "pronouns"
    n_prompts: int = Field(
        default=32, ge=1, le=100_000, description="Number of prompts; two of each pair."
    )
    question_only: bool = Field(
        default=False,
        description='The control: the question without the sentence, which says nothing of "it".',
    )


class LittleWorld(Strict):
    """Held-out stories of the world that the default model was trained on."""

    kind: Literal["little_world"] = "little_world"
    n_prompts: int = Field(default=32, ge=1, le=100_000, description="Number of prompts.")
    story: Literal["indirect_object", "pronoun", "recurring_name", "possession"] = Field(
        default="indirect_object", description="What kind of story."
    )


AnyMetric = Literal[
    "logit_difference", "log_probability", "probability_difference", "loss", "kl", "flips"
]
# Those with a gradient; that of kl is 0 where nothing has been changed yet.
GradedMetric = Literal[
    "logit_difference", "log_probability", "probability_difference", "loss", "kl"
]
SlopedMetric = Literal["logit_difference", "log_probability", "probability_difference", "loss"]
AnyTask = Annotated[
    Copying | IndirectObjects | GreaterThan | Pronouns | LittleWorld, Field(discriminator="kind")
]


def task_of(default: AnyTask) -> Any:
    """The key `task`: a kind by default, the others as examples."""
    kinds = ["indirect_objects", "greater_than", "pronouns", "copying", "little_world"]
    others = [kind for kind in kinds if kind != default.kind]
    return Field(default=default, description="What the model is to do.", examples=others)


# What a task has something for: see interp/editing/metrics.py.
OF_ONE_ANSWER = ("logit_difference", "log_probability", "kl", "flips")
METRICS_OF: dict[str, tuple[str, ...]] = {
    "copying": ("loss", "kl", "flips"),
    "indirect_objects": OF_ONE_ANSWER,
    "greater_than": ("probability_difference", "kl", "flips"),
    "pronouns": OF_ONE_ANSWER,
    "little_world": OF_ONE_ANSWER,
}


class TaskConfig(RunConfig):
    """What the experiments share that change something in the model and measure what comes of it."""

    task: AnyTask = task_of(Copying())
    metric: AnyMetric | None = Field(
        default=None,
        description="What is measured; null: the loss for copying, the probability difference for "
        "greater_than, else the logit difference. kl and flips are for any task, log_probability where "
        "the logit difference is.",
    )
    confidence: float = level_over("templates")
    top: PositiveInt = Field(default=10, description="Rows printed; the files hold all heads.")
    batch_tokens: BatchTokens = 4096

    @model_validator(mode="after")
    def _metric_of_the_task(self) -> TaskConfig:
        known = METRICS_OF[self.task.kind]
        if self.metric is not None and self.metric not in known:
            raise ValueError(
                f"metric={self.metric} is not for task={self.task.kind}: expected one of {', '.join(known)}"
            )
        return self


class EffectConfig(TaskConfig):
    """The same for those that test many effects at once."""

    correction: Correction = "bh"


class AblateHeadsConfig(EffectConfig):
    """Each head's z taken away in turn."""

    ablation: Literal["zero", "mean", "resample"] = Field(
        default="zero",
        description="What z becomes: 0, its mean over donor prompts, or that of one donor prompt.",
    )
    mean_over: Literal["position", "token", "all"] = Field(
        default="position",
        description="With ablation=mean, what the mean is over: the donors' same position, their positions "
        "with the same token (where none has it, all; counted), or all their positions.",
    )
    hold_patterns: bool = Field(
        default=False,
        description="Keep the attention patterns of later layers as they were: the effect then goes "
        "through values only. Writes patterns out: layers × heads × length² numbers a prompt, 2 GB at most.",
    )
    together: Heads | None = Field(
        default=None,
        description="Heads that are also ablated together, as layer.head (18.10 is not 18.1), beside random "
        "sets of their layers; null: none.",
        examples=["[18.6,17.3,18.7]", "'1.0 1.3'"],
    )
    n_random: int = Field(
        default=40,
        ge=0,
        description="Random sets beside `together`: as many other heads of the same layers.",
    )

    @model_validator(mode="after")
    def _mean_only(self) -> AblateHeadsConfig:
        if self.mean_over != "position" and self.ablation != "mean":
            raise ValueError(
                f"mean_over is read with ablation=mean only, and ablation is {self.ablation}"
            )
        return self

    @model_validator(mode="after")
    def _beside_a_set(self) -> AblateHeadsConfig:
        if self.together is None and self.n_random != type(self).model_fields["n_random"].default:
            raise ValueError("n_random is read with together only, and together is null")
        return self


class PatchHeadsConfig(EffectConfig):
    """Activations of one prompt put into the run of another."""

    task: AnyTask = task_of(LittleWorld())
    direction: Literal["denoise", "noise"] = Field(
        default="denoise",
        description="denoise: clean into the corrupted run (what is enough?); noise: corrupted into "
        "the clean run (what is needed?).",
    )
    site: Literal[
        "q", "k", "v", "z", "resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"
    ] = Field(default="z", description="Kind of activation: see interp/editing/sites.py.")
    positions: Literal["together", "places", "all"] = Field(
        default="together",
        description="together: all positions in one patch; places: one named place of the task at a "
        "time; all: one position at a time, for prompts of one length.",
    )

    @model_validator(mode="after")
    def _places_there_are(self) -> PatchHeadsConfig:
        if self.positions == "places" and self.task.kind == "copying":
            raise ValueError(
                "positions=places: task=copying names no places; take positions=all, or another task"
            )
        return self


class AttributeHeadsConfig(PatchHeadsConfig):
    """Patches estimated from gradients, some of them audited."""

    metric: GradedMetric | None = Field(
        default=None,
        description="What is measured; null: the loss for copying, the probability difference for "
        "greater_than, else the logit difference. kl is for any task, and with direction=noise takes steps.",
    )
    steps: PositiveInt | None = Field(
        default=None,
        description="Points of integrated gradients on the way between the two prompts; null: the gradient "
        "at the prompt that is run.",
        examples=["10"],
    )
    correct_qk: bool = Field(
        default=False,
        description="For site=q or k: what a patch changes of the attention weights, computed exactly.",
    )
    audit: int = Field(
        default=10, ge=0, description="Largest estimates that are patched exactly; 0: no audit."
    )
    n_random: int = Field(
        default=20, ge=3, description="Others that are, drawn at random: they stand for all."
    )

    @model_validator(mode="after")
    def _each_where_it_is_read(self) -> AttributeHeadsConfig:
        if self.correct_qk and self.site not in ("q", "k"):
            raise ValueError(f"correct_qk is for site=q and site=k, and site is {self.site}")
        if self.metric == "kl" and self.direction == "noise" and self.steps is None:
            raise ValueError(
                "metric=kl: its gradient at the clean prompt, where direction=noise begins, is 0; give "
                "steps, or another metric"
            )
        if self.audit == 0 and self.n_random != type(self).model_fields["n_random"].default:
            raise ValueError("n_random is read with an audit only, and audit is 0")
        return self


class TracePathsConfig(EffectConfig):
    """Paths from each head to receivers."""

    task: AnyTask = task_of(LittleWorld())
    receivers: Annotated[tuple[NonEmpty, ...], Listed] = Field(
        default=("logits",),
        min_length=1,
        description="Where paths end: logits, or q, k or v of a later head, as layer.head; k and v are "
        "those of a key-value head.",
        examples=["[q2.5]", "[k1.3,v1.3]"],
    )
    together: bool = Field(
        default=False, description="Patch all receivers of a sender at once, not one by one."
    )

    @field_validator("receivers")
    @classmethod
    def _each_is_an_input(cls, receivers: tuple[str, ...]) -> tuple[str, ...]:
        for text in receivers:
            if text == "logits" and len(receivers) > 1:
                raise ValueError("logits stands alone: give it without other receivers")
            if text != "logits" and not re.fullmatch(r"[qkv]\d+\.\d+", text):
                raise ValueError(f"{text!r}: expected logits, or such as q2.5, k1.3, v1.0")
            if re.match(r"[qkv]0+\.", text):
                raise ValueError(f"{text!r}: no head comes before layer 0; expected a later layer")
        ends = [(text[0], *map(int, text[1:].split("."))) for text in receivers if text != "logits"]
        if len(set(ends)) < len(ends):
            raise ValueError(f"one of {', '.join(receivers)} is there twice; expected each once")
        return receivers

    @model_validator(mode="after")
    def _several_together(self) -> TracePathsConfig:
        if self.together and len(self.receivers) == 1:
            raise ValueError(
                f"together is for several receivers, and there is one: {self.receivers[0]}"
            )
        return self


class WeightVsInfluenceConfig(EffectConfig):
    """Attention weights beside causal effects."""

    metric: SlopedMetric | None = Field(
        default=None,
        description="What is measured, also by a gradient at the clean prompt; null: the loss for copying, "
        "the probability difference for greater_than, else the logit difference.",
    )
    target: NonEmpty | None = Field(
        default=None,
        description="Where heads should look: answer (earlier occurrences of it), a named place of the "
        "task, or a role; null: induction for copying, else answer.",
        examples=["S2", "previous_token"],
    )
    judged_by: Literal["zero", "mean", "resample"] = Field(
        default="resample", description="The ablation that decides whether a head is used."
    )
    least_mass: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Attention mass below which a head is not said to look at the target, a share.",
    )
    least_share: float = Field(
        default=0.05,
        ge=0,
        description="Effect below which a head is not said to be used, as a share of corrupted − clean.",
    )
    n_top: PositiveInt = Field(
        default=5, description="Heads of most weight held against random heads of their layers."
    )

    @model_validator(mode="after")
    def _target_of_copying(self) -> WeightVsInfluenceConfig:
        """Of the other tasks the places are known when their prompts are made."""
        roles = sorted(name for name, one in ROLES.items() if isinstance(one, Role))
        if self.task.kind == "copying" and self.target not in (None, *roles):
            raise ValueError(
                f"target={self.target} is not for task=copying: expected one of {', '.join(roles)}"
            )
        return self


class SplitEffectsConfig(EffectConfig):
    """Total effects split into direct, norm and later."""

    task: AnyTask = task_of(LittleWorld())
    ablation: Literal["zero", "mean", "resample"] = Field(
        default="resample",
        description="What z becomes: 0, its mean over donor prompts, or that of one donor prompt.",
    )


class KnockOutSinksConfig(RunConfig):
    """The attention sink taken away, in five ways, on plain text."""

    prompts: Prompts = prompts_from(Text())
    knock_outs: Annotated[
        tuple[Literal["mask", "zero_weight", "zero_value", "mean_value", "to_current"], ...], Listed
    ] = Field(
        default=("mask", "zero_weight", "zero_value", "mean_value", "to_current"),
        min_length=1,
        description="How: mask hides the keys and renormalises; zero_weight takes their weight out; "
        "zero_value and mean_value change what is found there; to_current sends the weight to the query's "
        "own position.",
        examples=["[mask]"],
    )
    first_keys: Annotated[tuple[PositiveInt, ...], Listed] = Field(
        default=(1, 2, 4),
        min_length=1,
        description="How many of the first keys are taken away, each number in turn.",
        examples=["[1,4,16]"],
    )
    by_layer: bool = Field(
        default=False, description="Also knock out in each layer alone; takes many more passes."
    )
    n_random: int = Field(
        default=2,
        ge=0,
        description="The control: as many keys drawn at random, so many times; 0: no control.",
    )
    confidence: float = level_over("prompts")
    correction: Correction = "bh"
    batch_tokens: BatchTokens = 4096

    @model_validator(mode="after")
    def _each_there_once(self) -> KnockOutSinksConfig:
        for key, given in (("knock_outs", self.knock_outs), ("first_keys", self.first_keys)):
            if len(set(given)) < len(given):
                raise ValueError(f"{key} holds something twice; expected each once")
        return self

    @model_validator(mode="after")
    def _room_for_them(self) -> KnockOutSinksConfig:
        """Of text; the lengths of other prompts are known when they are made."""
        least = max(
            least_for_effects(self.first_keys, self.n_random), least_for_masses(self.first_keys)
        )
        if isinstance(self.prompts, Text) and self.prompts.length < least:
            raise ValueError(
                f"prompts.length={self.prompts.length} is too short for first_keys of {max(self.first_keys)}"
                f"{' and a control' if self.n_random else ''}: expected at least {least}"
            )
        return self
