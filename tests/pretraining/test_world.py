"""The little world: held-out combinations stay out, answers are one token, seeds decide all."""

import itertools
import re
from random import Random

import pytest

from interp.pretraining import world

BOS = 1


@pytest.fixture(scope="module")
def tokenizer():
    return world.build_tokenizer(Random("tokenizer"))


@pytest.fixture(scope="module")
def stories():
    rng = Random(5)
    return [world.training_story(rng) for _ in range(3_000)]


def held_out_combinations(text):
    """Every held-out combination in a text, found from its words alone."""
    words = re.findall(r"\w+", text)
    lists = [(world.NAMES, world.NAMES), (world.NAMES, world.SURNAMES)]
    if "because" in words:
        verb = next(verb for verb in ("fit", "carry", "cross") if verb in words)
        lists = {
            "fit": [(world.THINGS, world.CONTAINERS)],
            "carry": [(world.CARRIERS, world.THINGS)],
            "cross": [(world.ANIMALS, world.WAYS)],
        }[verb]
    return {
        (a, b)
        for first, second in lists
        for a, b in itertools.product(set(words), repeat=2)
        if a in first and b in second and a != b
        if (first.index(a) + second.index(b)) % world.HOLD_OUT_EVERY == 0
    }


def test_no_training_story_holds_a_held_out_combination(stories):
    assert [story for story in stories if held_out_combinations(story)] == []


@pytest.mark.parametrize("kind", world.CLOZE_KINDS)
def test_every_held_out_cloze_holds_one(kind):
    for pair in world.held_out_pairs(kind, 300, Random(1)):
        for cloze in pair:
            assert held_out_combinations(cloze.story), cloze


def test_no_held_out_prompt_is_ever_a_training_text(stories):
    prompts = {
        cloze.prompt
        for kind in world.CLOZE_KINDS
        for pair in world.held_out_pairs(kind, 300, Random(2))
        for cloze in pair
    }
    assert not any(story.startswith(tuple(prompts)) for story in stories)


def test_every_word_of_a_held_out_combination_is_seen_in_training(stories):
    seen = set(re.findall(r"\w+", " ".join(stories)))
    lists = (world.NAMES, world.SURNAMES, world.THINGS, world.CONTAINERS)
    lists += (world.CARRIERS, world.ANIMALS, world.WAYS, world.PLACES, world.GIFTS)
    assert [word for words in lists for word in words if word not in seen] == []


@pytest.mark.parametrize("kind", world.CLOZE_KINDS)
@pytest.mark.parametrize("held_out", [True, False])
def test_pairs_are_minimal_equal_in_length_and_answered_by_one_token(kind, held_out, tokenizer):
    for seed in range(200):
        first, second = world.CLOZE_KINDS[kind](Random(seed), held_out=held_out)
        assert (first.right, first.wrong) == (second.wrong, second.right)
        assert first.right != first.wrong
        ids = [tokenizer.encode(cloze.prompt) for cloze in (first, second)]
        assert len(ids[0]) == len(ids[1])
        assert 1 <= sum(a != b for a, b in zip(*ids, strict=True)) <= 2
        for cloze, prompt in zip((first, second), ids, strict=True):
            answer = tokenizer.encode(cloze.right, add_special_tokens=False)
            assert len(answer) == 1
            whole = tokenizer.encode(cloze.prompt + cloze.right)
            assert whole == prompt + answer, "the answer must not merge with the prompt's end"


