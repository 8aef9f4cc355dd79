"""Tables: what they hold by hand, what they refuse, and that they read back as they were written."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandera.errors import SchemaError

from interp.errors import InterpError
from interp.inputs.prompts import prompts_of_ids
from interp.models.model import load_model
from interp.results import summaries, tables
from interp.scoring.scores import score_heads
from tests.families import tiny_model

nan = np.nan
BOTH = pytest.mark.parametrize("ending", ["csv", "parquet"])
TOKENS = ["NA", "null", "None", "nan", "", " the", ",", "\n", '"', "1e5"]  # C70
MORE = [
    "\r",
    "\r\n",
    "a\rb",
    "<NA>",
    "N/A",
    "True",
    "007",
    "-inf",
    "#",
    "''",
    '""',
    "\t",
    "\x00",
    "é",
]


def row_table(key_tokens: list[str], query_token: str = "t5") -> pd.DataFrame:
    """One row of a pattern, as read_row gives it."""
    n = len(key_tokens)
    return pd.DataFrame(
        {
            "model": "m",
            "layer": 3,
            "head": 10,
            "query": n - 1,
            "query_token": query_token,
            "key": np.arange(n),
            "key_token": key_tokens,
            "weight": np.random.default_rng(0).dirichlet(np.ones(n)),
        }
    )


def per_prompt(
    heads: dict[tuple[int, int], list[tuple[float, float]]], role: str = "induction"
) -> pd.DataFrame:
    """A row per head and prompt from (mass, null) pairs; an undefined mass has 0 queries, else 5."""
    rows = [
        {
            "model": "m",
            "layer": layer,
            "head": head,
            "role": role,
            "prompt": f"p{number}",
            "mass": mass,
            "mass_off_sink": mass / 2,
            "learned_sink": nan,
            "chance": mass if np.isnan(mass) else 0.1 + 0.1 * (number % 2),
            "null": null,
            "n_queries": 0 if np.isnan(mass) else 5,
            "position": pd.NA,
            "undefined_reason": "no repeat" if np.isnan(mass) else None,
            "attention_path": "fused",
        }
        for (layer, head), pairs in heads.items()
        for number, (mass, null) in enumerate(pairs)
    ]
    types = {"position": "Int64", "undefined_reason": "str"}
    return tables.PER_PROMPT.validate(pd.DataFrame(rows).astype(types))


def again(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    tables.write(table, path)
    return tables.read(path)


# -------------------------------------------------------------------------------- written and read


@BOTH
@pytest.mark.parametrize("tokens", [TOKENS, MORE, *([one] for one in TOKENS + MORE)], ids=repr)
def test_tokens_that_look_like_something_else_stay_text(tmp_path, ending, tokens):
    """C70. Alone in its column, "1e5" is a number to pandas, and "\\r" ends a line."""
    table = row_table(tokens, query_token=tokens[-1])
    found = again(table, tmp_path / f"row.{ending}")
    assert found.key_token.tolist() == tokens
    assert found.query_token.tolist() == [tokens[-1]] * len(tokens)
    pd.testing.assert_frame_equal(found, table, check_exact=True)


@settings(max_examples=50)
@given(token=st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
def test_any_text_survives_csv(tmp_path_factory, token):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    assert again(row_table([token, "t5"]), path).key_token.tolist() == [token, "t5"]


@settings(max_examples=50)
@given(weight=st.floats(0, 1))
def test_numbers_read_back_as_the_same_floats(tmp_path_factory, weight):
    table = row_table(["t5"]).assign(weight=weight)
    path = tmp_path_factory.getbasetemp() / "weight.csv"
    assert again(table, path).weight.tolist() == [weight]


@BOTH
def test_a_model_by_any_name_keeps_it(tmp_path, ending):
    for name in ("1e5", "NA", "010", "a, b", 'say "gpt2"'):
        found = again(row_table(["t5"]).assign(model=name), tmp_path / f"x.{ending}")
        assert found.model.tolist() == [name]


@BOTH
def test_144_heads_are_144_keys(tmp_path, ending):
    """C71: 10.1 and 10.10 are two heads, and 10 comes after 9."""
    heads = {(layer, head): [(0.5, 0.1), (0.5, 0.2)] for layer in range(12) for head in range(12)}
    table = summaries.summarise(per_prompt(dict(sorted(heads.items(), key=str))))
    found = again(table, tmp_path / f"table.{ending}")
    assert (found.layer.dtype, found["head"].dtype) == (np.int64, np.int64)
    # All masses are equal, so the order is that of the keys: numeric.
    assert [*zip(found.layer, found["head"], strict=True)] == [*heads]
    pd.testing.assert_frame_equal(found, table, check_exact=True)


@BOTH
def test_scores_of_a_model_read_back_as_they_were(tmp_path, ending):
    """With and without queries, positions and reasons: values, types and order."""
    model = load_model((tiny_model("gpt_oss"), None))
    scores = score_heads(model, prompts_of_ids([[1, 5, 9, 13, 5, 9, 13], [1, 5, 9], [7]]))
    for table in (scores.per_prompt, scores.summary):
        found = again(table, tmp_path / f"x.{ending}")
        pd.testing.assert_frame_equal(found, table, check_exact=True)
    assert found.mass.isna().any() and found.position.isna().any() and found.position.notna().any()
    assert found.learned_sink.notna().any()


def test_the_same_run_writes_the_same_bytes(tmp_path):
    """From another copy of the model; the lines end alike on every system."""
    written = []
    for number in range(2):
        model = load_model((tiny_model("llama"), None))
        scores = score_heads(model, prompts_of_ids([[1, 5, 9, 5, 9], [1, 5, 9, 7, 5]]), seed=3)
        for ending in ("csv", "parquet"):
            tables.write(scores.summary, tmp_path / f"{number}.{ending}")
            tables.write(scores.per_prompt, tmp_path / f"per_prompt{number}.{ending}")
        written.append(
            {p.name.replace(str(number), ""): p.read_bytes() for p in tmp_path.iterdir()}
        )
        for path in tmp_path.iterdir():
            path.unlink()
    assert len(written[0]) == 4 and written[0] == written[1]
    assert b"\r" not in written[0][".csv"]


# ------------------------------------------------------------------------------------- the summary


def test_a_summary_by_hand():
    """Two prompts, two heads.

    Differences of head 0.0 are 0.1, 0.5: only the pattern ++ of 4 reaches their mean, p = 1/4. Of
    head 0.1 they are −0.05, 0.2: the patterns −+ and ++ do, p = 1/2. Then q = 2 · 1/4 and 1/2. With two
    prompts the bootstrap's ends are the two values.
    """
    heads = {(0, 0): [(0.2, 0.1), (0.6, 0.1)], (0, 1): [(0.9, 0.95), (0.7, 0.5)]}
    table = summaries.summarise(per_prompt(heads))
    assert table["head"].tolist() == [1, 0], "most mass first"
    expected = {
        "mass": [0.8, 0.4],
        "ci_low": [0.7, 0.2],
        "ci_high": [0.9, 0.6],
        "chance": [0.15, 0.15],
        "null": [0.725, 0.1],
        "mass_off_sink": [0.4, 0.2],
        "p": [0.5, 0.25],
        "q": [0.5, 0.5],
        "n_queries": [10, 10],
        "n_prompts": [2, 2],
        "n_undefined": [0, 0],
    }
    for name, values in expected.items():
        assert table[name].tolist() == pytest.approx(values), name
    assert table.learned_sink.isna().all() and table.undefined_reason.isna().all()


def test_undefined_is_neither_zero_nor_first(tmp_path):
    """C72, C64: left out of the mean and of the heads tested, counted, last, and empty in the file."""
    heads = {
        (0, 0): [(nan, nan)] * 3,
        (0, 1): [(0.0, 0.0)] * 3,
        (1, 0): [(0.4, 0.1), (nan, nan), (0.8, 0.1)],
        (1, 1): [(0.5, 0.2), (0.3, 0.2), (0.1, 0.2)],
    }
    table = summaries.summarise(per_prompt(heads))
    keys = [*zip(table.layer, table["head"], strict=True)]
    assert keys == [(1, 0), (1, 1), (0, 1), (0, 0)]
    assert table.mass.tolist() == pytest.approx([0.6, 0.3, 0.0, nan], nan_ok=True)
    assert table.n_prompts.tolist() == [2, 3, 3, 0]
    assert table.n_undefined.tolist() == [1, 0, 0, 3]
    assert table.n_queries.tolist() == [10, 15, 15, 0]
    assert table.undefined_reason.isna().tolist() == [True, True, True, False]
    assert table.undefined_reason.iloc[3] == "no repeat"
    # p = 1/4 (2 prompts), 3/8 (differences 0.3, 0.1, −0.1), 1; three heads are tested, not four.
    assert table.p.tolist() == pytest.approx([1 / 4, 3 / 8, 1, nan], nan_ok=True)
    assert table.q.tolist() == pytest.approx([9 / 16, 9 / 16, 1, nan], nan_ok=True)
    path = tmp_path / "table.csv"
    pd.testing.assert_frame_equal(again(table, path), table, check_exact=True)
    last = path.read_text().splitlines()[-1]
    assert last == "m,0,0,induction,,,,,,,,,,,0,0,3,no repeat,fused"


def test_each_role_is_ranked_and_tested_by_itself():
    """Roles in the order they came; the q of one does not depend on how many others there are."""
    heads = {(0, h): [(0.1 * h + 0.1, 0.05), (0.1 * h + 0.2, 0.05)] for h in range(3)}
    one = summaries.summarise(per_prompt(heads))
    both = summaries.summarise(pd.concat([per_prompt(heads, "z_role"), per_prompt(heads)]))
    assert both.role.tolist() == ["z_role"] * 3 + ["induction"] * 3
    assert both["head"].tolist() == [2, 1, 0] * 2
    pd.testing.assert_frame_equal(both.iloc[3:].reset_index(drop=True), one)


def test_the_position_is_the_one_found_most_often():
    """The smallest of several; undefined where none was found."""
    heads = {(0, 0): [(0.5, 0.1)] * 4, (0, 1): [(0.4, 0.1)] * 4, (0, 2): [(nan, nan)] * 4}
    rows = per_prompt(heads, "sink_any")
    rows["position"] = pd.array([7, 7, 2, 0, 9, 3, 3, 9, *[pd.NA] * 4], dtype="Int64")
    assert summaries.summarise(rows).position.tolist() == [7, 3, pd.NA]


def test_the_confidence_asked_for_is_used():
    heads = {(0, 0): [(mass, 0.1) for mass in np.linspace(0.2, 0.8, 16)]}
    wide, narrow = (summaries.summarise(per_prompt(heads), confidence=c) for c in (0.95, 0.5))
    assert wide.ci_low[0] < narrow.ci_low[0] < 0.5 < narrow.ci_high[0] < wide.ci_high[0]


# ----------------------------------------------------------------------------------------- refused


def broken(table: pd.DataFrame, **values) -> pd.DataFrame:
    """The table with values of its first row replaced."""
    table = table.copy()
    for name, value in values.items():
        table.loc[0, name] = value
    return table


@pytest.fixture(scope="module")
def summary() -> pd.DataFrame:
    return summaries.summarise(per_prompt({(0, h): [(0.5, 0.1), (0.6, 0.1)] for h in (0, 1)}))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"mass": 1.5}, "'mass' failed element-wise validator .*in_range.* 1.5"),
        ({"mass": -0.5}, "'mass' failed"),
        ({"mass": np.inf}, "'mass' failed"),
        ({"q": 1.2}, "'q' failed"),
        ({"head": -1}, "'head' failed"),
        ({"head": 1}, "not unique"),
        ({"model": None}, "'model' contains null values"),
    ],
    ids=str,
)
def test_a_summary_that_breaks_its_contract_is_not_written(tmp_path, summary, values, message):
    path = tmp_path / "table.csv"
    with pytest.raises(SchemaError, match=f"(?s){message}"):
        tables.write(broken(summary, **values), path)
    assert not path.exists()


def test_one_head_of_two_models_is_two_rows(tmp_path, summary):
    both = pd.concat([summary, summary.assign(model="other")], ignore_index=True)
    assert len(again(both, tmp_path / "table.csv")) == 4


def test_a_row_holds_each_key_once_and_no_negative_weight():
    for values in ({"key": 1}, {"weight": -0.1}, {"weight": 1.5}, {"weight": nan}):
        with pytest.raises(SchemaError):
            tables.ROW.validate(broken(row_table(["t5", "t6"]), **values))


def test_a_table_that_is_none_of_ours(tmp_path, summary):
    strange = summary.rename(columns={"mass": "score"})
    with pytest.raises(InterpError, match=r"no table of ours has the columns \['attention_path', "):
        tables.write(strange, tmp_path / "table.csv")
    for ending, write in (("csv", strange.to_csv), ("parquet", strange.to_parquet)):
        write(tmp_path / f"x.{ending}", index=False)
        with pytest.raises(InterpError, match="no table of ours has the columns"):
            tables.read(tmp_path / f"x.{ending}")


@BOTH
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00 no table"], ids=["empty", "broken"])
def test_a_file_that_is_no_table(tmp_path, ending, content):
    path = tmp_path / f"x.{ending}"
    path.write_bytes(content)
    with pytest.raises(InterpError, match=f"{re.escape(str(path))} is no table: |no table of ours"):
        tables.read(path)
    with pytest.raises(InterpError, match=f"no table .*none.{ending}"):
        tables.read(tmp_path / f"none.{ending}")
    (tmp_path / f"folder.{ending}").mkdir()
    with pytest.raises(InterpError, match=r"folder\.csv is no table|columns \[\]"):
        tables.read(tmp_path / f"folder.{ending}")


# --------------------------------------------------------------------------------- on the terminal


def test_text_for_the_terminal():
    """No token loses its letters to a "nan" that marks what is undefined; that is left blank."""
    tokens = ["nan", " finance", "\n", ""]
    shown = tables.as_text(row_table(tokens)[["key", "key_token", "weight"]])
    for token in tokens:
        assert repr(token) in shown
    heads = {(0, 1): [(0.123456, 0.1)] * 5, (0, 2): [(nan, nan)] * 5}
    shown = tables.as_text(summaries.summarise(per_prompt(heads)))
    columns = " ".join(shown.splitlines()[0].split())
    assert columns == (
        "layer head mass ci_low ci_high chance null mass_off_sink p q n_queries n_prompts"
    )
    assert "0.1235" in shown and "0.031" in shown
    assert "nan" not in shown.lower() and "<na>" not in shown.lower()
    assert shown.splitlines()[2].split() == ["0", "2", "0", "0"]
