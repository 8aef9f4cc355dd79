"""Prompts: random repeats, windows of text, the user's own; what they hold and what is refused."""

import hashlib
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.config.common import Text
from interp.errors import InterpError
from interp.inputs.prompts import (
    Prompt,
    describe_prompts,
    given_prompts,
    prompt_hash,
    prompts_of_ids,
    python_docs,
    read_text,
    repeated_random_prompts,
    source_text,
    text_hash,
    text_prompts,
)
from interp.models.model import Model, load_model
from tests.families import tiny_model
from tests.tokenizers_ import word_tokenizer

N_CTX = 64


@pytest.fixture(scope="module")
def model(tokenizer) -> Model:
    """61 embeddings, so t61 to t63 are words of the tokenizer that this model lacks; context 64."""
    return load_model((tiny_model("llama"), tokenizer))


@pytest.fixture(scope="module")
def auto_bos_model(auto_bos_tokenizer) -> Model:
    return load_model((tiny_model("llama"), auto_bos_tokenizer))


def words(ids) -> str:
    return " ".join(f"t{i}" for i in ids)


# ------------------------------------------------------------------------- repeated random tokens


@pytest.mark.parametrize("bos", ["on", "off"])
def test_a_random_segment_is_repeated_after_bos(model, bos):
    """Structure [BOS]? r r r, with nothing twice in r and a new r for every prompt."""
    prompts = repeated_random_prompts(model, n_prompts=6, periods=(5, 7, 11), repeats=3, bos=bos)
    first = (1,) if bos == "on" else ()
    assert [prompt.ids[: len(first)] for prompt in prompts] == [first] * 6
    bodies = [prompt.ids[len(first) :] for prompt in prompts]
    assert [len(body) for body in bodies] == [15, 21, 33, 15, 21, 33]  # the periods in turn
    segments = [body[: len(body) // 3] for body in bodies]
    assert [segment * 3 for segment in segments] == bodies
    assert [len(set(segment)) for segment in segments] == [5, 7, 11, 5, 7, 11]
    assert len(set(segments)) == 6
    assert {prompt.has_bos for prompt in prompts} == {bos == "on"}
    assert len({prompt.name for prompt in prompts}) == 6


@pytest.mark.parametrize("fixture, added", [("model", False), ("auto_bos_model", True)])
def test_bos_as_the_tokenizer_does(fixture, added, request):
    (prompt,) = repeated_random_prompts(
        request.getfixturevalue(fixture), n_prompts=1, periods=(5,), bos="tokenizer"
    )
    assert (prompt.has_bos, prompt.ids[0] == 1, len(prompt.ids)) == (added, added, 10 + added)


def test_only_ordinary_tokens_are_drawn(tmp_path):
    """C07: among 3 … 60 but one that was added: every one of them turns up, and no other."""
    tokenizer = word_tokenizer(tmp_path)
    tokenizer.add_special_tokens({"extra_special_tokens": ["t9"]})
    small = load_model((tiny_model("llama"), tokenizer))
    prompts = repeated_random_prompts(small, n_prompts=60, periods=(31,), bos="off")
    drawn = {token for prompt in prompts for token in prompt.ids}
    assert drawn == set(range(3, 61)) - {9}


def test_a_seed_gives_the_same_ids_however_many_are_drawn(model):
    """C24: on the CPU from a generator of its own, so no device and no other draw matters."""
    few = repeated_random_prompts(model, n_prompts=3, periods=(9,), seed=4)
    many = repeated_random_prompts(model, n_prompts=8, periods=(9,), seed=4)
    assert many[:3] == few
    other = repeated_random_prompts(model, n_prompts=3, periods=(9,), seed=5)
    assert not {prompt.ids for prompt in few} & {prompt.ids for prompt in other}
    # Pinned: another release of ours or of numpy that draws differently must not go unseen.
    assert prompt_hash(few).startswith("37f791b23897b2f8")


def test_global_generators_are_left_alone(model):
    """C24: neither read (under another global seed the ids are the same) nor moved on.

    Whether Python's own was moved can't be seen here: beartype, which checks shapes in these tests,
    draws from it.
    """
    drawn = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = str(np.random.get_state()), torch.get_rng_state()
        drawn.append(repeated_random_prompts(model, n_prompts=2, periods=(9,)))
        drawn.append(text_prompts(model, words(COUNTED), n_prompts=2, length=8))
        assert str(np.random.get_state()) == before[0]
        assert torch.equal(torch.get_rng_state(), before[1])
    assert drawn[:2] == drawn[2:]


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(periods=(59,)), "periods: 59 distinct tokens asked for, the model has 58 ordinary"),
        (dict(periods=(5, 33)), "random-33x2-1: 66 tokens > 64, the model's context"),
        (dict(periods=(32,), bos="on"), "random-32x2-0: 65 tokens > 64"),
        (dict(periods=(22,), repeats=3), "random-22x3-0: 66 tokens > 64"),
        (dict(periods=()), r"periods=\(\), repeats=2: expected numbers of 1 or more"),
        (dict(periods=(5, 0)), r"periods=\(5, 0\), repeats=2: expected numbers"),
        (dict(repeats=0), r"periods=\(50,\), repeats=0: expected numbers"),
    ],
    ids=str,
)
def test_random_prompts_that_can_not_be_drawn(model, options, message):
    with pytest.raises(InterpError, match=message):
        repeated_random_prompts(model, **options)


