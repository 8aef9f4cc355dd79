"""Intervals and tests over prompts: against direct computation, by hand, and by simulation.

The simulations are seeded, so they pass or fail for good; the numbers in their docstrings were
measured with these seeds.
"""

import itertools

import numpy as np
import pytest
from scipy.stats import kstest, permutation_test, spearmanr

from interp.errors import InterpError
from interp.results.stats import (
    Family,
    bootstrap_interval,
    check_correction,
    false_discovery_q,
    over_templates,
    ratio_interval,
    sign_flip_p,
    smallest_p,
    spearman,
    spearman_interval,
    two_sided_p,
)

nan = np.nan


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# --------------------------------------------------------------------------------------- intervals


def test_the_interval_is_that_of_a_plain_bootstrap():
    """Means of 20,000 resamples of prompts, drawn here by hand; both err by about 0.005."""
    values = generator().normal(size=(12, 3)) * [1, 2, 5] + [0, 1, -1]
    low, high = bootstrap_interval(values, confidence=0.8, resamples=20_000, seed=1)
    rows = generator(2).integers(0, 12, size=(20_000, 12))
    expected = np.quantile(values[rows].mean(1), [0.1, 0.9], axis=0)
    error = np.abs(np.stack([low, high]) - expected) / values.std(0)
    assert error.max() < 0.02
    assert (high - low > 0.3 * values.std(0)).all()  # far wider than the error allowed


def test_two_prompts_by_hand():
    """Means of resamples of {0, 1} are 0, ½, 1 with probability ¼, ½, ¼."""
    values = np.array([[0.0], [1.0]])
    for confidence, expected in ((0.95, (0, 1)), (0.6, (0, 1)), (0.4, (0.5, 0.5))):
        low, high = bootstrap_interval(values, confidence=confidence)
        assert (low[0], high[0]) == expected


def test_a_constant_has_no_width_and_one_prompt_no_interval():
    low, high = bootstrap_interval(np.full((5, 2), 0.3))
    assert low == pytest.approx(0.3) and high == pytest.approx(0.3)
    assert np.isnan(bootstrap_interval(np.array([[0.3, 0.4]]))).all()
    assert [len(end) for end in bootstrap_interval(np.empty((4, 0)))] == [0, 0]


@pytest.mark.parametrize(
    "draw, mean",
    [
        (lambda g, size: g.normal(size=size), 0.0),
        (lambda g, size: g.beta(2, 2, size=size), 0.5),
        (lambda g, size: g.beta(0.5, 2, size=size), 0.2),
    ],
    ids=["normal", "masses around a half", "masses skewed to 0"],
)
def test_the_interval_covers_the_mean(draw, mean):
    """Coverage of the 95 % interval with 16 prompts, 1,000 repetitions: 0.916, 0.934 and 0.902.

    Below 0.95, as a percentile bootstrap of so few is: intervals over 16 prompts are a little short.
    """
    low, high = bootstrap_interval(draw(generator(), (16, 1_000)))
    assert 0.88 < ((low <= mean) & (mean <= high)).mean() < 0.98


@pytest.mark.parametrize("n, covered", [(4, 0.792), (8, 0.888), (16, 0.916), (64, 0.944)])
def test_with_few_prompts_the_interval_is_too_short(n, covered):
    """Coverage of the 95 % interval over 1,000 repetitions, standard error 0.007 to 0.013."""
    low, high = bootstrap_interval(generator().normal(size=(n, 1_000)))
    assert ((low <= 0) & (high >= 0)).mean() == covered


def test_templates_count_the_same_whatever_their_size():
    """1 and 3 make 2, and 2 and 8 make 5, for one of the templates; an undefined prompt spoils its own."""
    values = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, nan], [8.0, 1.0], [2.0, 1.0]])
    found = over_templates(values, ["a", "b", "a", "b", "b"])
    np.testing.assert_array_equal(found, [[2.0, nan], [4.0, 1.0]])
    np.testing.assert_array_equal(over_templates(values, list("vwxyz")), values)


