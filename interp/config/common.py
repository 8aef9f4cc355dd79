"""What a run is made of: one frozen, strict, documented model per experiment.

`FindSinksConfig(model="gpt2", prompts=Text(length=512))` is checked when it is built: an unknown
key, a wrong type (`"0,3"` for a number, `True` for an integer) or two keys that contradict each
other raise pydantic's `ValidationError`, which the command line turns into one line. Every field
says what it means and in which unit; `--help` prints just that.

To add a key: add a field here and the same key to the YAML in `experiments/configs/`; a test holds
the two together. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    model_validator,
)

from interp.circuits.head_sets import heads_in
from interp.errors import InterpError


def _as_tuple(value: object) -> object:
    """YAML knows lists only; a frozen value holds a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _as_switch(value: object) -> object:
    """YAML 1.1 reads a bare `on` as true and `off` as false."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _as_names(value: object) -> object:
    """Names, of which some may look like numbers."""
    if not isinstance(value, list):
        return value
    return tuple(str(one) if type(one) is int else one for one in value)


def _as_heads(value: object) -> object:
    """Heads stay the text they are written as: of a number 18.10 only 18.1 would be left."""
    if not isinstance(value, str):
        raise ValueError(
            "expected one text such as '18.6 17.3', in quotes: of a number 18.10 only 18.1 would be left"
        )
    try:
        heads_in(value)
    except InterpError as error:
        raise ValueError(str(error)) from error
    return value


NonEmpty = Annotated[str, Field(min_length=1)]
Heads = Annotated[NonEmpty, BeforeValidator(_as_heads)]
Listed = BeforeValidator(_as_tuple)
Named = BeforeValidator(_as_names)


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
    templates: Annotated[tuple[NonEmpty, ...], Listed] | None = Field(
        default=None,
        description="What each text was made from, by a name of yours: texts of one template are dependent, "
        "and intervals and tests take whole templates; null: each stands alone.",
        examples=["[lake,lake,shop,shop]"],
    )
    truncate: bool = Field(
        default=False, description="Cut a prompt at the model's context length; false: refuse it."
    )

    @model_validator(mode="after")
    def _one_template_each(self) -> Given:
        if self.templates is not None and len(self.templates) != len(self.texts):
            raise ValueError(
                f"templates holds {len(self.templates)} names for {len(self.texts)} texts; expected one each"
            )
        return self


Prompts = Annotated[RepeatedRandom | Text | Given, Field(discriminator="kind")]
Correction = Annotated[
    Literal["bh", "by"],
    Field(
        description="How q holds false discoveries: bh, Benjamini–Hochberg, for tests that are independent "
        "or depend positively; by, Benjamini–Yekutieli, for any, and stricter."
    ),
]


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
    out: NonEmpty | None = Field(
        default=None,
        description="The folder of the verdicts, and of the second run in again/; null: runs/reproduce/ and "
        "the time in UTC.",
        examples=["runs/first_again"],
        json_schema_extra={"also": ["output", "to", "folder"]},
    )
    atol: float = Field(
        default=1e-4, ge=0, description="Tolerance of a number: atol + rtol × what it was."
    )
    rtol: float = Field(
        default=1e-3, ge=0, description="The part of it that grows with the number."
    )


class ReportConfig(AnyRun):
    """Keys of `report`."""

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


BatchTokens = Annotated[
    PositiveInt, Field(description="Tokens in one forward pass: lower it if memory is short.")
]
