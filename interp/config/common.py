"""What a run is made of: one frozen, strict, documented model per experiment.

`FindSinksConfig(model="gpt2", prompts=Text(length=512))` is checked when it is built: an unknown
key, a wrong type (`"0,3"` for a number, `True` for an integer) or two keys that contradict each
other raise pydantic's `ValidationError`, which the command line turns into one line. Every field
says what it means and in which unit; `--help` prints just that.

To add a key: add a field here and the same key to the YAML in `experiments/configs/`; a test holds
the two together. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

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


def text_for(read: Callable[[str], object]) -> BeforeValidator:
    """Text that stays as it is written, and that ``read`` can read: of a number 18.10 only 18.1 is left."""

    def checked(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError(
                "expected one text such as '18.6 17.3', in quotes: of a number 18.10 only 18.1 would be left"
            )
        try:
            read(value)
        except InterpError as error:
            raise ValueError(str(error)) from error
        return value

    return BeforeValidator(checked)


def level_over(what: str) -> Any:
    """The key `confidence` of intervals over these."""
    return Field(
        default=0.95, gt=0, lt=1, description=f"Level of the intervals over {what}, a share."
    )


NonEmpty = Annotated[str, Field(min_length=1)]
Heads = Annotated[NonEmpty, text_for(heads_in)]
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


def prompts_from(default: Prompts, description: str = "Where the prompts come from.") -> Any:
    """The key `prompts`: a kind by default, the others as examples."""
    others = [kind for kind in ("text", "repeated_random", "given") if kind != default.kind]
    return Field(default=default, description=description, examples=others)


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