def test_half_the_confidence_covers_half():
    """The level is used: the 50 % interval of 16 prompts covers 0.458 of 1,000 (0.48 expected)."""
    low, high = bootstrap_interval(generator().normal(size=(16, 1_000)), confidence=0.5)
    assert 0.42 < ((low <= 0) & (high >= 0)).mean() < 0.52


# -------------------------------------------------------------------------------------- sign flips


def flipped(column: np.ndarray) -> float:
    """Share of all sign patterns whose mean is at least the one found."""
    signs = np.array(list(itertools.product([1, -1], repeat=len(column))))
    return float(np.mean((signs * column).mean(1) >= column.mean() - 1e-12))


@pytest.mark.parametrize("n", [2, 3, 5, 8, 10])
def test_p_is_exact_where_all_signs_can_be_listed(n):
    values = generator(n).normal(size=(n, 6)) + np.linspace(-1, 2, 6)
    expected = [flipped(column) for column in values.T]
    assert sign_flip_p(values) == pytest.approx(expected, abs=1e-12)
    assert len(set(expected)) > 1


def test_p_by_hand():
    """±1 ± 2 ± 3 sums to 6, 4, 2, 0, 0, −2, −4 and −6; how many are as large as the one found?"""
    values = np.array([[1, -1, 1, 1], [2, 2, -2, 2], [3, 3, 3, -3]], dtype=float)
    assert sign_flip_p(values).tolist() == [1 / 8, 2 / 8, 3 / 8, 5 / 8]
    assert sign_flip_p(np.zeros((4, 1))).tolist() == [1.0], "no difference is no evidence"


def test_p_tests_above_and_not_below():
    values = generator().normal(size=(10, 1)) + 3
    assert sign_flip_p(values)[0] == 1 / 1024
    assert sign_flip_p(-values)[0] == 1.0


def test_p_is_uniform_under_the_null():
    """No effect, skewed or not: a symmetric difference gives p ≤ α with probability α.

    2,000 repetitions of 10 prompts: Kolmogorov–Smirnov distance 0.019; p ≤ 0.05 in 0.054.
    """
    p = sign_flip_p(generator().normal(size=(10, 2_000)) * np.linspace(0.1, 9, 10)[:, None])
    assert kstest(p, "uniform").statistic < 0.04  # the 0.1 % point of 2,000 is 0.0436
    assert 0.035 < (p <= 0.05).mean() < 0.065  # three standard errors
    assert p.min() >= 1 / 1024


@pytest.mark.parametrize("n", [4, 9, 13, 16])
def test_p_is_that_of_scipy(n):
    """A second witness, one- and two-sided: scipy goes through the same 2ⁿ patterns one by one."""
    values = generator(n).normal(size=(n, 3)) + 0.4
    for measure, side in ((sign_flip_p, "greater"), (two_sided_p, "two-sided")):
        expected = permutation_test(
            (values,),
            lambda x, axis: x.mean(axis),
            permutation_type="samples",
            alternative=side,
            vectorized=True,
            n_resamples=2**n,
            batch=5_000,
        ).pvalue
        assert measure(values) == pytest.approx(expected, abs=1e-12)


def test_p_is_drawn_beyond_16_prompts_and_stays_near_exact():
    """17 prompts have 131,072 patterns; 99,999 drawn have a standard error of 0.0016 at most."""
    values = generator().normal(size=(17, 4)) + 0.3
    expected = [flipped(column) for column in values.T]
    assert sign_flip_p(values) == pytest.approx(expected, abs=0.006)
    assert (sign_flip_p(values, seed=1) == sign_flip_p(values, seed=1)).all()
    assert (sign_flip_p(values, seed=1) != sign_flip_p(values, seed=2)).any()
    assert (sign_flip_p(values[:16], seed=1) == sign_flip_p(values[:16], seed=2)).all()


