"""What a run of the lesson is made of: one frozen, strict, documented model per experiment.

As in interp/config/; nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from interp.config.common import (
    AnyRun,
    BatchTokens,
    Correction,
    Listed,
    Named,
    NonEmpty,
    Prompts,
    RunConfig,
    Strict,
    Text,
    level_over,
    prompts_from,
)
from interp.scoring.roles import check_names

Row = Annotated[tuple[float, ...], Listed]
Rows = Annotated[tuple[Row, ...], Listed]


def _once(config: Strict, *keys: str) -> None:
    """Refuse lists that hold something twice."""
    for key in keys:
        given = getattr(config, key)
        if len(set(given)) < len(given):
            raise ValueError(f"{key} holds something twice; expected each once")


class AttentionByHandConfig(AnyRun):
    """Attention in a handful of numbers."""

    tokens: Annotated[tuple[NonEmpty, ...], Named] = Field(
        default=("the", "cat", "sat"), min_length=1, description="The text of each key."
    )
    queries: Rows = Field(
        default=((1.2, 0.4),),
        min_length=1,
        description="A row of d_k numbers a query; they are those of the last tokens.",
        examples=["[[1.2,0.4]]"],
    )
    keys: Rows = Field(
        default=((0.2, 0.1), (0.9, 0.3), (0.1, 0.8)),
        min_length=1,
        description="A row of d_k numbers a token.",
    )
    values: Rows = Field(
        default=((0.0, 0.1), (0.8, 0.6), (0.2, 0.9)),
        min_length=1,
        description="A row of d_v numbers a token.",
    )
    causal: bool = Field(default=True, description="Let a query see no later token.")
    masked_scores: Rows = Field(
        default=(
            (2.1, 0.3, 1.7, 0.9),
            (0.8, 3.2, 0.4, 1.1),
            (1.4, 0.6, 2.8, 0.2),
            (0.5, 1.9, 1.2, 2.4),
        ),
        min_length=1,
        description="The second example: rows of scores, taken as they are, under the causal mask.",
    )
    n_heads: Annotated[tuple[PositiveInt, ...], Listed] = Field(
        default=(1, 2, 4, 8),
        min_length=1,
        description="The third: numbers of heads that share the width d_model.",
    )
    d_model: int = Field(default=512, ge=1, le=100_000, description="Width of all heads together.")
    length: int = Field(
        default=128, ge=1, le=1_000_000, description="Tokens that attend, for the FLOPs."
    )

    @model_validator(mode="after")
    def _each_head_count_once(self) -> AttentionByHandConfig:
        _once(self, "n_heads")
        return self


class ScoreScalingConfig(RunConfig):
    """What softmax does to scores that are not divided by √d_k."""

    prompts: Prompts = prompts_from(Text())
    d_k: Annotated[tuple[PositiveInt, ...], Listed] = Field(
        default=(1, 4, 16, 64, 256), min_length=1, description="Widths of the random vectors."
    )
    n_keys: int = Field(default=64, ge=2, description="Keys beside each random query.")
    n_draws: int = Field(
        default=400, ge=2, description="Random queries, each with keys of its own."
    )
    by_layer: bool = Field(
        default=True, description="Also undo the model's scaling in each layer alone."
    )
    confidence: float = level_over("draws and prompts")

    @model_validator(mode="after")
    def _each_width_once(self) -> ScoreScalingConfig:
        _once(self, "d_k")
        return self


class CausalMaskConfig(RunConfig):
    """The past does not depend on the future."""

    prompts: Prompts = prompts_from(Text(), "Where the prompts come from; all of one length.")
    n_cuts: PositiveInt = Field(
        default=4,
        description="Positions after which every token is replaced, each in turn, evenly spread.",
    )
    n_prefixed: PositiveInt = Field(
        default=2,
        description="Of the prompts, how many are also read prefix by prefix (a pass a token).",
    )
    confidence: float = level_over("prompts")


class AttentionCostConfig(AnyRun):
    """Time, memory and FLOPs of attention against the number of tokens."""

    lengths: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Listed] = Field(
        default=(512, 1024, 2048, 4096),
        min_length=3,
        description="Numbers of tokens, each once; an exponent needs three.",
        examples=["[1024,2048,4096,8192]"],
    )
    n_heads: PositiveInt = Field(default=8, description="Heads of the one layer.")
    d_head: PositiveInt = Field(default=64, description="Width of each.")
    repeats: PositiveInt = Field(default=3, description="Calls that are timed, after a first one.")

    @model_validator(mode="after")
    def _each_once(self) -> AttentionCostConfig:
        _once(self, "lengths")
        return self


class KvCacheSizeConfig(AnyRun):
    """Bytes of key-value caches, from configs alone."""

    models: Annotated[tuple[NonEmpty, ...], Listed] = Field(
        default=("default",),
        description="Aliases, Hugging Face ids, folders, .gguf or config.json files; no weights needed.",
        examples=["[gpt2,./my-model/config.json]", "[]"],
    )
    n_layers: int = Field(default=80, ge=1, le=100_000, description="Layers of the model by hand.")
    n_heads: int = Field(default=64, ge=1, le=1_000_000, description="Its query heads in a layer.")
    d_head: int = Field(default=128, ge=1, le=1_000_000, description="Their width.")
    kv_heads: Annotated[tuple[PositiveInt, ...], Listed] = Field(
        default=(64, 8, 1),
        description="Its key-value heads in a layer, each number in turn: MHA, GQA, MQA.",
    )
    context: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None,
        description="Tokens of each user; null: 4096, or a model's own limit if that is less.",
    )
    users: int = Field(default=1, ge=1, le=1_000_000_000, description="Users at the same time.")
    bytes_per_value: float = Field(
        default=2, ge=0.125, le=16, description="Bytes a number: 2 for bfloat16 and float16."
    )
    memory_gb: Annotated[float, Field(gt=0, le=1_000_000_000)] | None = Field(
        default=None, description="Memory for caches, 10⁹ bytes; null: what is free here and now."
    )
    load: bool = Field(
        default=False,
        description="Also load the models and hold the formula against the cache that transformers builds.",
    )

    @model_validator(mode="after")
    def _something_once(self) -> KvCacheSizeConfig:
        _once(self, "models", "kv_heads")
        if not self.models and not self.kv_heads:
            raise ValueError("models and kv_heads are both empty; expected one of either at least")
        if self.load and not self.models:
            raise ValueError("load is for models, and models is empty")
        return self


class EvictCacheConfig(RunConfig):
    """Old tokens thrown out of a key-value cache."""

    prompts: Prompts = prompts_from(
        Text(), "Where the texts come from; all of one length, and the second half is scored."
    )
    budget: PositiveInt = Field(
        default=64,
        description="Tokens that the cache keeps, the pinned ones among them; a token sees these and itself.",
        json_schema_extra={"also": ["cache_size", "window"]},
    )
    choices: Annotated[tuple[Literal["first", "random", "attended"], ...], Listed] = Field(
        default=("first", "random", "attended"),
        description="What is pinned: the first tokens, random ones of the first `budget`, or those that draw "
        "most attention there. Nothing pinned, and nothing thrown out, is measured in any case.",
        examples=["[first]"],
    )
    pins: Annotated[tuple[PositiveInt, ...], Listed] = Field(
        default=(1, 4, 8),
        min_length=1,
        description="How many tokens are pinned, each number in turn.",
        examples=["[1,2,4,8]"],
    )
    positions: Annotated[tuple[Literal["kept", "reindexed"], ...], Listed] = Field(
        default=("kept", "reindexed"),
        min_length=1,
        description="kept: a token stays where it was read; reindexed: it stands at its place in the cache "
        "(rotary models; slow: token by token).",
        examples=["[kept]"],
    )
    recompute: bool = Field(
        default=True,
        description="Also read the last `budget` tokens anew for each prediction (slow: many passes a text).",
    )
    by_head: bool = Field(
        default=True,
        description="Also evict for each head alone, beside its sink score (slow: half a pass a head and "
        "text).",
    )
    n_checked: int = Field(
        default=1,
        ge=0,
        description="Texts on which the masked pass is held against a real cache, token by token; 0: none.",
    )
    confidence: float = level_over("texts")
    correction: Correction = "bh"

    @model_validator(mode="after")
    def _fits(self) -> EvictCacheConfig:
        _once(self, "choices", "pins", "positions")
        if self.choices and max(self.pins) > self.budget:
            raise ValueError(
                f"{max(self.pins)} pins do not fit into a budget of {self.budget}, which they are part of"
            )
        return self


class FindHypothesesConfig(RunConfig):
    """Meaningless patterns, and how many heads look striking for them."""

    prompts: Prompts = prompts_from(Text())
    role: NonEmpty = Field(
        default="induction",
        description="The real hypothesis: a role of interp/scoring/roles.py, or FILE.py:NAME of yours. "
        "Made-up ones are drawn from its distances, so these must differ.",
        examples=["duplicate_token", "my_roles.py:two_back"],
    )
    n_hypotheses: int = Field(
        default=20,
        ge=1,
        le=1000,
        description="Made-up hypotheses, and as many draws of the real one.",
    )
    level: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Level of the tests and of false discoveries, a share.",
    )
    striking: float = Field(
        default=0.4,
        gt=0,
        le=1,
        description="Attention weight that looks striking on one map, a share.",
        json_schema_extra={"also": ["threshold"]},
    )
    confidence: float = level_over("hypotheses")

    @field_validator("role")
    @classmethod
    def _known(cls, role: str) -> str:
        wrong = check_names([role])
        if wrong:
            raise ValueError(wrong)
        if role == "sink_any":
            raise ValueError("sink_any is a search and names no pairs; take another role")
        return role


class LittleWorldSentences(Strict):
    """Held-out stories of the default model's own world."""

    kind: Literal["little_world"] = "little_world"


