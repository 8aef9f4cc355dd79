"""Keys of the experiments that train: what the default model is made of, and when its heads form."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    Field,
    PositiveInt,
    model_validator,
)

from interp.config.common import (
    AnyRun,
    Correction,
    Listed,
    NonEmpty,
    Prompts,
    RepeatedRandom,
    RunConfig,
    Strict,
    level_over,
)


class FormHeadsConfig(RunConfig):
    """Heads forming over training: the default model trained again, or published checkpoints."""

    prompts: Prompts = Field(
        default=RepeatedRandom(n_prompts=8),
        description="Where the prompts come from.",
        examples=["repeated_random", "given"],
    )
    confidence: float = level_over("prompts")
    correction: Correction = "bh"
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
