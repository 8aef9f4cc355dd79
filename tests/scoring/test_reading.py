"""One row of a pattern: the weights are the library's own, and what is not there is said."""

import numpy as np
import pandas as pd
import pytest
import torch

from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import given_prompts, prompts_of_ids
from interp.models.model import Model, load_model
from interp.scoring.reading import find_query, read_row
from tests.families import N_HEADS, N_LAYERS, WINDOW, tiny_model

IDS = [1, 5, 9, 13, 17, 5, 9, 21, 25, 29, 33, 37]
LAST = len(IDS) - 1


@pytest.fixture(scope="module")
def model(tokenizer) -> Model:
    return load_model((tiny_model("llama"), tokenizer))


def eager(hf_model) -> tuple[torch.Tensor, ...]:
    with torch.no_grad(), implementation(hf_model, "eager"):
        return hf_model(torch.tensor([IDS]), output_attentions=True).attentions


@pytest.mark.parametrize(
    "family, windowed",
    [
        ("llama", []),
        ("gpt2", []),
        ("mistral", [0, 1, 2]),
        ("gemma2", [0, 2]),
        ("gpt_oss", [0, 2]),
        ("deepseek_v3", []),
        ("falcon", []),
        ("gpt_neo", [1]),
    ],
)
def test_a_row_is_that_of_the_librarys_own_attention(family, windowed):
    """In every layer, at another head and query; a window shows its 5 keys and no others.

    Falcon and GPT-Neo bypass the door; gpt-oss has a learned sink, which takes its share.
    """
    hf_model = tiny_model(family)
    model = load_model((hf_model, None))
    (prompt,) = prompts_of_ids(IDS)
    written = eager(hf_model)
    places = ((0, LAST), (N_HEADS - 1, 6), (2, LAST - 1))
    for layer, (head, query) in zip(range(N_LAYERS), places, strict=True):
        row = read_row(model, prompt, layer, head, query)
        first = max(0, query - WINDOW + 1) if layer in windowed else 0
        assert sorted(row.key) == [*range(first, query + 1)]
        expected = written[layer][0, head, query, row.key.tolist()]
        np.testing.assert_allclose(row.weight, expected, atol=1e-5)
        assert row.weight.is_monotonic_decreasing
        keys = {*row[["layer", "head", "query"]].itertuples(index=False, name=None)}
        assert keys == {(layer, head, query)}
        if family == "gpt_oss":
            assert row.weight.sum() < 0.9999
        else:
            assert row.weight.sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("engine", ["fused", "tiled"])
def test_either_kernel_gives_the_row(engine):
    hf_model = tiny_model("llama")
    (prompt,) = prompts_of_ids(IDS)
    row = read_row(load_model((hf_model, None)), prompt, 1, 2, engine=engine)
    expected = eager(hf_model)[1][0, 2, LAST]
    np.testing.assert_allclose(row.sort_values("key").weight, expected, atol=1e-5)


def test_equal_weights_come_in_order_of_keys():
    """The uniform oracle: each of 12 keys has a twelfth."""
    hf_model = tiny_model("gpt2")
    with torch.no_grad():
        for block in hf_model.transformer.h:
            block.attn.c_attn.weight[:, :40] = 0
            block.attn.c_attn.bias[:40] = 0
    row = read_row(load_model((hf_model, None)), *prompts_of_ids(IDS), layer=2, head=1)
    assert row.key.tolist() == [*range(12)]
    assert row.weight.tolist() == pytest.approx([1 / 12] * 12)


def test_the_row_names_its_tokens(model):
    (prompt,) = given_prompts(model, "t5 t9 t5 t7", bos="on")
    row = read_row(model, prompt, 0, 1, query=2)
    assert set(row.query_token) == {"t9"} and set(row["query"]) == {2}
    assert dict(zip(row.key, row.key_token, strict=True)) == {0: "<bos>", 1: "t5", 2: "t9"}
    ids_only = read_row(load_model((tiny_model("llama"), None)), prompt, 0, 1, query=2)
    assert dict(zip(ids_only.key, ids_only.key_token, strict=True)) == {0: "1", 1: "5", 2: "9"}
    pd.testing.assert_series_equal(row.weight, ids_only.weight)


