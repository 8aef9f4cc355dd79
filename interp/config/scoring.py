"""Keys of the experiments that ask where heads look."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    PositiveInt,
    field_validator,
    model_validator,
)

from interp.config.common import (
    Correction,
    Listed,
    NonEmpty,
    Prompts,
    RepeatedRandom,
    RunConfig,
    Strict,
    Text,
    level_over,
    prompts_from,
)
from interp.scoring.roles import ROLES, check_names


class ScoreConfig(RunConfig):
    """What the experiments share that score heads over a set of prompts."""

    prompts: Prompts = prompts_from(RepeatedRandom())
    confidence: float = level_over("prompts")
    correction: Correction = "bh"
    top: PositiveInt = Field(default=10, description="Rows printed; the files hold all heads.")
    batch_size: PositiveInt | None = Field(
        default=None,
        description="Prompts in one forward pass; null: decided by the prompts' length.",
    )


class FindConfig(ScoreConfig):
    """What the experiments share that are about these scores."""

    nulls: Annotated[tuple[Literal["random_init", "shuffled"], ...], Listed] = Field(
        default=(),
        description="Further nulls, in nulls.csv: random_init, the same architecture with weights drawn anew "
        "(takes the memory of a second model); shuffled, the prompts' tokens in another order. Each takes as "
        "long as the scores.",
        examples=["[random_init,shuffled]"],
    )

    @field_validator("nulls")
    @classmethod
    def _each_null_once(cls, nulls: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(nulls)) < len(nulls):
            raise ValueError("holds something twice; expected each once")
        return nulls


FirstK = Annotated[
    PositiveInt,
    Field(description="Positions that the role sink_first_k takes together, in tokens."),
]


class FindHeadsConfig(FindConfig):
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


class FindSinksConfig(FindConfig):
    """Attention sinks, looked for in plain text: there a head has nothing else to do."""

    prompts: Prompts = prompts_from(Text())
    first_k: FirstK = 4
    sink_rate: SinkRate | None = Field(
        default=None,
        description="Also the sink rate of Gu et al.; null: not computed.",
        examples=["{}", "{epsilon:0.3,tokens:64}"],
    )


class FindPreviousTokenConfig(FindConfig):
    """Heads that look one token back."""


class FindInductionConfig(FindConfig):
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
