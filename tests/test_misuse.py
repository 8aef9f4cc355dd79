"""What users will do that is not in the docstrings: each gets one line that says what to do."""

import threading

import numpy as np
import pytest
import torch

import interp
from interp.attention.door import implementation, open_door
from interp.errors import InterpError
from interp.inputs.prompts import (
    as_prompts,
    given_prompts,
    prompts_of_ids,
    repeated_random_prompts,
    text_prompts,
)
from interp.models import tokens
from interp.models.model import load_model
from interp.scoring.roles import find_roles, role
from interp.scoring.scores import score_heads
from tests.families import tiny_model
from tests.tokenizers_ import word_tokenizer

IDS = [1, 5, 9, 13, 5, 9, 13]


@pytest.fixture(scope="module")
def bare():
    return load_model((tiny_model("llama"), None))


@pytest.fixture(scope="module")
def no_bos(tmp_path_factory):
    tokenizer = word_tokenizer(tmp_path_factory.mktemp("no_bos"), bos_token=None)
    return load_model((tiny_model("llama", vocab_size=64), tokenizer))


@pytest.mark.parametrize(
    "make",
    [
        lambda model: repeated_random_prompts(model, n_prompts=1, periods=[5], bos="on"),
        lambda model: text_prompts(model, "t5 t6 " * 20, n_prompts=1, length=9, bos="on"),
        lambda model: given_prompts(model, ["t5 t6"], bos="on"),
    ],
)
def test_bos_asked_for_of_a_tokenizer_without_one_is_refused_by_every_maker(no_bos, make):
    """C05."""
    with pytest.raises(InterpError, match="BOS could not be added"):
        make(no_bos)


@pytest.mark.parametrize("bos", [False, True, "no", None])
def test_a_bos_rule_that_is_none_is_refused(bos):
    with pytest.raises(InterpError, match="bos: expected one of on, off, tokenizer"):
        tokens._check_rule(bos)


def test_all_that_a_tokenizer_puts_in_front_stands_before_every_kind_of_prompt(tmp_path):
    tokenizer = word_tokenizer(tmp_path, template="<eos> <bos> $A")
    model = load_model((tiny_model("llama", vocab_size=64), tokenizer))
    random = repeated_random_prompts(model, n_prompts=1, periods=[4])[0]
    window = text_prompts(model, "t5 t6 " * 20, n_prompts=1, length=9)[0]
    given = given_prompts(model, ["t5 t6"])[0]
    assert random.ids[:2] == window.ids[:2] == given.ids[:2] == (2, 1)
    assert len(random.ids) == 10 and len(window.ids) == 9


def test_a_text_that_begins_with_bos_is_told_so(tokenizer):
    model = load_model((tiny_model("llama", vocab_size=64), tokenizer))
    with pytest.raises(InterpError, match="text itself begins with the BOS token: remove it there"):
        text_prompts(model, "<bos> " + "t5 t6 " * 20, n_prompts=1, length=9)


@pytest.mark.parametrize("pairs", [[(1.7, 0.9)], ["10"], [(3, "1")]])
def test_a_role_of_no_integers_is_refused_not_cut(bare, pairs):
    with pytest.raises(InterpError, match=r"expected \(query, key\) pairs of integers"):
        role(lambda prompt: pairs).pairs(prompts_of_ids(IDS)[0])


def test_numpy_and_torch_integers_are_integers():
    prompt = prompts_of_ids(IDS)[0]
    for pairs in (np.array([[3, 1], [3, 1]]), torch.tensor([[3, 1]]), [(np.int64(3), 1)]):
        assert role(lambda p, pairs=pairs: pairs).pairs(prompt).tolist() == [[3, 1]]


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("no"), SystemExit(0)])
def test_a_role_that_fails_is_named(error):
    def mine(prompt):
        raise error

    with pytest.raises(
        InterpError, match=f"role mine, prompt ids-0: it raised {type(error).__name__}"
    ):
        role(mine).pairs(prompts_of_ids(IDS)[0])