def test_a_negative_query_counts_from_the_end(model):
    (prompt,) = prompts_of_ids(IDS)
    assert [find_query(model, prompt, q) for q in (-1, -12, 0, 11)] == [11, 0, 0, 11]
    counted = read_row(model, prompt, 1, 1, query=-3)
    pd.testing.assert_frame_equal(counted, read_row(model, prompt, 1, 1, query=9))
    assert read_row(model, prompt, 1, 1)["query"].unique() == [11], "the last, if none is named"


@pytest.mark.parametrize(
    "where, message",
    [
        (dict(layer=3, head=0), "layer=3: LlamaForCausalLM has layers 0 to 2"),
        (dict(layer=-1, head=0), "layer=-1: LlamaForCausalLM has layers 0 to 2"),
        (dict(layer=1, head=4), "head=4: layer 1 of LlamaForCausalLM has heads 0 to 3"),
        (dict(layer=1, head=-1), "head=-1: layer 1 of LlamaForCausalLM has heads 0 to 3"),
        (dict(layer=1, head=0, query=12), "query=12: the prompt has 12 tokens, 0 to 11"),
        (dict(layer=1, head=0, query=-13), "query=-13: the prompt has 12 tokens, 0 to 11"),
    ],
    ids=str,
)
def test_what_is_not_there_is_said_in_one_line(model, where, message):
    with pytest.raises(InterpError, match=message) as error:
        read_row(model, *prompts_of_ids(IDS), **where)
    assert "\n" not in str(error.value)


def test_a_query_by_its_token(model):
    (prompt,) = given_prompts(model, "t5 t9 t5 t7", bos="on")
    assert find_query(model, prompt, token="t9") == 2
    assert find_query(model, prompt, token=" t7 ") == 4, "blanks around it do not matter"
    assert find_query(model, prompt, query=1, token="t7") == 4, "the token is what is looked for"
    for token, message in (
        ("t5", r"query_token='t5' occurs at positions \[1, 3\]: give query=POSITION among the tok"),
        (
            "t8",
            r"query_token='t8' occurs nowhere among the tokens \['<bos>', 't5', 't9', 't5', 't7'",
        ),
        ("T7", "query_token='T7' occurs nowhere"),
        ("", "query_token='' occurs nowhere"),
    ):
        with pytest.raises(InterpError, match=message):
            find_query(model, prompt, token=token)


def test_an_exact_token_goes_before_one_with_blanks(model, monkeypatch):
    """ "the" and " the" are two tokens; each is found by its own text, and neither by another's."""
    monkeypatch.setattr(
        "interp.scoring.reading.token_strings", lambda *_: ["the", " the", " ", "\n"]
    )
    (prompt,) = prompts_of_ids([5, 6, 7, 8])
    assert find_query(model, prompt, token="the") == 0
    assert find_query(model, prompt, token=" the") == 1
    assert find_query(model, prompt, token="\n") == 3
    with pytest.raises(InterpError, match=r"occurs at positions \[0, 1\]"):
        find_query(model, prompt, token="the ")
    with pytest.raises(InterpError, match="query_token='\\\\t' occurs nowhere"):
        find_query(model, prompt, token="\t")


def test_a_token_can_not_be_named_without_a_tokenizer():
    without = load_model((tiny_model("llama"), None))
    with pytest.raises(InterpError, match="no tokenizer"):
        find_query(without, *prompts_of_ids(IDS), token="t5")
    assert find_query(without, *prompts_of_ids(IDS), query=-2) == 10


def test_a_prompt_over_the_context_is_refused(model):
    """C66."""
    with pytest.raises(InterpError, match="65 tokens > 64, the model's context"):
        read_row(model, *prompts_of_ids([5] * 65), layer=0, head=0)
