"""The tables: which there are, and how they are written and read back.

Layer and head are two integer columns. A number never travels alone, and undefined is an empty field.
Schemas are pandera's (score_tables.py, effect_tables.py, … say what each column means); a table that breaks
its contract is not written.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import pandas as pd
import pandera.pandas as pa

from interp.errors import InterpError
from interp.lesson.tables import SCHEMAS as LESSON
from interp.results.circuit_tables import (
    FAITHFULNESS_AREAS,
    HEAD_RANKING,
    HEAD_SETS,
    HEAD_SETS_PER_PROMPT,
)
from interp.results.columns import contract, count, is_p_value, or_none
from interp.results.effect_tables import (
    ABLATED_SETS,
    ABLATED_SETS_PER_PROMPT,
    AUDIT,
    EFFECTS,
    EFFECTS_PER_PROMPT,
    SINK_EFFECTS,
    SINK_EFFECTS_PER_PROMPT,
    SINK_MASSES,
)
from interp.results.influence_tables import AGREEMENT, INFLUENCE, INFLUENCE_PER_PROMPT
from interp.results.score_tables import (
    FORMATION,
    LOSSES,
    NULLS,
    PER_PROMPT,
    ROW,
    SINK_RATE,
    STABILITY,
    SUMMARY,
    TRAINING,
)
from interp.results.weight_tables import COMPOSITION, COPYING, NAMED_PAIRS

IDENTICAL, WITHIN, DIFFERENT = "identical", "within tolerance", "different"

VERDICTS = contract(
    {
        "table": pa.Column(str, description="the file, by its path in the run folder"),
        "column": pa.Column(str, description="the column; (rows): which rows there are"),
        "verdict": pa.Column(
            str,
            pa.Check.isin([IDENTICAL, WITHIN, DIFFERENT]),
            description="see interp/runs/rerun.py",
        ),
        "largest_difference": or_none("of two numbers in one place; empty for text"),
        "n_different": count("values that are not the same", 0),
        "n_rows": count("rows compared", 0),
    },
    name="verdicts",
)


SCHEMAS = {
    schema.name: schema
    for schema in (
        PER_PROMPT,
        SUMMARY,
        NULLS,
        STABILITY,
        ROW,
        SINK_RATE,
        FORMATION,
        LOSSES,
        TRAINING,
        EFFECTS_PER_PROMPT,
        EFFECTS,
        AUDIT,
        INFLUENCE_PER_PROMPT,
        INFLUENCE,
        AGREEMENT,
        COPYING,
        COMPOSITION,
        NAMED_PAIRS,
        HEAD_SETS_PER_PROMPT,
        HEAD_SETS,
        FAITHFULNESS_AREAS,
        HEAD_RANKING,
        ABLATED_SETS_PER_PROMPT,
        ABLATED_SETS,
        SINK_EFFECTS_PER_PROMPT,
        SINK_EFFECTS,
        SINK_MASSES,
        VERDICTS,
        *LESSON,
    )
}


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a table that keeps its contract, as CSV or Parquet by the path's ending.

    Numbers are written so that they read back as the same floats; undefined is an empty field.
    """
    table = schema_of(table).validate(table)
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        # Text in quotes where a token may be "\r", which a reader would take for the end of a line.
        quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if "key_token" in table else csv.QUOTE_MINIMAL
        table.to_csv(path, index=False, lineterminator="\n", quoting=quoting)


def read(path: Path) -> pd.DataFrame:
    """Read a table back as it was written: tokens such as "NA" or "1e5" stay text.

    Raises:
        InterpError: no such file, one that is no table, or its columns are those of none of ours.
    """
    try:
        if path.suffix == ".parquet":
            table = pd.read_parquet(path)
        else:
            columns = pd.read_csv(path, nrows=0).columns
            schema = schema_of(columns)
            text = [name for name in columns if _is_text(schema.columns[name])]
            table = pd.read_csv(
                path,
                dtype=dict.fromkeys(text, "str"),
                keep_default_na=False,
                na_values={
                    name: [""] for name in columns if name not in TOKENS and not is_of_joined(name)
                },
            )
    except FileNotFoundError:
        raise InterpError(f"no table {path}") from None
    except (OSError, ValueError) as error:  # pandas' and pyarrow's own errors are ValueErrors
        raise InterpError(f"{path} is no table: {error}") from error
    schema = schema_of(table)
    for name, column in schema.columns.items():
        if name not in table:
            continue
        if str(column.dtype) == "Int64":
            table[name] = table[name].astype("Int64")
        elif column.dtype is not None and str(column.dtype).startswith("float"):
            table[name] = table[name].astype(float)
    return schema.validate(table)


def schema_of(table: pd.DataFrame | pd.Index) -> pa.DataFrameSchema:
    """The contract a table falls under, by its columns."""
    columns = list(table.columns if isinstance(table, pd.DataFrame) else table)
    joined = [name for name in columns if is_of_joined(name)]
    own = set(columns) - set(joined)
    for schema in SCHEMAS.values():
        needed = {name for name, column in schema.columns.items() if column.required}
        if needed <= own <= set(schema.columns):
            return _of_several_runs(schema, joined) if joined else schema
    raise InterpError(f"no table of ours has the columns {sorted(columns)}")


def is_of_joined(column: str) -> bool:
    """Whether a column tells the runs of a joined table apart: `run`, and `config.KEY` for what differs."""
    return column == "run" or column.startswith("config.")


def _of_several_runs(schema: pa.DataFrameSchema, joined: list[str]) -> pa.DataFrameSchema:
    """The same contract for the tables of several runs under one another."""
    return pa.DataFrameSchema(
        dict.fromkeys(joined, pa.Column(str)) | schema.columns,
        checks=schema.checks,
        unique=["run", *schema.unique] if schema.unique else None,
        ordered=schema.ordered,
        strict=True,
        name=schema.name,
    )


def as_text(table: pd.DataFrame) -> str:
    """A few rows for the terminal: short numbers, no column that is the same for all or empty."""
    said_elsewhere = ["model", "role", "task", "edit", "metric"]
    rarely_wanted = ["undefined_reason", "attention_path", "n_undefined"]
    shown = table.dropna(axis="columns", how="all").drop(
        columns=[*said_elsewhere, *rarely_wanted], errors="ignore"
    )
    if "key_token" in shown:
        shown["key_token"] = shown["key_token"].map(repr)
    return _rounded(shown).to_string(index=False)


def as_html(table: pd.DataFrame) -> str:
    """A few rows for a notebook: short numbers, undefined empty."""
    return _rounded(table).to_html(index=False)


def _rounded(table: pd.DataFrame) -> pd.DataFrame:
    """Numbers as text: four decimals, of p-values two digits; undefined is an empty text."""
    shown = table.copy()
    for name in shown.select_dtypes("float"):
        digits = "{:.2g}" if is_p_value(str(name)) else "{:.4f}"
        shown[name] = shown[name].map(digits.format, na_action="ignore")
    return shown.astype(object).where(shown.notna(), "")


TOKENS = ("query_token", "key_token")


def _is_text(column: pa.Column) -> bool:
    return column.dtype == VERDICTS.columns["column"].dtype  # as pandera names text