def test_a_period_may_take_the_whole_pool_and_a_prompt_the_whole_context(model):
    (one,) = repeated_random_prompts(model, n_prompts=1, periods=(58,), repeats=1)
    assert sorted(one.ids) == list(range(3, 61))
    (full,) = repeated_random_prompts(model, n_prompts=1, periods=(32,), bos="off")
    assert len(full.ids) == N_CTX


def test_no_ordinary_token_is_left(tmp_path):
    tokenizer = word_tokenizer(tmp_path)
    tokenizer.add_special_tokens({"extra_special_tokens": [f"t{i}" for i in range(3, 61)]})
    with pytest.raises(InterpError, match=r"no ordinary tokens left to draw: .* 64 tokens, .* 61"):
        repeated_random_prompts(load_model((tiny_model("llama"), tokenizer)), periods=(5,))


# --------------------------------------------------------------------------------- windows of text


COUNTED = [3 + i % 58 for i in range(1000)]
"""Any 58 ids in a row tell where in the text they stand, up to whole turns."""


@given(
    length=st.integers(2, N_CTX),
    n_prompts=st.integers(1, 15),
    bos=st.sampled_from(["on", "off"]),
    seed=st.integers(0, 99),
)
def test_windows_have_the_length_asked_for_and_do_not_overlap(model, length, n_prompts, bos, seed):
    prompts = text_prompts(
        model, words(COUNTED), n_prompts=n_prompts, length=length, bos=bos, seed=seed
    )
    assert [len(prompt.ids) for prompt in prompts] == [length] * n_prompts
    assert all(prompt.has_bos == (bos == "on") for prompt in prompts)
    body = length - (bos == "on")
    starts = [int(prompt.name.removeprefix("text-")) * body for prompt in prompts]
    for prompt, start in zip(prompts, starts, strict=True):
        assert list(prompt.ids[length - body :]) == COUNTED[start : start + body]
    gaps = np.diff(sorted(starts))
    assert (gaps >= body).all() and max(starts) + body <= len(COUNTED)


def test_windows_are_drawn_at_random_by_seed(model):
    def drawn(seed):
        return [
            p.name for p in text_prompts(model, words(COUNTED), n_prompts=4, length=8, seed=seed)
        ]

    assert drawn(0) == drawn(0)
    assert len({tuple(drawn(seed)) for seed in range(5)}) == 5


def test_all_windows_of_a_text_can_be_had_and_no_more(model):
    text = words(range(3, 23))  # 20 tokens: five windows of 4, or of 5 with BOS
    five = text_prompts(model, text, n_prompts=5, length=5, bos="on")
    assert [token for prompt in five for token in prompt.ids[1:]] == list(range(3, 23))
    with pytest.raises(
        InterpError, match="book holds 20 tokens: enough for 5 windows of 5, 6 asked for; lower"
    ):
        text_prompts(model, text, n_prompts=6, length=5, bos="on", name="book")
    with pytest.raises(InterpError, match="enough for 3 windows of 6, 4 asked for"):
        text_prompts(model, text, n_prompts=4, length=6, bos="off")


