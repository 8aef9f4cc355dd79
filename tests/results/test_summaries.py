"""What prompts of one template do to intervals and tests; how each table holds false discoveries."""

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.multitest import multipletests

from interp.interventions.quadrants import summarise_influence
from interp.results.influence_tables import INFLUENCE_PER_PROMPT, QUANTITIES
from interp.results.stats import two_sided_p
from interp.results.summaries import summarise, summarise_effects
from interp.sinks.sink_effects import summarise_sinks

N_TEMPLATES, EACH, N_HEADS = 12, 6, 500


def values_of(n_heads: int = N_HEADS, seed: int = 0) -> np.ndarray:
    """(template, prompt, head) of mean 0, half of the variance a template's own."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(N_TEMPLATES, EACH, n_heads))
    return (rng.normal(size=(N_TEMPLATES, 1, n_heads)) + own) / np.sqrt(2)


def long(values: np.ndarray, **columns: object) -> pd.DataFrame:
    """A row a head and prompt, with the value in ``value``."""
    template, prompt, head = np.indices(values.shape).reshape(3, -1)
    names = [f"{t}-{p}" for t, p in zip(template, prompt, strict=True)]
    frame = pd.DataFrame({"model": "m", "layer": head // 8, "head": head % 8, "prompt": names})
    return frame.assign(template=template.astype(str), value=values.ravel(), **columns)


def scores(values: np.ndarray) -> pd.DataFrame:
    """Masses of mean 0.5, null 0.5."""
    frame = long(np.clip(0.5 + values / 10, 0, 1), role="r", null=0.5, chance=0.1)
    frame = frame.assign(
        mass_off_sink=np.nan,
        learned_sink=np.nan,
        n_queries=1,
        position=pd.array([pd.NA] * len(frame), dtype="Int64"),
        undefined_reason=pd.Series([None] * len(frame), dtype="str"),
        attention_path="fused",
    )
    return frame.rename(columns={"value": "mass"})


def effects(values: np.ndarray) -> pd.DataFrame:
    frame = long(values, task="t", edit="zero", metric="loss", baseline=1.0)
    return frame.rename(columns={"value": "effect"})


@pytest.mark.parametrize(
    "table, summary, mean, wrongly",
    [(scores, summarise, 0.5, 0.174), (effects, summarise_effects, 0.0, 0.298)],
    ids=["scores, one-sided", "effects, two-sided"],
)
def test_an_interval_over_templates_covers_and_one_over_prompts_would_not(
    table, summary, mean, wrongly
):
    """500 heads without an effect, 12 templates of 6 prompts, correlated by a half within them.

    Over templates 0.92 of the 95 % intervals hold the mean (as many as of 12 independent prompts do) and
    p ≤ 0.05 for 0.038 of the heads. Over prompts, of which 72 independent ones would have a mean that varies
    0.53 times as much, 0.69 do (P(|Z| < 1.05) = 0.70), and p ≤ 0.05 for 0.17 (one-sided) or 0.30.
    """
    rows = table(values_of())
    found = summary(rows)
    alone = summary(rows.assign(template=rows.prompt))
    covered = [((one.ci_low <= mean) & (mean <= one.ci_high)).mean() for one in (found, alone)]
    assert covered == [0.92, 0.69]
    assert [(one.p <= 0.05).mean() for one in (found, alone)] == [0.038, wrongly]
    assert (found.n_templates == N_TEMPLATES).all() and (found.n_prompts == 72).all()
    if table is scores:  # a table of effects always names templates
        plain = summary(rows.drop(columns="template"))
        pd.testing.assert_frame_equal(plain, alone.drop(columns="n_templates"))


def test_templates_count_the_same_whatever_their_size():
    """One template of three prompts at 0.2 and one of one at 0.8: 0.5, not 0.35."""
    rows = scores(np.zeros((N_TEMPLATES, EACH, 1))).iloc[:4].copy()
    rows["template"], rows["mass"] = ["a", "a", "a", "b"], [0.2, 0.2, 0.2, 0.8]
    (one,) = summarise(rows).itertuples()
    assert one.mass == pytest.approx(0.5) and (one.n_templates, one.n_prompts) == (2, 4)
    (plain,) = summarise(rows.drop(columns="template")).itertuples()
    assert plain.mass == pytest.approx(0.35) and not hasattr(plain, "n_templates")
    rows.loc[rows.index[3], "mass"] = np.nan
    (one,) = summarise(rows).itertuples()
    assert one.mass == pytest.approx(0.2) and (one.n_templates, one.n_prompts) == (1, 3)
    assert np.isnan([one.p, one.ci_low]).all()


# -------------------------------------------------------------------------------- false discoveries


def sinks(values: np.ndarray) -> pd.DataFrame:
    frame = long(values, knock_out="mask", n_keys=1, metric="loss", control=0.0, baseline=1.0)
    frame["layer"] = frame.layer.astype("Int64")
    return frame[frame["head"] == 0].rename(columns={"value": "effect"}).drop(columns="head")


def influence(values: np.ndarray) -> pd.DataFrame:
    frame = long(values, task="t", target="answer", metric="loss", n_queries=1)
    frame = frame.assign(null=0.5, chance=0.1, baseline=1.0, clean=0.0, corrupted=9.0)
    frame = frame.assign(**{name: frame.value for name in QUANTITIES})
    frame["mass"] = 0.5 + frame.value / 10
    return frame[list(INFLUENCE_PER_PROMPT.columns)]


TABLES = [
    (scores, summarise, [("p", "q")]),
    (effects, summarise_effects, [("p", "q")]),
    (sinks, summarise_sinks, [("p", "q"), ("p_control", "q_control")]),
]


@pytest.mark.parametrize("table, summary, pairs", TABLES, ids=["scores", "effects", "sinks"])
def test_q_is_held_as_asked(table, summary, pairs):
    """BH unless BY is asked for, over all rows; some heads have an effect."""
    values = values_of(24)
    values[..., :10] += 2
    rows = table(values)
    default = summary(rows)
    for correction in ("bh", "by"):
        found = summary(rows, correction=correction)
        for p, q in pairs:
            expected = multipletests(found[p], method=f"fdr_{correction}")[1]
            np.testing.assert_allclose(found[q], expected)
            assert (found[q] < 0.05).any() and found[q].nunique() > 1
    pd.testing.assert_frame_equal(summary(rows, correction="bh"), default)
    assert (default.q <= found.q).all() and (default.q < found.q).any()


def test_both_q_of_a_verdict_are_held_as_asked():
    values = values_of(24)
    values[..., :10] += 2
    by_template = values.mean(1)
    effect = two_sided_p(by_template)
    for correction in ("bh", "by"):
        found = summarise_influence(influence(values), correction=correction)
        found = found.sort_values(["layer", "head"])
        expected = multipletests(effect, method=f"fdr_{correction}")[1]
        np.testing.assert_allclose(found.q_effect, expected)
        assert found.q_mass.iloc[:10].max() < 0.05 * (1 + (correction == "by")) < found.q_mass.max()
    assert (
        found.q_mass > summarise_influence(influence(values)).sort_values(["layer", "head"]).q_mass
    ).any()
