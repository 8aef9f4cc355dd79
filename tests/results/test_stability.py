"""The stability card: by going through all splits, on planted rankings, on noise, and where there is none."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from scipy.stats import spearmanr

from interp.results import tables
from interp.results.stability import rank_stability, stability, summary_card
from interp.results.stability_figure import stability_card
from tests.results.test_summaries import effects, scores, values_of

nan = np.nan


def noise(n: int, heads: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, heads))


def agreement(card: pd.DataFrame) -> pd.Series:
    return card.set_index(["measure", "n_prompts"]).agreement


def test_few_prompts_are_gone_through_split_by_split():
    """6 prompts: 20 halves, 15 pairs, 15 fours; every number by a loop of its own."""
    values = noise(6, 9) + np.linspace(0, 2, 9)
    card = rank_stability(values)
    found = agreement(card)
    halves = [
        spearmanr(values[[*half]].mean(0), np.delete(values, half, 0).mean(0)).statistic
        for half in combinations(range(6), 3)
    ]
    assert found["split half", 3] == pytest.approx(np.mean(halves))
    first = card.iloc[0]
    assert [first.low, first.high] == pytest.approx([*np.quantile(halves, [0.025, 0.975])])
    best = np.argsort(-values.mean(0))
    for k in (1, 3, 5):
        for n in (2, 4):
            shared = [
                len({*best[:k]} & {*np.argsort(-values[[*some]].mean(0))[:k]}) / k
                for some in combinations(range(6), n)
            ]
            assert found[f"top {k}", n] == pytest.approx(np.mean(shared))
    assert card.n_draws.tolist() == [20] + 3 * [15, 15]
    assert card.chance.tolist() == pytest.approx([0, 1 / 9, 1 / 9, 3 / 9, 3 / 9, 5 / 9, 5 / 9])
    assert (card.n_total == 6).all() and (card.n_heads == 9).all()


def test_a_planted_ranking_is_stable_and_noise_is_not():
    """Of heads four standard deviations apart two prompts are enough. Of heads that are all alike two halves
    of 32 prompts agree in nothing on average; 16, part of the whole, share half of the first three of 24 all
    the same, where chance is 0.125."""
    planted = rank_stability(noise(32, 24) / 4 + np.arange(24))
    assert agreement(planted)["split half", 16] > 0.99
    assert (planted[planted.measure != "split half"].needed == 2).all()
    alike = rank_stability(noise(32, 24))
    found = agreement(alike)
    assert abs(found["split half", 16]) < 0.15
    assert alike.needed.isna().all()
    assert 0.125 < found["top 3", 2] < found["top 3", 4] < found["top 3", 8] < found["top 3", 16]
    assert found["top 3", 16] == pytest.approx(0.49, abs=0.01)


def test_needed_is_from_where_on_it_stays():
    """0.9 reached, lost and reached again: by hand, from a card whose numbers are put in."""
    from interp.results.stability import _needed

    def needed(*values: float) -> float:
        sizes = [2, 4, 8, 16][: len(values)]
        return _needed(pd.DataFrame({"n_prompts": sizes, "agreement": values}))

    assert needed(0.95, 0.89, 0.9, 1.0) == 8
    assert needed(0.9, 0.95) == 2
    assert np.isnan(needed(0.95, 0.89)) and np.isnan(needed(nan))


def test_effects_are_ranked_by_size_and_scores_are_not():
    values = noise(8, 6) / 10 + np.array([-0.5, 0.4, 0.3, 0.2, 0.15, 0.1])
    other = values * np.array([-1, 1, 1, 1, 1, 1])
    assert rank_stability(values, by_size=True).equals(rank_stability(other))
    assert not rank_stability(values).equals(rank_stability(other))


def test_templates_are_drawn_and_not_their_prompts():
    """12 templates of 6 prompts: the card is that of their means, in the order of their names."""
    values = values_of(24)
    card = stability(effects(values))
    by_name = sorted(range(12), key=str)
    expected = rank_stability(values.mean(1)[by_name], by_size=True)
    pd.testing.assert_frame_equal(card[expected.columns], expected)
    assert (card.ranking == "zero, loss").all() and (card.n_total == 12).all()
    of_scores = stability(scores(values))
    assert (of_scores.n_total == 12).all() and (of_scores.ranking == "r").all()
    alone = stability(scores(values).drop(columns="template"))
    assert (alone.n_total == 72).all()


def test_what_has_no_value_is_left_out_and_what_can_not_be_split_is_undefined():
    values = noise(9, 5) + np.arange(5)
    holes = np.insert(np.insert(values, 3, nan, axis=0), 2, nan, axis=1)
    assert rank_stability(holes).equals(rank_stability(values))
    values[0, 0] = nan
    assert rank_stability(values).agreement.notna().all()
    for few, reason in (
        (values[1:2], "1 observation can't be split"),
        (values[:, :2], "the ranks of 2 heads can't be correlated; it takes three"),
        (np.full((4, 3), nan), "0 observations can't be split"),
        (np.ones((4, 3)), "all heads have the same mean in one half"),
    ):
        card = rank_stability(few)
        assert np.isnan(card.agreement.iloc[0]) and card.undefined_reason.iloc[0] == reason
        assert (card.agreement.isna() == (card.n_draws == 0)).all()
    assert len(rank_stability(values[1:3])) == 1  # two prompts: one half each, and no subsample


def test_what_ties_decide_is_chance():
    card = rank_stability(np.ones((12, 8)))
    first = card[card.measure == "top 1"]
    assert first.agreement.between(0.02, 0.3).all() and first.needed.isna().all()
    assert (first.chance == 1 / 8).all()
    one_stands_out = np.ones((12, 8))
    one_stands_out[:, 5] = 2
    card = rank_stability(one_stands_out)
    assert (card.agreement[card.measure == "top 1"] == 1).all()
    assert (card.agreement[card.measure == "top 3"] < 0.8).all()


def test_a_seed_draws_the_same_and_a_level_is_used():
    values = noise(20, 12) + np.linspace(0, 1, 12)
    first, again, other = (rank_stability(values, seed=seed) for seed in (1, 1, 2))
    assert first.equals(again) and not first.equals(other)
    narrow = rank_stability(values, seed=1, confidence=0.5)
    assert (narrow.agreement == first.agreement).all()
    assert (narrow.high - narrow.low < first.high - first.low).any()


@pytest.fixture(scope="module")
def card():
    values = values_of(24)
    values += np.linspace(0, 3, 24)
    both = pd.concat([scores(values), scores(np.full_like(values, nan)).assign(role="absent")])
    return stability(both)


def test_it_reads_back_as_it_was(card, tmp_path):
    for ending in ("csv", "parquet"):
        tables.write(card, tmp_path / f"card.{ending}")
        pd.testing.assert_frame_equal(tables.read(tmp_path / f"card.{ending}"), card)


def test_the_short_card_says_from_how_many_on(card):
    short = summary_card(card).set_index("ranking")
    curve = card[(card.ranking == "r") & (card.measure == "top 5")]
    expected = curve.needed.iloc[0]
    assert short["top 5 from"]["r"] == ("> 8" if pd.isna(expected) else expected)
    assert short.split_half["r"] == card.agreement.iloc[0] and np.isnan(short.split_half["absent"])


def test_the_figure_is_the_table(card):
    """Each defined number stands in its cell, bold where stable; the rest is not coloured."""
    axis = stability_card(card, "template").axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["r", "absent"]
    columns = [label.get_text() for label in axis.get_xticklabels()]
    assert columns == ["6", *3 * ["2", "4", "8"], "0"] or columns == [
        "0",
        "6",
        *3 * ["2", "4", "8"],
    ]
    rows = card[card.agreement.notna()]
    assert sorted(text.get_text() for text in axis.texts) == sorted(
        rows.agreement.map("{:.2f}".format)
    )
    stable = (rows.n_prompts >= rows.needed).fillna(False)
    assert sum(text.get_weight() == "bold" for text in axis.texts) == stable.sum()
    (image,) = axis.images
    assert np.isfinite(image.get_array().filled(nan)).sum() == len(rows)
    assert image.get_clim() == (0, 1)
    assert to_rgba(axis.texts[0].get_color()) == to_rgba("black")