@pytest.mark.parametrize(
    "length, bos, message",
    [
        (65, "off", "a window of text: 65 tokens > 64, the model's context"),
        (1, "on", "length=1 leaves no room for text beside BOS: expected 2 or more"),
        (0, "off", "length=0 leaves no room"),
        (-3, "off", "length=-3 leaves no room"),
    ],
)
def test_windows_that_can_not_be(model, length, bos, message):
    with pytest.raises(InterpError, match=message):
        text_prompts(model, words(COUNTED), length=length, bos=bos)


def test_windows_of_an_auto_bos_tokenizer_have_one_bos(auto_bos_model):
    for prompt in text_prompts(auto_bos_model, words(COUNTED), n_prompts=3, length=8):
        assert prompt.ids.count(1) == 1 and prompt.ids[0] == 1 and len(prompt.ids) == 8


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no text file .*book.txt"),
        (bytes(range(256)), r"book.txt is not text in UTF-8 \(byte 128\); convert it"),
        ("naïve".encode("latin-1"), r"book.txt is not text in UTF-8 \(byte 2\)"),
        (b"", "book.txt is empty: expected text"),
        (b" \n\t\n", "book.txt is empty: expected text"),
    ],
    ids=["missing", "binary", "latin-1", "empty", "blank"],
)
def test_a_file_that_is_no_text(tmp_path, content, message):
    path = tmp_path / "book.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InterpError, match=message):
        read_text(path)


@pytest.mark.parametrize(
    "below, message",
    [
        (".", r"cannot read .*: Is a directory"),
        ("file/below", r"cannot read .*file/below: Not a directory"),
        ("x" * 300, "cannot read .*: File name too long"),
        ("a\0b", r"cannot read '.*a\\x00b': embedded null byte"),
    ],
    ids=["a folder", "below a file", "a long name", "a null byte"],
)
def test_a_path_that_is_no_file(tmp_path, below, message):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InterpError, match=message):
        read_text(f"{tmp_path}/{below}")