def test_a_role_file_that_fails_or_borrows_a_name_is_named(tmp_path):
    broken, borrowed = tmp_path / "broken.py", tmp_path / "borrowed.py"
    broken.write_text("import nothing_there\n")
    borrowed.write_text("def induction(prompt):\n    return []\n")
    with pytest.raises(InterpError, match=r"broken.py raised ModuleNotFoundError"):
        find_roles([f"{broken}:mine"])
    with pytest.raises(InterpError, match="induction is the name of a built-in role"):
        find_roles([f"{borrowed}:induction"])


@pytest.mark.parametrize(
    "prompts, message",
    [
        ("text", "expected one Prompt or more, got a str"),
        (["a", "b"], "got a str"),
        ([1, 5, 9], "got a int"),
        (torch.tensor([[1, 5]]), "got a Tensor"),
        ([], "got none"),
        (prompts_of_ids(IDS) + prompts_of_ids(IDS), "two are named 'ids-0'"),
    ],
)
def test_what_is_no_prompt_is_told_how_to_become_one(prompts, message):
    with pytest.raises(InterpError, match=message):
        as_prompts(prompts)


def test_roles_by_name_one_or_several_and_as_functions(bare):
    prompts = prompts_of_ids(IDS)

    def mine(prompt):
        return [(2, 0)]

    for roles, names in (
        ("induction", {"induction"}),
        (["induction", "sink_first"], {"induction", "sink_first"}),
        (mine, {"mine"}),
        (interp.ROLES, set(interp.ROLES)),
        (None, set(interp.ROLES)),
    ):
        assert set(score_heads(bare, prompts, roles).summary.role) == names
    for roles, message in ((["induction"] * 2, "twice"), ([3], "got a int"), ([], "none given")):
        with pytest.raises(InterpError, match=message):
            score_heads(bare, prompts, roles)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(confidence=95.0), "confidence=95.0: expected a share"),
        (dict(seed=-1), "seed=-1"),
        (dict(batch_size=0), "batch_size=0"),
    ],
)
def test_numbers_out_of_range_are_refused(bare, options, message):
    with pytest.raises(InterpError, match=message):
        score_heads(bare, prompts_of_ids(IDS), **options)


def test_many_copies_are_counted_before_they_are_listed():
    prompt = prompts_of_ids([[7] * 3_000])[0]
    with pytest.raises(InterpError, match="4,498,500 pairs of copies, over 4,000,000"):
        interp.ROLES["duplicate_token"].pairs(prompt)
    shorter = prompts_of_ids([[7] * 300])[0]
    assert len(interp.ROLES["duplicate_token"].pairs(shorter)) == 300 * 299 // 2
    assert len(interp.ROLES["induction_last"].pairs(prompt)) == 0  # the target is the token itself


def test_gradients_through_a_learned_sink_equal_those_of_eager_attention():
    ids = torch.tensor([[3, 4, 5, 6, 7, 8, 9]])
    gradients = []
    for door in (True, False):
        hf_model = tiny_model("gpt_oss")
        with open_door(hf_model) if door else implementation(hf_model, "eager"):
            hf_model(ids, use_cache=False).logits.square().mean().backward()
        gradients.append({name: p.grad for name, p in hf_model.named_parameters()})
    for name, ours in gradients[0].items():
        torch.testing.assert_close(ours, gradients[1][name], atol=1e-4, rtol=1e-3, msg=name)


def test_gradients_pass_through_the_pattern():
    hf_model = tiny_model("llama")
    kept = []
    with open_door(
        hf_model, lambda layer, p, z: kept.append(p.keys(torch.tensor([0]))), engine="tiled"
    ):
        hf_model(torch.tensor([[3, 4, 5, 6]]), use_cache=False)
    kept[-1].sum().backward()
    assert hf_model.model.layers[0].self_attn.q_proj.weight.grad.abs().sum() > 0


def test_threads_that_share_a_model_wait_for_each_other(bare):
    expected = score_heads(bare, prompts_of_ids(IDS), ["sink_first"]).per_prompt
    own = bare.hf_model.config._attn_implementation
    failures = []

    def work():
        try:
            for _ in range(5):
                found = score_heads(bare, prompts_of_ids(IDS), ["sink_first"]).per_prompt
                assert found.equals(expected)
        except BaseException as error:  # a thread's exception would be lost
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert bare.hf_model.config._attn_implementation == own