@pytest.mark.parametrize("n", [2, 5, 12, 16, 17, 40])
def test_the_smallest_p_is_what_a_perfect_effect_gets(n):
    """2⁻ⁿ (two-sided twice that), until only 99,999 patterns are drawn."""
    assert sign_flip_p(np.ones((n, 1)))[0] == pytest.approx(smallest_p(n))
    assert two_sided_p(-np.ones((n, 1)))[0] == pytest.approx(smallest_p(n, sides=2))
    assert smallest_p(n) == pytest.approx(2.0**-n if n <= 16 else 1e-5)
    assert smallest_p(n, sides=2) == pytest.approx(min(1, 2 * smallest_p(n)))


# ---------------------------------------------------------------------------------- too few prompts


@pytest.mark.parametrize(
    "family, needed",
    [
        (Family(144), 12),  # 144 · 2⁻¹² = 0.035, 144 · 2⁻¹¹ = 0.070
        (Family(144, sides=2), 13),
        (Family(144, correction="by"), 14),  # 144 · 5.55 · 2⁻¹⁴ = 0.049
        (Family(24), 9),
        (Family(24, sides=2), 10),
        (Family(24, 2, "by"), 12),  # 24 · 3.776 · 2 · 2⁻¹² = 0.044
        (Family(1), 5),
        (Family(4_999), 17),  # 4,999 · 10⁻⁵
        (Family(5_000), None),
    ],
    ids=str,
)
def test_so_many_prompts_are_needed_and_no_fewer(family, needed):
    """By numbers, and by what happens to a perfect effect among heads that have none."""
    assert family.prompts_needed() == needed
    for n in {needed or 40, (needed or 40) - 1}:
        p = np.ones(family.count)
        perfect = np.ones((n, 1))
        p[0] = (sign_flip_p if family.sides == 1 else two_sided_p)(perfect)[0]
        q = false_discovery_q(p, family.correction)[0]
        assert q == pytest.approx(family.smallest_q(n))
        assert (q < 0.05) == (n == needed) == (family.too_few(n) is None)


def test_what_too_few_prompts_are_told():
    assert Family(144).too_few(11) == (
        "with 11 prompts no p is below 0.00049; a single real effect among 144 tests can't reach q < 0.05 "
        "(BH: at best 0.07): take 12 prompts or more"
    )
    assert Family(24, 2, "by").too_few(1, "template") == (
        "with 1 template nothing can be tested; a single real effect among 24 tests can't reach q < 0.05 "
        "(BY: at best 1): take 12 templates or more"
    )
    assert "no number of prompts is enough, for no p is below 2e-05" in Family(9_999, 2).too_few(99)
    assert Family(144).too_few(12) is None
    assert Family(144).too_few(12, level=0.01) is not None


# ------------------------------------------------------------------------------ false discoveries


