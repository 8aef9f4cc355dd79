"""What a run is made of: one frozen, strict, documented model per experiment.

`FindSinksConfig(model="gpt2", prompts=Text(length=512))` is checked when it is built: an unknown
key, a wrong type (`"0,3"` for a number, `True` for an integer) or two keys that contradict each
other raise pydantic's `ValidationError`, which the command line turns into one line. Every field
says what it means and in which unit; `--help` prints just that.

To add a key: add a field here and the same key to the YAML in `experiments/configs/`; a test holds
the two together. Nothing here imports torch.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    field_validator,
    model_validator,
)

from interp.errors import InterpError
from interp.head_sets import SHARES, Head, check_classes, classes_in, heads_in
from interp.roles import ROLES, check_names


def _as_tuple(value: object) -> object:
    """YAML knows lists only; a frozen value holds a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _as_switch(value: object) -> object:
    """YAML 1.1 reads a bare `on` as true and `off` as false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


NonEmpty = Annotated[str, Field(min_length=1)]
Listed = BeforeValidator(_as_tuple)


class Strict(BaseModel):
    """A frozen value: no unknown keys, no guessing between types, no NaN."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True
    )


# --- where prompts come from ---------------------------------------------------------------------


class RepeatedRandom(Strict):
    """Random ordinary tokens, repeated: what induction and duplicate-token heads answer to."""

    kind: Literal["repeated_random"] = "repeated_random"
    n_prompts: int = Field(default=16, ge=1, le=100_000, description="Number of prompts.")
    periods: Annotated[tuple[PositiveInt, ...], Listed] = Field(
        default=(50,),
        min_length=1,
        description="Tokens in one copy; the prompts go through the list in turn.",
        examples=["[50]", "[25,50,100]"],
    )
    repeats: int = Field(default=2, ge=2, description="Copies in a row in each prompt.")