def test_where_text_comes_from(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("t5 née t6\n", encoding="utf-8")
    assert source_text(Text(source="file", path=str(path))) == (str(path), "t5 née t6\n")
    name, text = source_text(Text())
    assert name == "python_docs"
    assert "statement is used for conditional execution" in text
    assert len(text) > 100_000


def test_python_docs_are_the_same_text_each_time():
    """Not in the order of a dictionary or a file system; the hash is that of the UTF-8 bytes."""
    from pydoc_data.topics import topics

    kept = dict(topics)
    first = text_hash(python_docs())
    try:
        for name in sorted(kept, reverse=True):
            topics[name] = topics.pop(name)
        assert text_hash(python_docs()) == first
    finally:
        topics.clear()
        topics.update(kept)
    assert first == hashlib.sha256(python_docs().encode("utf-8")).hexdigest()


# ------------------------------------------------------------------------------ the user's own text


def test_given_texts(model):
    prompts = given_prompts(model, ["t5 t6", "<bos> t7"], bos="on")
    assert [prompt.ids for prompt in prompts] == [(1, 5, 6), (1, 7)]  # C01: one BOS, not two
    assert [prompt.text for prompt in prompts] == ["t5 t6", "<bos> t7"]
    assert [prompt.name for prompt in prompts] == ["given-0", "given-1"]
    assert [prompt.has_bos for prompt in prompts] == [True, True]
    assert given_prompts(model, "t5 t6")[0].ids == (5, 6), "a string is one text, not five"
    assert given_prompts(model, (text for text in ["t5 t6"]))[0].ids == (5, 6)


def test_a_text_over_the_context_is_refused_or_cut_and_recorded(model):
    """C66: 70 > 64; BOS counts."""
    long = words(COUNTED[:70])
    with pytest.raises(InterpError, match="prompt 1: 70 tokens > 64, the model's context; shorten"):
        given_prompts(model, ["t5 t6", long])
    with pytest.raises(InterpError, match="prompt 0: 65 tokens > 64"):
        given_prompts(model, words(COUNTED[:64]), bos="on")
    cut = given_prompts(model, ["t5 t6", long], bos="on", truncate=True)
    assert cut[1].ids == (1, *COUNTED[:63])
    assert [prompt.truncated_from for prompt in cut] == [None, 71]
    assert describe_prompts(cut)["truncated"] == {"given-1": 71}


@pytest.mark.parametrize(
    "texts, message",
    [
        ([], "no prompts: expected at least one text"),
        ("", "the prompt '' is empty: expected at least one token"),
        (["t5 t6", " \n"], r"the prompt ' \\n' is empty"),
        ("t5", "the prompt 't5' is one token, which can look at nothing but itself: expected two"),
        (["t5", "t6"], "the prompt 't5' is one token"),
    ],
    ids=str,
)
def test_texts_that_are_no_prompts(model, texts, message):
    """C65; one token among longer prompts is no error: it is undefined, and counted so."""
    with pytest.raises(InterpError, match=message):
        given_prompts(model, texts)


def test_one_token_is_enough_beside_others_or_after_bos(model):
    assert [len(p.ids) for p in given_prompts(model, ["t5", "t5 t6"])] == [1, 2]
    assert given_prompts(model, "t5", bos="on")[0].ids == (1, 5)


def test_text_needs_a_tokenizer():
    without = load_model((tiny_model("llama"), None))
    for make in (
        lambda: given_prompts(without, "t5 t6"),
        lambda: text_prompts(without, "t5 t6", n_prompts=1, length=2),
        lambda: repeated_random_prompts(without, periods=(5,)),
    ):
        with pytest.raises(InterpError, match="no tokenizer"):
            make()


# ------------------------------------------------------------------------- ids, and what is recorded


@pytest.mark.parametrize("ids", [torch.tensor([1, 5, 9]), [1, 5, 9], torch.tensor([[1, 5, 9]])])
def test_a_vector_of_ids_is_one_prompt(ids):
    """C67: three ids are never three prompts."""
    assert prompts_of_ids(ids, bos_id=1) == [Prompt((1, 5, 9), "ids-0", bos_id=1)]


def test_lists_of_ids_are_prompts_of_their_own_lengths():
    prompts = prompts_of_ids([[1, 5], [7]], bos_id=1)
    assert [(p.ids, p.name, p.has_bos) for p in prompts] == [
        ((1, 5), "ids-0", True),
        ((7,), "ids-1", False),
    ]
    assert not prompts_of_ids([1, 5])[0].has_bos, "without a BOS id nothing is BOS"


@pytest.mark.parametrize(
    "ids, message",
    [
        ([], "no prompt given"),
        ([[1], []], "prompt 1 is empty"),
        (torch.tensor([[0.5]]), r"prompt 0: expected a list of token ids, got \[0.5\]"),
    ],
)
def test_ids_that_are_no_prompts(ids, message):
    with pytest.raises(InterpError, match=message):
        prompts_of_ids(ids)


def test_a_prompt_is_never_empty():
    with pytest.raises(InterpError, match="prompt mine is empty: expected at least one token"):
        Prompt((), "mine")


def test_the_hash_knows_every_id_and_where_it_stands():
    """The same over other names and texts; another for any other ids, order or division."""
    prompts = prompts_of_ids([[1, 5, 9], [13, 17]])
    same = [replace(prompt, name=f"other {i}", text="t") for i, prompt in enumerate(prompts)]
    assert prompt_hash(same) == prompt_hash(prompts)
    assert prompt_hash(prompts) == hashlib.sha256(b"[[1,5,9],[13,17]]").hexdigest()
    variants = [
        *(
            [[1 + (i == 0), 5 + (i == 1), 9 + (i == 2)], [13 + (i == 3), 17 + (i == 4)]]
            for i in range(5)
        ),
        [[13, 17], [1, 5, 9]],
        [[1, 5], [9, 13, 17]],
        [[1, 5, 9, 13, 17]],
        [[1, 5, 9]],
        [[15, 9], [13, 17]],
    ]
    hashes = {prompt_hash(prompts_of_ids(variant)) for variant in variants}
    assert len(hashes) == len(variants) and prompt_hash(prompts) not in hashes


def test_what_the_manifest_says_of_prompts():
    prompts = [
        Prompt((1, 5, 9), "a", bos_id=1, template="t"),
        Prompt((5, 1), "b", bos_id=1, template="t"),
        Prompt((7, 8, 9, 10), "c", bos_id=1, truncated_from=12),
    ]
    assert describe_prompts(prompts) == {
        "n_prompts": 3,
        "n_templates": 2,  # c stands alone
        "n_tokens": 9,
        "shortest": 2,
        "longest": 4,
        "bos_at_position_0": 1,
        "truncated": {"c": 12},
        "sha256": hashlib.sha256(b"[[1,5,9],[5,1],[7,8,9,10]]").hexdigest(),
    }