def test_q_by_hand():
    """p_(i) · m / i, then the smallest from there on; BY times 1 + ½ + ⅓ + ¼ = 25/12."""
    p = np.array([0.01, 0.04, 0.03, 0.005])
    assert false_discovery_q(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    by = np.array([0.02, 0.04, 0.04, 0.02]) * 25 / 12
    assert false_discovery_q(p, "by") == pytest.approx(by)
    # 0.04 · 3/2 = 0.06 is above 0.05 · 3/3: the later one counts; nothing is above 1.
    assert false_discovery_q(np.array([0.04, 0.05, 0.001])) == pytest.approx([0.05, 0.05, 0.003])
    assert false_discovery_q(np.array([0.9, 0.8]), "by").tolist() == [1, 1]


def test_q_over_the_heads_of_gpt2():
    """144 heads; the best has q = 144 p, or 144 · 5.55 p under any dependence."""
    p = np.full(144, 0.9)
    p[17] = 1e-5
    assert false_discovery_q(p)[17] == pytest.approx(144e-5)
    harmonic = sum(1 / i for i in range(1, 145))
    assert harmonic == pytest.approx(5.55, abs=0.005)
    assert false_discovery_q(p, "by")[17] == pytest.approx(144e-5 * harmonic)


def correlated(
    reps: int, heads: int, effect: float = 0.0, effects: int = 0, opposed: bool = False
) -> np.ndarray:
    """(rep, head) p of differences that share half their variance through the prompts.

    Args:
        opposed: what they share has the other sign in every other head.
    """
    shared, own = generator(0), generator(1)
    common = shared.normal(size=(10, reps, 1))
    if opposed:
        common = common * np.where(np.arange(heads) % 2, 1, -1)
    values = (common + own.normal(size=(10, reps, heads))) / np.sqrt(2)
    values[..., :effects] += effect
    return sign_flip_p(values.reshape(10, -1)).reshape(reps, heads)


def any_found(p: np.ndarray, correction: str) -> float:
    """Share of tables (rows) that hold a q < 0.05."""
    return float(np.mean([(false_discovery_q(row, correction) < 0.05).any() for row in p]))


@pytest.mark.parametrize(
    "opposed, bh, by, uncorrected", [(False, 0.04, 0.0075, 0.325), (True, 0.045, 0.0025, 0.4925)]
)
def test_false_discoveries_are_held_on_null_data(opposed, bh, by, uncorrected):
    """400 tables of 20 heads without any effect, correlated by 0.5 (or ± 0.5) since heads share prompts.

    A table with any q < 0.05 is a false discovery: at most 0.05 of them are to be, standard error 0.011.
    """
    p = correlated(400, 20, opposed=opposed)
    assert any_found(p, "bh") == bh < 0.05 + 3 * 0.011
    assert any_found(p, "by") == by < 0.05
    assert (p < 0.05).any(1).mean() == uncorrected  # so there was something to hold


@pytest.mark.parametrize("correction, share", [("bh", 0.031), ("by", 0.012)])
def test_effects_are_found_and_few_of_the_finds_are_false(correction, share):
    """4 of 20 heads have an effect of 3 deviations: all are found, and at most 4 % of finds are false."""
    p = correlated(200, 20, effect=3.0, effects=4)
    found = np.stack([false_discovery_q(row, correction) for row in p]) < 0.05
    share_false = found[:, 4:].sum(1) / np.maximum(found.sum(1), 1)
    assert share_false.mean() == pytest.approx(share, abs=0.001) and share < 0.05 * 16 / 20
    assert found[:, :4].mean() > 0.95


def test_another_correction_is_refused():
    with pytest.raises(InterpError, match="correction='bonferroni': expected bh or by"):
        check_correction("bonferroni")


# ----------------------------------------------------------------------------------------- rankings


def test_rank_correlations_are_those_of_scipy():
    """With ties and holes; undefined with fewer than three columns in common, or where one is constant."""
    a, b = generator().normal(size=(2, 50, 12)).round(1)
    a[3, :4] = b[5, 2:5] = nan
    found = spearman(a, b)
    expected = [spearmanr(x, y, nan_policy="omit").statistic for x, y in zip(a, b, strict=True)]
    assert found == pytest.approx(expected, abs=1e-12)
    assert spearman(a[0], b[0]) == pytest.approx(expected[0])
    assert np.isnan(spearman(np.array([1.0, 2.0, nan]), np.array([3.0, 4.0, 5.0])))
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


@pytest.mark.parametrize(
    "heads, prompts, rho, covered",
    [(24, 16, 0.0, 0.92), (24, 16, 0.8, 0.91), (144, 12, 0.0, 0.92), (144, 12, 0.8, 0.92)],
)
def test_the_interval_of_a_rank_correlation_covers_that_of_the_true_means(
    heads, prompts, rho, covered
):
    """Of 200 repetitions, with as much noise in a prompt as heads differ; percentiles of the resamples would
    cover it in about 0.57 (24 heads) and in none (144 heads) where it is 0.8."""
    rng = generator(5)
    hits = 0
    for seed in range(200):
        a = rng.normal(size=heads)
        b = rho * a + np.sqrt(1 - rho**2) * rng.normal(size=heads)
        noisy = (means + rng.normal(size=(prompts, heads)) for means in (a, b))
        found, low, high = spearman_interval(*noisy, resamples=300, seed=seed)
        assert -1 <= low <= found <= high <= 1
        hits += low <= spearman(a, b) <= high
    assert hits / 200 == pytest.approx(covered, abs=0.03)


def test_the_interval_of_a_ratio_covers_it():
    """Of 1,000 repetitions with 24 pairs; 0.92 measured."""
    rng = generator(3)
    below, above = (mean + rng.normal(size=(24, 1_000)) for mean in (3, 6))
    _, low, high = ratio_interval(above, below, resamples=1_000)
    assert ((low <= 2) & (high >= 2)).mean() == pytest.approx(0.92, abs=0.02)


def test_rank_correlation_of_one_prompt_has_no_interval():
    a, b = generator().normal(size=(2, 1, 6))
    found, low, high = spearman_interval(a, b)
    assert found == pytest.approx(spearmanr(a[0], b[0]).statistic)
    assert np.isnan([low, high]).all()


# ---------------------------------------------------------------------------- undefined on a prompt


def test_an_undefined_prompt_is_left_out():
    """C64: as if that prompt had not been there for that column; the other columns keep it."""
    values = generator().normal(size=(9, 3)) + 0.5
    holes = values.copy()
    holes[[2, 5], 1] = nan
    kept = np.delete(values[:, [1]], [2, 5], axis=0)
    for measure in (
        lambda v: np.stack(bootstrap_interval(v, seed=3)),
        lambda v: sign_flip_p(v)[None],
    ):
        found, whole = measure(holes), measure(values)
        assert (found[:, [0, 2]] == whole[:, [0, 2]]).all()
        assert (found[:, [1]] == measure(kept)).all()
        assert (found[:, 1] != whole[:, 1]).all()


def test_what_is_never_defined_is_undefined():
    """All undefined, or defined on one prompt only: not 0, not 1, and no other column suffers."""
    values = np.array([[0.1, nan, nan], [0.2, nan, 0.4], [0.3, nan, nan], [0.5, nan, nan]])
    low, high = bootstrap_interval(values)
    p = sign_flip_p(values)
    assert np.isnan([low, high, p]).tolist() == [[False, True, True]] * 3
    assert p[0] == 1 / 16
    q = false_discovery_q(np.array([0.01, nan, 0.04, 0.03, 0.005, nan]))
    assert q == pytest.approx([0.02, nan, 0.04, 0.04, 0.02, nan], nan_ok=True)  # of 4 heads, not 6
    assert np.isnan(false_discovery_q(np.full(3, nan))).all()


def test_a_seed_draws_the_same():
    values = generator().normal(size=(9, 2))
    first, again, other = (bootstrap_interval(values, seed=seed)[0] for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_infinity_is_refused_and_not_averaged():
    values = np.arange(12.0).reshape(4, 3)
    values[1, 2] = -np.inf
    for measure in (
        bootstrap_interval,
        sign_flip_p,
        two_sided_p,
        lambda values: ratio_interval(np.ones_like(values), values),
    ):
        with pytest.raises(InterpError, match="some are infinite"):
            measure(values)


def test_a_column_without_a_value_has_no_ratio():
    nothing = np.full((3, 1), np.nan)
    assert np.isnan(ratio_interval(nothing, np.ones((3, 1)))).all()


def test_where_nothing_is_tested_nothing_is_said():
    assert Family(0).too_few(1) is None