class Text(Strict):
    """Windows of plain text: where a head with nothing to do shows its sink."""

    kind: Literal["text"] = "text"
    n_prompts: int = Field(default=16, ge=1, le=100_000, description="Number of windows.")
    length: int = Field(
        default=256,
        ge=2,
        description="Tokens in a window, BOS included.",
        json_schema_extra={"also": ["seq_len", "context"]},
    )
    source: Literal["python_docs", "file", "dataset"] = Field(
        default="python_docs",
        description="python_docs: the documentation that every Python carries; file: a text file "
        "of yours (path); dataset: a Hugging Face dataset (dataset, split, column).",
    )
    path: NonEmpty | None = Field(
        default=None,
        description="The text file, UTF-8; only with source=file.",
        examples=["book.txt"],
    )
    dataset: NonEmpty | None = Field(
        default=None,
        description="Name of the Hugging Face dataset; only with source=dataset.",
        examples=["NeelNanda/pile-10k"],
    )
    split: NonEmpty = Field(default="train", description="Split of the dataset.")
    column: NonEmpty = Field(
        default="text", description="Column of the dataset that holds the text."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Text:
        if self.source == "file" and self.path is None:
            raise ValueError("source=file needs path=FILE")
        if self.source == "dataset" and self.dataset is None:
            raise ValueError("source=dataset needs dataset=NAME")
        if self.source != "file" and self.path is not None:
            raise ValueError(f"path is read with source=file only, and source is {self.source}")
        for key in ("dataset", "split", "column"):
            given = getattr(self, key) != type(self).model_fields[key].default
            if self.source != "dataset" and given:
                raise ValueError(
                    f"{key} is read with source=dataset only, and source is {self.source}"
                )
        return self


class Given(Strict):
    """Prompts as you write them."""

    kind: Literal["given"] = "given"
    texts: Annotated[tuple[NonEmpty, ...], Listed] = Field(
        min_length=1,
        description="The prompts, one text each.",
        examples=["'When Mary and John went'", '\'["one, two","three, four"]\''],
    )
    truncate: bool = Field(
        default=False, description="Cut a prompt at the model's context length; false: refuse it."
    )


Prompts = Annotated[RepeatedRandom | Text | Given, Field(discriminator="kind")]


# --- what every experiment shares ----------------------------------------------------------------


class AnyRun(Strict):
    """The keys of every experiment."""

    threads: PositiveInt | None = Field(
        default=2, description="CPU threads of torch; null: as many as torch takes by itself."
    )
    seed: int = Field(default=0, ge=0, le=2**32 - 1, description="Seed of every random draw.")
    out: NonEmpty | None = Field(
        default=None,
        description="The run folder; null: runs/NAME/ and the time in UTC.",
        examples=["runs/first"],
        json_schema_extra={"also": ["output", "output_dir", "folder"]},
    )
    overwrite: bool = Field(default=False, description="Replace the run that is in `out` already.")


class ReproduceConfig(AnyRun):
    """Keys of `reproduce`."""

    run: NonEmpty = Field(description="The run folder to run again.", examples=["runs/first"])
    atol: float = Field(
        default=1e-4, ge=0, description="Tolerance of a number: atol + rtol × what it was."
    )
    rtol: float = Field(
        default=1e-3, ge=0, description="The part of it that grows with the number."
    )


class RunConfig(AnyRun):
    """The keys of every experiment on a model."""

    model: NonEmpty = Field(
        default="default",
        description="An alias, a Hugging Face id, a local folder or a .gguf file.",
        examples=["gpt2", "./my-model", "model.gguf"],
    )

    revision: NonEmpty | None = Field(
        default=None, description="Branch, tag or commit of a Hugging Face id; null: the latest."
    )
    trust_remote_code: bool = Field(
        default=False,
        description="Run Python code that comes with the model. Only if you trust it.",
    )
    device: Literal["cpu", "cuda", "mps", "auto"] = Field(
        default="cpu",
        description="Where the model runs; auto: cuda or mps if there is one, else cpu.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Number type of the weights."
    )
    engine: Literal["auto", "fused", "tiled"] = Field(
        default="auto",
        description="How attention is computed; auto: the fused operator where it serves, "
        "tiles of plain torch elsewhere.",
    )
    bos: Annotated[Literal["on", "off", "tokenizer"], BeforeValidator(_as_switch)] = Field(
        default="tokenizer",
        description="Token that begins each prompt (BOS): on, off, or as the tokenizer does.",
    )


# --- experiments ---------------------------------------------------------------------------------


class ScoreConfig(RunConfig):
    """What the experiments share that score heads over a set of prompts."""

    prompts: Prompts = Field(
        default=RepeatedRandom(),
        description="Where the prompts come from.",
        examples=["text", "given"],
    )
    confidence: float = Field(
        default=0.95, gt=0, lt=1, description="Level of the intervals over prompts, a share."
    )
    top: PositiveInt = Field(default=10, description="Rows printed; the files hold all heads.")
    batch_size: PositiveInt | None = Field(
        default=None,
        description="Prompts in one forward pass; null: decided by the prompts' length.",
    )


BatchTokens = Annotated[
    PositiveInt, Field(description="Tokens in one forward pass: lower it if memory is short.")
]


FirstK = Annotated[
    PositiveInt,
    Field(description="Positions that the role sink_first_k takes together, in tokens."),
]


class FindHeadsConfig(ScoreConfig):
    """All roles in one pass."""

    roles: Annotated[tuple[NonEmpty, ...], Listed] = Field(
        default=tuple(ROLES),
        min_length=1,
        description=f"What to look for; by default all of {', '.join(ROLES)}. Also: "
        "sink_first_k, or FILE.py:NAME, a role of your own.",
        examples=["induction", "[induction,my_roles.py:two_back]"],
    )

    first_k: FirstK = 4

    @field_validator("roles")
    @classmethod
    def _each_there_once(cls, roles: tuple[str, ...]) -> tuple[str, ...]:
        wrong = check_names(roles)
        if wrong:
            raise ValueError(wrong)
        return roles


class SinkRate(Strict):
    """Sink rate of Gu et al. (2410.10781): share of heads whose sink score exceeds epsilon."""

    epsilon: float = Field(
        default=0.3,
        ge=0,
        lt=1,
        description="Threshold on the sink score, a share.",
        json_schema_extra={"also": ["threshold"]},
    )
    tokens: int = Field(
        default=64, ge=2, description="Length T at which it is computed, in tokens."
    )


class FindSinksConfig(ScoreConfig):
    """Attention sinks, looked for in plain text: there a head has nothing else to do."""

    prompts: Prompts = Field(
        default=Text(),
        description="Where the prompts come from.",
        examples=["repeated_random", "given"],
    )
    first_k: FirstK = 4
    sink_rate: SinkRate | None = Field(
        default=None,
        description="Also the sink rate of Gu et al.; null: not computed.",
        examples=["{}", "{epsilon:0.3,tokens:64}"],
    )


class KnockOutSinksConfig(RunConfig):
    """The attention sink taken away, in five ways, on plain text."""

    prompts: Prompts = Field(
        default=Text(),
        description="Where the prompts come from.",
        examples=["repeated_random", "given"],
    )
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
    confidence: float = Field(
        default=0.95, gt=0, lt=1, description="Level of the intervals over prompts, a share."
    )
    batch_tokens: BatchTokens = 4096

    @model_validator(mode="after")
    def _each_there_once(self) -> KnockOutSinksConfig:
        for key, given in (("knock_outs", self.knock_outs), ("first_keys", self.first_keys)):
            if len(set(given)) < len(given):
                raise ValueError(f"{key} holds something twice; expected each once")
        return self


class FindPreviousTokenConfig(ScoreConfig):
    """Heads that look one token back."""


class FindInductionConfig(ScoreConfig):
    """Heads that look at the token after an earlier copy of the current one."""


class FindCompositionConfig(ScoreConfig):
    """What the weights say: which heads copy, and which write where a later one reads."""

    previous_token_heads: PositiveInt = Field(
        default=2, description="Earlier heads named: those with most mass one token back."
    )
    induction_heads: PositiveInt = Field(
        default=3, description="Later heads named: those with most mass on the token after a copy."
    )
    least_mass: float = Field(
        default=0.4, ge=0, le=1, description="Least attention mass for a head to be named, a share."
    )
    n_random: int = Field(
        default=100, ge=2, description="Random heads, and random pairs of heads, for the baselines."
    )


class FormHeadsConfig(RunConfig):
    """Heads forming over training: the default model trained again, or published checkpoints."""

    prompts: Prompts = Field(
        default=RepeatedRandom(n_prompts=8),
        description="Where the prompts come from.",
        examples=["repeated_random", "given"],
    )
    confidence: float = Field(
        default=0.95, gt=0, lt=1, description="Level of the intervals over prompts, a share."
    )
    until: PositiveInt = Field(
        default=1500,
        description="Training step at which the new training stops; 100 steps take about 40 seconds.",
        examples=["400"],
    )
    training_seed: int = Field(
        default=0, ge=0, description="Seed of the new training; 0 is the shipped model's."
    )
    revisions: Annotated[tuple[NonEmpty, ...], Listed] = Field(
        default=(),
        description="Checkpoints of `model` on the hub, by revision; empty: train anew.",
        examples=["[step512,step1000,step143000]"],
    )


class Recipe(Strict):
    """How the default model is trained, all but the seed; the defaults made the shipped one."""

    steps: int = Field(default=3000, ge=1, description="optimiser steps")
    tokens_per_step: int = Field(default=2048, ge=1, description="tokens in a batch")
    row_lengths: Annotated[tuple[PositiveInt, ...], Listed] = Field(
        default=(64, 64, 128, 128, 256, 512),
        description="tokens in a row; each step draws one of these",
    )
    story_share: float = Field(default=0.5, ge=0, le=1, description="share of rows of stories")
    cyclic_share: float = Field(
        default=0.25, ge=0, le=1, description="share of cyclic rows (rest: segments)"
    )
    learning_rate: float = Field(default=2e-3, gt=0, description="peak learning rate of AdamW")
    embedding_rate: float = Field(
        default=0.2, gt=0, description="embedding's rate / that of the rest"
    )
    warmup_steps: int = Field(default=30, ge=0, description="steps of linear warm-up")
    decay_start: float = Field(
        default=0.5, ge=0, le=1, description="share of steps before the decay"
    )
    final_share: float = Field(default=0.05, ge=0, le=1, description="last learning rate / peak")
    betas: Annotated[tuple[float, float], Listed] = Field(
        default=(0.9, 0.98), description="moment decays of AdamW"
    )
    weight_decay: float = Field(default=0.1, ge=0, description="AdamW's, on matrices only")
    clip: float = Field(default=1.0, gt=0, description="largest norm of the gradient")
    evaluate_every: int = Field(
        default=100, ge=1, description="steps between evaluations and checkpoints"
    )
    evaluation_prompts: int = Field(
        default=64, ge=1, description="held-out pairs of each kind, and rows"
    )
    d_model: int = Field(default=128, ge=1, description="width of the residual stream")
    d_mlp: int = Field(default=256, ge=1, description="width of the feed-forward layers")
    d_head: int = Field(default=32, ge=2, description="width of a head")
    layers: int = Field(default=3, ge=1, description="number of layers")
    heads: int = Field(default=8, ge=1, description="query heads in a layer")
    key_value_heads: int = Field(default=4, ge=1, description="key-value heads in a layer")
    context: int = Field(default=512, ge=2, description="longest input, tokens")
    rope_theta: float = Field(default=5e5, gt=0, description="base of the rotary position encoding")

    @model_validator(mode="after")
    def _check_together(self) -> Recipe:
        if max(self.row_lengths) > self.context:
            raise ValueError(
                f"a row of {max(self.row_lengths)} tokens exceeds the context, {self.context}"
            )
        if self.story_share + self.cyclic_share > 1:
            raise ValueError("the shares of rows add up to more than 1")
        if self.heads % self.key_value_heads:
            raise ValueError(
                f"{self.heads} query heads cannot share {self.key_value_heads} key-value heads"
            )
        return self


class TrainingConfig(Recipe):
    """Everything that decides a training run; two runs of equal configs give equal weights."""

    seed: int = Field(default=0, ge=0, description="Seeds initialisation and training rows.")


class TrainDefaultModelConfig(AnyRun):
    """Training the default model."""

    threads: PositiveInt | None = Field(
        default=1, description="CPU threads of torch; the shipped weights were made with 1."
    )
    recipe: Recipe = Field(default=Recipe(), description="The training recipe.")


class ReadAttentionConfig(RunConfig):
    """Where one query of one head looks."""

    prompt: NonEmpty = Field(
        description="The text to read.", examples=["'The cat sat on the mat, and'"]
    )
    layer: int = Field(ge=0, description="Layer, counted from 0.", examples=["3"])
    head: int = Field(ge=0, description="Query head, counted from 0.", examples=["1"])
    query: int = Field(
        default=-1,
        description="Position of the query token, BOS included, counted from 0; "
        "negative: from the end.",
    )
    query_token: NonEmpty | None = Field(
        default=None,
        description="The query token by its text, in place of query; it must occur once.",
        examples=["' mat'"],
    )
    k: PositiveInt = Field(
        default=10, description="Number of tokens printed, the most looked-at first."
    )

    @model_validator(mode="after")
    def _one_query(self) -> ReadAttentionConfig:
        if self.query_token is not None and self.query != type(self).model_fields["query"].default:
            raise ValueError("query and query_token name the query token twice; give one of them")
        return self


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
AnyTask = Annotated[
    Copying | IndirectObjects | GreaterThan | Pronouns | LittleWorld, Field(discriminator="kind")
]


class EffectConfig(RunConfig):
    """What the experiments share that change something in the model and measure what comes of it."""

    task: AnyTask = Field(
        default=Copying(),
        description="What the model is to do.",
        examples=["indirect_objects", "greater_than", "pronouns", "little_world"],
    )
    metric: AnyMetric | None = Field(
        default=None,
        description="What is measured; null: the loss for copying, the probability difference for "
        "greater_than, else the logit difference.",
    )
    confidence: float = Field(
        default=0.95, gt=0, lt=1, description="Level of the intervals over templates, a share."
    )
    top: PositiveInt = Field(default=10, description="Rows printed; the files hold all heads.")
    batch_tokens: BatchTokens = 4096


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
    together: NonEmpty | None = Field(
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

    @field_validator("together", mode="before")
    @classmethod
    def _heads_as_text(cls, together: object) -> object:
        if together is None:
            return None
        if not isinstance(together, str):
            raise ValueError(
                "expected one text such as '18.6 17.3', in quotes: of a number 18.10 only 18.1 would be left"
            )
        try:
            heads_in(together)
        except InterpError as error:
            raise ValueError(str(error)) from error
        return together

    @model_validator(mode="after")
    def _mean_only(self) -> AblateHeadsConfig:
        if self.mean_over != "position" and self.ablation != "mean":
            raise ValueError(
                f"mean_over is read with ablation=mean only, and ablation is {self.ablation}"
            )
        return self


class PatchHeadsConfig(EffectConfig):
    """Activations of one prompt put into the run of another."""

    task: AnyTask = Field(
        default=LittleWorld(),
        description="What the model is to do.",
        examples=["indirect_objects", "greater_than", "pronouns", "copying"],
    )
    direction: Literal["denoise", "noise"] = Field(
        default="denoise",
        description="denoise: clean into the corrupted run (what is enough?); noise: corrupted into "
        "the clean run (what is needed?).",
    )
    site: Literal[
        "q", "k", "v", "z", "resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post"
    ] = Field(default="z", description="Kind of activation: see interp/sites.py.")
    positions: Literal["together", "places", "all"] = Field(
        default="together",
        description="together: all positions in one patch; places: one named place of the task at a "
        "time; all: one position at a time, for prompts of one length.",
    )


class AttributeHeadsConfig(PatchHeadsConfig):
    """Patches estimated from gradients, some of them audited."""

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
        if self.audit == 0 and self.n_random != type(self).model_fields["n_random"].default:
            raise ValueError("n_random is read with an audit only, and audit is 0")
        return self


class TracePathsConfig(EffectConfig):
    """Paths from each head to receivers."""

    task: AnyTask = Field(
        default=LittleWorld(),
        description="What the model is to do.",
        examples=["indirect_objects", "greater_than", "pronouns", "copying"],
    )
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


class SplitEffectsConfig(EffectConfig):
    """Total effects split into direct, norm and later."""

    task: AnyTask = Field(
        default=LittleWorld(),
        description="What the model is to do.",
        examples=["indirect_objects", "greater_than", "pronouns", "copying"],
    )
    ablation: Literal["zero", "mean", "resample"] = Field(
        default="resample",
        description="What z becomes: 0, its mean over donor prompts, or that of one donor prompt.",
    )


# --- circuits ------------------------------------------------------------------------------------


def _readable(text: object) -> object:
    """Heads as text, if they can be read."""
    if not isinstance(text, str):
        raise ValueError(
            "expected one text such as '9.9 9.10', in quotes: of a number 9.10 only 9.1 would be left"
        )
    try:
        classes_in(text)
    except InterpError as error:
        raise ValueError(str(error)) from error
    return text


Heads = Annotated[NonEmpty, BeforeValidator(_readable)]


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


class CheckCircuitConfig(EffectConfig):
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
        return self