def test_the_right_answer_follows_from_the_story():
    for giver in world.held_out_pairs("indirect_object", 100, Random(3)):
        for cloze in giver:
            a, b = re.match(r"\w+ (\w+) and (\w+) ", cloze.prompt).groups()
            right, wrong = cloze.right.strip(), cloze.wrong.strip()
            assert {right, wrong} == {a, b}
            assert cloze.prompt.count(wrong) == 2 and cloze.prompt.count(right) == 1
    for pair in world.held_out_pairs("possession", 100, Random(3)):
        for cloze in pair:
            who = cloze.prompt.split()[-3]
            assert f"{who} has a{cloze.right}" in cloze.prompt
    for pair in world.held_out_pairs("recurring_name", 100, Random(3)):
        for cloze in pair:
            assert cloze.prompt.split()[-1] + cloze.right in cloze.prompt


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("fit in .* too (big|wide|long)", "fits first"),
        ("fit in .* too (small|narrow|short)", "fits second"),
        ("carry .* too (weak|small|short)", "fits first"),
        ("carry .* too (heavy|big|long)", "fits second"),
        ("cross .* too (tired|weak|small)", "fits first"),
        ("cross .* too (wide|long|big)", "fits second"),
    ],
)
def test_the_adjective_decides_the_pronoun(text, answer):
    pairs = world.held_out_pairs("pronoun", 400, Random(4))
    matching = [c for pair in pairs for c in pair if re.search(text, c.prompt)]
    assert len(matching) > 20
    for cloze in matching:
        first = cloze.prompt.split()[1]
        assert (cloze.right.strip() == first) == (answer == "fits first"), cloze


def test_a_seed_decides_every_text_and_row(tokenizer):
    def sample(seed):
        rng = Random(seed)
        ids = world.ordinary_ids(tokenizer)
        return (
            [world.training_story(rng) for _ in range(50)],
            world.held_out_pairs("pronoun", 5, rng),
            world.story_row(rng, tokenizer, 64),
            world.cyclic_row(rng, ids, BOS, 64),
            world.segment_row(rng, ids, BOS, 64),
        )

    assert sample(7) == sample(7)
    assert all(a != b for a, b in zip(sample(7), sample(8), strict=True))


def test_the_tokenizer_is_the_same_when_trained_again(tokenizer):
    again = world.build_tokenizer(Random("tokenizer"))
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert 512 <= len(tokenizer) <= 1024


@pytest.mark.parametrize(
    "text",
    ["When Ann and Ben went to the lake,", " a  b\n\tc", "Grüße, 世界 🙂", "<not a token>", ""],
)
def test_the_tokenizer_gives_back_any_text(text, tokenizer):
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id == BOS
    assert ids.count(BOS) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_random_rows_begin_with_bos_and_hold_no_special_token(tokenizer):
    ids = world.ordinary_ids(tokenizer)
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert len(ids) + 3 == len(tokenizer)
    for seed in range(100):
        for row in (
            world.cyclic_row(Random(seed), ids, BOS, 128),
            world.segment_row(Random(seed), ids, BOS, 128),
        ):
            assert len(row) == 128
            assert row[0] == BOS
            assert set(row[1:]) <= set(ids)


def test_cyclic_rows_repeat_at_one_distance_and_periods_vary(tokenizer):
    ids = world.ordinary_ids(tokenizer)
    periods = set()
    for seed in range(200):
        body = world.cyclic_row(Random(seed), ids, BOS, 128)[1:]
        period = body.index(body[0], 1)
        assert len(set(body)) == period
        assert body[period:] == body[:-period]
        periods.add(period)
    assert min(periods) == 8 and max(periods) > 55


def test_segment_rows_repeat_at_many_distances(tokenizer):
    ids = world.ordinary_ids(tokenizer)
    for seed in range(50):
        body = world.segment_row(Random(seed), ids, BOS, 256)[1:]
        last_seen, distances = {}, set()
        for i, token in enumerate(body):
            if token in last_seen:
                distances.add(i - last_seen[token])
            last_seen[token] = i
        # A row of very few segments has few distances; but never only one.
        assert len(distances) >= 2


def test_an_unknown_kind_of_cloze_is_refused_by_name():
    with pytest.raises(ValueError, match=r"unknown kind of cloze 'pronouns'.*'pronoun'"):
        world.held_out_pairs("pronouns", 1, Random(0))