class EnglishFrames(Strict):
    """English sentences of this package."""

    kind: Literal["frames"] = "frames"


class PublishedSet(Strict):
    """A published set, from a file of yours or the hub: it is read and scored, and no part of it kept."""

    kind: Literal["published"] = "published"
    path: NonEmpty | None = Field(
        default=None,
        description="A file with its rows: .jsonl, .json (a list) or .csv. Columns: text, pronoun, "
        "pronoun_loc, options, label (Winograd), or sentence, option1, option2, answer (WinoGrande).",
        examples=["wsc273.jsonl"],
    )
    dataset: NonEmpty | None = Field(
        default=None,
        description="In place of a file: a Hugging Face dataset with these columns, or a folder of data "
        "files.",
        examples=["allenai/winogrande"],
    )
    subset: NonEmpty | None = Field(
        default=None,
        description="Of the dataset's configurations, which.",
        examples=["winogrande_xl"],
    )
    split: NonEmpty = Field(default="validation", description="Split of the dataset.")
    revision: NonEmpty | None = Field(
        default=None, description="Branch, tag or commit of the dataset; null: the latest."
    )
    n_rows: PositiveInt | None = Field(
        default=None, description="Rows read, the first of the set; null: all."
    )

    @model_validator(mode="after")
    def _one_source(self) -> PublishedSet:
        if (self.path is None) == (self.dataset is None):
            raise ValueError("published needs either path=FILE or dataset=NAME")
        for key in ("subset", "split", "revision"):
            given = getattr(self, key) != type(self).model_fields[key].default
            if self.path is not None and given:
                raise ValueError(f"{key} is of a dataset, and path is a file")
        return self


