"""LaTeX tables: intervals beside their numbers, text escaped, nothing left out unsaid."""

import pandas as pd
import pytest

from interp.results.latex import as_latex


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame({"model": "a_b", "layer": [0, 1, 2], "head": [3, 4, 5]} | columns)


def rows(source: str) -> list[str]:
    body = source.split(r"\midrule")[1].split(r"\bottomrule", maxsplit=1)[0]
    return [line.strip() for line in body.strip().splitlines()]


def test_a_number_stands_with_its_interval_and_undefined_is_said():
    nan = float("nan")
    source = as_latex(
        table(
            mass=[0.5, -0.25, nan],
            ci_low=[0.4, -1.5, nan],
            ci_high=[0.6, 12.0, nan],
            q=[1e-7, 0.5, nan],
        ),
        caption="heads of 100 %",
        label="tab:heads",
    )
    assert rows(source) == [
        r"0 & 3 & 0.500 [0.400, 0.600] & 1 $\times 10^{-7}$ \\",
        r"1 & 4 & $-$0.250 [$-$1.50, 12.00] & 0.5 \\",
        r"2 & 5 & -- & -- \\",
    ]
    assert r"\caption{heads of 100 \%. model a\_b; --: undefined.}" in source
    assert (
        r"\begin{tabular}{rrrr}" in source
        and r"\toprule" in source
        and r"\label{tab:heads}" in source
    )


def test_pairs_of_low_and_high_belong_to_their_number():
    source = as_latex(
        table(total=[1.0, 2.0, 3000.5], total_low=[0.0, 1, 2], total_high=[2.0, 3, 4000])
    )
    assert rows(source)[2] == r"2 & 5 & 3,000 [2.00, 4,000] \\"
    assert "ci" not in source and "low" not in source


def test_rows_that_are_left_out_are_counted_by_role():
    roles = ["sink", "sink", "induction"]
    source = as_latex(table(role=roles, mass=[0.1, 0.2, 0.3]), top=1)
    assert [row.split(" & ")[2] for row in rows(source)] == ["sink", "induction"]
    assert "2 of 3 rows" in source


@pytest.mark.parametrize(
    "token, shown",
    [
        ("50%", r"50\%"),
        ("a\\b", r"a\textbackslash{}b"),
        (" the", r"\textvisiblespace{}the"),
        ("\n\n", r"\textbackslash{}n\textbackslash{}n"),
        ("<|a|>", r"\textless{}\textbar{}a\textbar{}\textgreater{}"),
        ("--", "-{}-"),
        ("{x}_$^~&#", r"\{x\}\_\$\textasciicircum{}\textasciitilde{}\&\#"),
    ],
)
def test_tokens_are_shown_as_they_are(token, shown):
    assert [row.split(" & ")[2] for row in rows(as_latex(table(key_token=[token, "b", "c"])))] == [
        rf"{shown} \\",
        r"b \\",
        r"c \\",
    ]


def test_what_is_small_is_not_0_and_what_has_no_end_is_not_a_number():
    source = as_latex(
        table(
            effect=[-3.2e-5, 0.0, float("inf")],
            ci_low=[-6e-4, 0.0, -float("inf")],
            ci_high=[4.9e-4, 0.0, 5.0],
        )
    )
    assert rows(source) == [
        r"0 & 3 & $-$3.2 $\times 10^{-5}$ [$-$0.001, 0.00049] \\",
        r"1 & 4 & 0.000 [0.000, 0.000] \\",
        r"2 & 5 & $\infty$ [$-\infty$, 5.00] \\",
    ]


def test_a_table_without_rows_is_a_table():
    assert rows(as_latex(table(mass=[0.1, 0.2, 0.3]).head(0))) == []
