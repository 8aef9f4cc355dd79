"""Keys of what works on finished runs: `reproduce` and `report`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt, model_validator

from interp.config.common import Heads, Listed, Named, NonEmpty, Strict


class ReproduceConfig(Strict):
    """Keys of `reproduce`; whatever else there is to set, the run has set."""

    run: NonEmpty = Field(description="The run folder to run again.", examples=["runs/first"])
    out: NonEmpty | None = Field(
        default=None,
        description="The folder of the verdicts, and of the second run in again/; null: runs/reproduce/ and "
        "the time in UTC.",
        examples=["runs/first_again"],
        json_schema_extra={"also": ["output", "to", "folder"]},
    )
    overwrite: bool = Field(default=False, description="Replace the run that is in `out` already.")
    threads: PositiveInt | None = Field(
        default=None, description="CPU threads of the second run; null: those of the first."
    )
    atol: float = Field(
        default=1e-4, ge=0, description="Tolerance of a number: atol + rtol × what it was."
    )
    rtol: float = Field(
        default=1e-3, ge=0, description="The part of it that grows with the number."
    )


class ReportConfig(Strict):
    """Keys of `report`."""

    threads: PositiveInt | None = Field(
        default=2, description="CPU threads of torch; null: as many as torch takes by itself."
    )
    out: NonEmpty | None = Field(
        default=None,
        description="The page; null: runs/report/ and the time in UTC.",
        examples=["report.html"],
        json_schema_extra={"also": ["output", "to", "file"]},
    )
    overwrite: bool = Field(default=False, description="Replace the report that `out` is already.")
    runs: Annotated[tuple[NonEmpty, ...], Listed] = Field(
        min_length=1, description="The run folders to show.", examples=["[runs/first,runs/second]"]
    )
    viewer: bool = Field(
        default=True,
        description="Load the model of each run, and show where chosen heads look.",
    )
    heads: Heads | None = Field(
        default=None,
        description="Those heads, as layer.head (18.10 is not 18.1); null: the best of the run's own table.",
        examples=["[1.3,0.5]"],
    )
    n_heads: PositiveInt = Field(default=6, description="How many of the best.")
    prompts: Annotated[tuple[NonEmpty, ...], Named] | None = Field(
        default=None,
        min_length=1,
        description="The prompts shown, by name, or by number from 0; null: the first two of the run.",
        examples=["[0,5]", "[random-50x2-3]"],
    )
    longest: PositiveInt = Field(
        default=512,
        description="Tokens of a prompt of which every weight is shown; of longer ones the `k` largest.",
    )
    k: PositiveInt = Field(
        default=32,
        description="Of a longer prompt, largest weights and lengths of each query; the rest is added up.",
    )
    most_rows: PositiveInt = Field(
        default=2000, description="Rows of a table that go into the page, from the first."
    )

    @model_validator(mode="after")
    def _read_where_given(self) -> ReportConfig:
        for key in ("heads", "prompts"):
            if not self.viewer and getattr(self, key) is not None:
                raise ValueError(f"{key} is for the viewer, and viewer is false")
        default = type(self).model_fields["n_heads"].default
        if self.heads is not None and self.n_heads != default:
            raise ValueError("n_heads is read where heads are not given, and they are")
        return self
