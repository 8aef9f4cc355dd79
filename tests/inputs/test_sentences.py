"""Sentences with an answer, on tokenizers made by hand and on SmolLM2."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from interp.editing.metrics import METRICS, usual_metric
from interp.errors import InterpError
from interp.inputs.pronoun_frames import FRAMES, Frame
from interp.inputs.sentences import NAMES, TEMPLATES, indirect_objects, pronouns
from interp.inputs.tasks import Example
from interp.inputs.years import EVENTS, YEARS, greater_than
from interp.models.forward import logits_at
from interp.models.model import load_model
from interp.models.tokens import token_strings
from interp.results import stats
from tests.families import tiny_model

TEXTS = [
    *(part for f in FRAMES for a in (f.of_first, f.of_second) for part in (f.told(a), f.question(a))),
    *(template.format(a="", b="", s="") for template in TEMPLATES),
    *(template.format(noun="", start="", century="") for template in YEARS),
    *NAMES,
    *EVENTS,
    "the",
]  # fmt: skip
WORDS = sorted({w for text in TEXTS for w in re.findall(r"\w+|[^\w\s]", text)})


def model_of(digits=1, without=()):
    """Every word a token, and every so many digits of a number; some words are not known."""
    numbers = [f"{number:0{n}d}" for n in range(1, digits + 1) for number in range(10**n)]
    known = [w for w in (*WORDS, *numbers) if w not in without]
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<bos>", *known])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Split(Regex(rf"\d{{1,{digits}}}"), behavior="isolated"),
        ]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<bos>"
    )
    return load_model((tiny_model("llama", vocab_size=len(vocabulary)), fast))


@pytest.fixture(scope="module")
def by_digit():
    return model_of(1)


@pytest.fixture(scope="module")
def by_two():
    return model_of(2)


def at_places(model, example, prompt=None):
    words = token_strings(model.tokenizer, (prompt or example.prompt).ids)
    return {name: words[position].strip() for name, position in example.places}


# ---------------------------------------------------------------------------------- indirect objects


@pytest.mark.parametrize("corruption", ["abc", "symmetric"])
def test_indirect_objects_in_both_orders(by_digit, corruption):
    """The giver is named twice, the answer once; half of the time the answer comes first."""
    task = indirect_objects(by_digit, n_prompts=32, corruption=corruption, seed=1)
    assert {e.template for e in task.examples} == set(TEMPLATES) and task.dropped == ()
    first = []
    for example in task.examples:
        there = at_places(by_digit, example)
        answer, wrong = token_strings(by_digit.tokenizer, [example.answer, example.wrong])
        assert (there["IO"], there["S1"], there["S2"]) == (answer, wrong, wrong)
        assert (
            there["END"] in ("to", "for")
            and there["S1+1"] == example.prompt.text.split(wrong)[1].split()[0]
        )
        ids, other = Counter(example.prompt.ids), Counter(example.corrupted.ids)
        assert ids[example.answer] == 1 and ids[example.wrong] == 2
        expected = (0, 0) if corruption == "abc" else (2, 1)
        assert (other[example.answer], other[example.wrong]) == expected
        first.append(dict(example.places)["IO"] < dict(example.places)["S1"])
    assert sum(first) == 16
    assert task == indirect_objects(by_digit, n_prompts=32, corruption=corruption, seed=1)
    assert task != indirect_objects(by_digit, n_prompts=32, corruption=corruption, seed=2)


def test_names_that_are_no_token_are_dropped_and_counted():
    model = model_of(without=NAMES[:15])
    task = indirect_objects(model, n_prompts=4)
    assert task.dropped == (("name that is not one token", 15),)
    with pytest.raises(InterpError, match=r"4 of 4 names are one token .* expected at least 5"):
        indirect_objects(model, names=NAMES[16:])
    assert indirect_objects(model, names=NAMES[18:], corruption="symmetric").examples
    with pytest.raises(InterpError, match="are there 1 times, expected 2: change its template"):
        indirect_objects(model, templates=["When {a} and {b} met"])


# ------------------------------------------------------------------------------------- greater than


def endings(model, ids):
    return [*token_strings(model.tokenizer, ids)]


def test_greater_than_where_two_digits_are_a_token(by_two):
    """As in the paper: of the hundred endings those above are right, the others wrong."""
    task = greater_than(by_two, n_prompts=48, seed=3)
    assert (task.name, task.dropped) == ("greater_than", ())
    assert {e.template for e in task.examples} == set(YEARS)
    for example in task.examples:
        there, other = (at_places(by_two, example, p) for p in (example.prompt, example.corrupted))
        assert there["noun"] in EVENTS and there["XX"] == there["END"] and list(there)[-1] == "END"
        assert other == there | {"YY": "01"} and len(example.corrupted.ids) == len(
            example.prompt.ids
        )
        start = int(there["YY"])
        assert f"{there['XX']}{there['YY']}" in example.prompt.text and 2 <= start <= 98
        right, wrong = (endings(by_two, ids) for ids in (example.answers, example.wrongs))
        assert right == [f"{n:02d}" for n in range(start + 1, 100)]
        assert wrong == [f"{n:02d}" for n in range(start + 1)]
        assert (example.answer, example.wrong) == (None, None)


def test_greater_than_digit_by_digit(by_digit):
    """The same digit decides nothing, and counts for neither side."""
    task = greater_than(by_digit, n_prompts=200)
    assert task.name == "greater_than_digit"
    sizes = []
    for example in task.examples:
        there, other = (
            at_places(by_digit, example, p) for p in (example.prompt, example.corrupted)
        )
        assert other == there | {"YY": "0", "YY 2": "1"}
        assert dict(example.places)["YY 2"] == dict(example.places)["YY"] + 1
        start = int(there["YY"])
        assert 3 <= start <= 6 and there["XX"] == there["END"]
        assert endings(by_digit, example.answers) == [str(n) for n in range(start + 1, 10)]
        assert endings(by_digit, example.wrongs) == [str(n) for n in range(start)]
        sizes.append((len(example.answers), len(example.wrongs)))
    right, wrong = np.mean(sizes, axis=0)
    assert right == pytest.approx(wrong, abs=0.5)  # a model that takes any digit scores 0
    assert greater_than(by_digit, seed=5) == greater_than(by_digit, seed=5)
    assert greater_than(by_digit, seed=5) != greater_than(by_digit, seed=6)


def test_years_that_leave_no_answer_to_one_token_are_refused(by_two):
    """Llama 3 cuts 1745 as 174|5: no token follows 17."""
    with pytest.raises(
        InterpError, match=r"neither as 17\|45 nor as 1\|7\|4\|5 \(1745 is 2 tokens\)"
    ):
        greater_than(model_of(3))
    with pytest.raises(InterpError, match=r"11 of 24 nouns are one token .* take the task copying"):
        greater_than(model_of(without=EVENTS[:13]))
    dropped = greater_than(model_of(2, without=EVENTS[:2])).dropped
    assert dropped == (("noun that is not one token", 2),)
    with pytest.raises(InterpError, match="are there 0 times, expected 1: change its template"):
        greater_than(by_two, templates=["From {start} to {century}"])


def test_the_sets_are_measured_by_their_probability():
    """By hand: three tokens with probabilities 1/2, 1/4, 1/4."""
    from interp.inputs.prompts import Prompt

    logits = torch.tensor([[[0.5, 0.25, 0.25]]]).log()

    def value(answers, wrongs):
        example = Example(Prompt((0, 1), "p"), answers=answers, wrongs=wrongs)
        assert usual_metric(example) == "probability_difference"
        return float(METRICS["probability_difference"].measure(logits, logits, [example])[0])

    assert value((0, 1), (2,)) == pytest.approx(0.5)
    assert value((2,), (0,)) == pytest.approx(-0.25)
    for answers, wrongs in (((0, 1), (1,)), ((0,), ()), ((), (1,))):
        with pytest.raises(InterpError, match=r"expected (some of each|an answer)"):
            value(answers, wrongs)
    with pytest.raises(InterpError, match="probability_difference needs examples with 'answers'"):
        METRICS["probability_difference"].check([Example(Prompt((0, 1), "p"), 0, 1)])


# ----------------------------------------------------------------------------------------- pronouns


def test_frames_are_sentences_of_their_own():
    assert len(FRAMES) >= 40 and len({frame.template for frame in FRAMES}) == len(FRAMES)
    assert len({frame.sentence for frame in FRAMES}) > len(FRAMES) - 5
    for frame in FRAMES:
        words = re.findall(r"\w+", frame.told("_").lower())
        assert words.count("it") == words.count(frame.first) == words.count(frame.second) == 1
        assert frame.of_first != frame.of_second and not {frame.of_first, frame.of_second} & {
            *words
        }
    assert FRAMES[0].question("small") == "What was too small? The"


@pytest.mark.parametrize(
    "sentence",
    [
        "The {first} hid the {second} because it was {adj}.",
        "The {second} hid the {first} because it was so {adj}.",
        "The {first} hid the {second} because it was so {adj} then.",
    ],
)
def test_a_frame_of_another_shape_is_refused(sentence):
    with pytest.raises(InterpError, match=r"expected \{first\}, \{second\} and an end"):
        Frame("tree", "house", sentence, "big", "small")


def test_pronouns_come_in_pairs_that_one_adjective_parts(by_digit):
    task = pronouns(by_digit, n_prompts=2 * len(FRAMES))
    assert task.name == "pronouns" and task.dropped == ()
    by_template = {frame.template: frame for frame in FRAMES}
    for one, two in zip(task.examples[::2], task.examples[1::2], strict=True):
        frame = by_template.pop(one.template)
        assert (one.corrupted, two.corrupted) == (two.prompt, one.prompt)
        assert (one.answer, one.wrong) == (two.wrong, two.answer) and one.template == two.template
        assert endings(by_digit, [one.answer, two.answer]) == [frame.first, frame.second]
        expected = {
            "first noun": frame.first,
            "second noun": frame.second,
            "it": "it",
            "END": "The",
        }
        for example, adjective in ((one, frame.of_first), (two, frame.of_second)):
            adjectives = {"adjective": adjective, "adjective 2": adjective}
            assert at_places(by_digit, example) == expected | adjectives
            assert example.prompt.text == f"{frame.told(adjective)} {frame.question(adjective)}"
    assert not by_template
    assert len({example.prompt.name for example in task.examples}) == len(task.examples)


def test_pronouns_are_drawn_by_seed_and_never_more_than_there_are(by_digit):
    first, second = pronouns(by_digit, n_prompts=7, seed=0), pronouns(by_digit, n_prompts=7, seed=1)
    assert first == pronouns(by_digit, n_prompts=7, seed=0) != second and len(first.examples) == 7
    with pytest.raises(InterpError, match=f"n_prompts=999, and {len(FRAMES)} frames make"):
        pronouns(by_digit, n_prompts=999)


def test_the_question_alone_has_the_same_answers(by_digit):
    whole, alone = (pronouns(by_digit, question_only=only) for only in (False, True))
    assert alone.name == "pronouns_question"
    for one, two in zip(whole.examples, alone.examples, strict=True):
        assert (one.answer, one.wrong, one.template) == (two.answer, two.wrong, two.template)
        assert one.prompt.text.endswith(f" {two.prompt.text}")
        there = at_places(by_digit, two)
        assert there == {"adjective": at_places(by_digit, one)["adjective"], "END": "The"}


def test_frames_that_do_not_fit_the_tokenizer_are_dropped_and_counted():
    nouns = [frame for frame in FRAMES if "tree" in (frame.first, frame.second)]
    adjectives = [f for f in FRAMES if "steep" in (f.of_first, f.of_second)]
    model = model_of(without=("tree", "steep"))
    task = pronouns(model, n_prompts=2 * (len(FRAMES) - len(nouns) - len(adjectives)))
    assert task.dropped == (
        ("adjective that is not one token", len(adjectives)),
        ("noun that is not one token", len(nouns)),
    )
    with pytest.raises(InterpError, match=r"0 of 66 frames fit .*\(dropped: 66 × noun"):
        pronouns(model_of(without=("it",)))


def test_the_default_model_does_not_know_these_words():
    model = load_model("default")
    for task in (greater_than, pronouns):
        with pytest.raises(InterpError, match=r"expected at least half.* or little_world"):
            task(model)


# ------------------------------------------------------------------------------------------ SmolLM2


def measured(model, task, metric, which="prompt"):
    """Plain forward passes, prompts of one length together."""
    values = np.full(len(task.examples), np.nan)
    lengths = np.array([len(example.prompt.ids) for example in task.examples])
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        examples = [task.examples[i] for i in members]
        ids = torch.tensor([getattr(example, which).ids for example in examples])
        logits = logits_at(model, ids, torch.full((len(ids), 1), length - 1))
        values[members] = METRICS[metric].measure(logits, logits, examples).numpy()
    return values


@pytest.mark.smollm2
def test_smollm2_knows_that_years_go_up(smollm2_model):
    """Probability difference 0.56; from a start year of 01, on the same sets, −0.71."""
    task = greater_than(smollm2_model, n_prompts=48)
    assert task.name == "greater_than_digit" and task.dropped == ()
    clean = measured(smollm2_model, task, "probability_difference")
    corrupted = measured(smollm2_model, task, "probability_difference", "corrupted")
    assert clean.mean() == pytest.approx(0.56, abs=0.08) and (clean > 0).mean() > 0.95
    assert corrupted.mean() == pytest.approx(-0.71, abs=0.08)
    (low,), _ = stats.bootstrap_interval((clean - corrupted)[:, None])
    assert low > 1.1


@pytest.mark.smollm2
def test_smollm2_does_not_resolve_pronouns(smollm2_model):
    """Half of the prompts right, and no more than by the question alone: it likes the first noun.

    An adjective does move the answer towards its noun in two of three frames, but as much without the
    sentence: what is left, frame by frame, is within its interval of nothing.
    """
    n = 2 * len(FRAMES)
    task = pronouns(smollm2_model, n_prompts=n)
    alone = pronouns(smollm2_model, n_prompts=n, question_only=True)
    assert task.dropped == alone.dropped == ()
    pairs, controls = (
        measured(smollm2_model, one, "logit_difference").reshape(-1, 2) for one in (task, alone)
    )
    right = (pairs > 0).mean(1, keepdims=True)
    (low,), (high,) = stats.bootstrap_interval(right)
    assert right.mean() == pytest.approx(0.51, abs=0.06) and low < 0.5 < high < 0.58
    assert (pairs > 0).all(1).mean() < 0.2  # both of a pair
    assert ((pairs[:, 0] > 0).mean() + (pairs[:, 1] < 0).mean()) / 2 > 0.65  # the first noun

    moved, by_words = pairs.sum(1, keepdims=True), controls.sum(1, keepdims=True)
    (low,), _ = stats.bootstrap_interval(moved)
    assert low > 0.2 and moved.mean() == pytest.approx(0.46, abs=0.15)
    (low,), (high,) = stats.bootstrap_interval(moved - by_words)
    assert low < 0 < high and high < 0.4