class ResolvePronounConfig(RunConfig):
    """What "it" is: preference, where heads look, and what carries the answer."""

    sentences: Annotated[
        LittleWorldSentences | EnglishFrames | PublishedSet, Field(discriminator="kind")
    ] = Field(
        default=LittleWorldSentences(),
        description="little_world: held-out stories of the default model's own world; frames: English "
        "sentences of this package, for other models; published: a set of your own, by partial scores only.",
        examples=["frames"],
    )
    n_frames: int = Field(
        default=40,
        ge=2,
        le=10_000,
        description="Frames; each is read with both adjectives. Not for published sets.",
    )
    n_patched: int = Field(
        default=40,
        ge=2,
        description="Frames, the first of these, whose activations are patched: fewer for a large model. Not "
        "for published sets.",
    )
    level: float = Field(
        default=0.05, gt=0, lt=1, description="Level of the test against chance, a share."
    )
    confidence: float = level_over("frames")
    correction: Correction = "bh"
    top: PositiveInt = Field(default=6, description="Heads printed; the files hold all.")
    batch_tokens: BatchTokens = 4096

    @model_validator(mode="after")
    def _of_frames(self) -> ResolvePronounConfig:
        for key in ("n_frames", "n_patched"):
            given = getattr(self, key) != type(self).model_fields[key].default
            if self.sentences.kind == "published" and given:
                raise ValueError(
                    f"{key} is not for published sets; sentences.n_rows says how much to read"
                )
        return self
