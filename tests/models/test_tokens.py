"""Text to ids and back: the BOS rule, ordinary tokens, padding (cases C01 to C13, C66, C67)."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from interp.errors import InterpError
from interp.models.tokens import (
    bos_id,
    check_ids,
    check_length,
    encode,
    id_lists,
    last_positions,
    ordinary_ids,
    pad,
    prefix_ids,
    token_strings,
)
from tests.families import tiny_model
from tests.tokenizers_ import BOS, EOS, word_tokenizer

BOTH = pytest.mark.parametrize("fixture", ["tokenizer", "auto_bos_tokenizer"])
RULES = ["on", "off", "tokenizer"]


# ------------------------------------------------------------------------------------ the BOS rule


@BOTH
@pytest.mark.parametrize("bos", ["on", "tokenizer"])
def test_text_that_brings_its_bos_has_one(fixture, bos, request):  # C01
    assert encode(request.getfixturevalue(fixture), "<bos> t5 t6", bos=bos) == [1, 5, 6]


@BOTH
def test_on_and_off_mean_the_same_for_every_tokenizer(fixture, request):  # C02, C03, C05
    tokenizer = request.getfixturevalue(fixture)
    assert encode(tokenizer, "t5 t6", bos="on") == [1, 5, 6]
    assert encode(tokenizer, "t5 t6", bos="off") == [5, 6]
    assert prefix_ids(tokenizer, "on") == [1]
    assert prefix_ids(tokenizer, "off") == []


def test_tokenizer_rule_does_as_the_tokenizer_does(tokenizer, auto_bos_tokenizer):
    assert encode(tokenizer, "t5 t6", bos="tokenizer") == [5, 6]
    assert encode(auto_bos_tokenizer, "t5 t6", bos="tokenizer") == [1, 5, 6]
    assert 1 not in prefix_ids(tokenizer, "tokenizer")
    assert prefix_ids(auto_bos_tokenizer, "tokenizer") == [1]


@BOTH
@pytest.mark.parametrize("bos", RULES)
def test_two_bos_in_the_text_are_refused(fixture, bos, request):  # C01
    with pytest.raises(InterpError, match=r"'<bos><bos> t5' begins with two BOS tokens"):
        encode(request.getfixturevalue(fixture), "<bos><bos> t5", bos=bos)


@BOTH
def test_off_contradicts_text_with_bos(fixture, request):
    with pytest.raises(InterpError, match=r"begins with the BOS token '<bos>', but bos is off"):
        encode(request.getfixturevalue(fixture), "<bos> t5", bos="off")


@BOTH
@pytest.mark.parametrize("bos", ["on", "tokenizer"])
def test_rendered_chat_template_has_one_bos(fixture, bos, request):  # C04
    tokenizer = copy.deepcopy(request.getfixturevalue(fixture))
    tokenizer.chat_template = "{{ bos_token }} {{ messages[0]['content'] }}"
    chat = [{"role": "user", "content": "t5 t6"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    straight = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
    assert encode(tokenizer, text, bos=bos) == straight == [1, 5, 6]


def test_bos_in_the_middle_stays(tokenizer):  # C06
    assert encode(tokenizer, "t5 <bos> t6", bos="on") == [1, 5, 1, 6]


def test_no_bos_token_can_not_be_switched_on(tmp_path):  # C05
    tokenizer = word_tokenizer(tmp_path, bos_token=None)
    with pytest.raises(InterpError, match=r"BOS could not be added: .* has no BOS token"):
        encode(tokenizer, "t5 t6", bos="on")
    assert bos_id(tokenizer) is None
    assert encode(tokenizer, "t5 t6", bos="tokenizer") == [5, 6]
    assert 1 not in prefix_ids(tokenizer, "tokenizer")


def test_one_token_for_bos_eos_and_padding(tmp_path):  # GPT-2
    tokenizer = word_tokenizer(tmp_path, bos_token="<eos>", pad_token="<eos>")
    assert bos_id(tokenizer) == EOS
    assert encode(tokenizer, "t5 <eos> t6", bos="on") == [2, 5, 2, 6]
    assert encode(tokenizer, "<eos> t5", bos="on") == [2, 5]
    assert encode(tokenizer, "t5 <eos>", bos="off") == [5, 2]


def test_nothing_is_added_behind_the_text(tmp_path):
    tokenizer = word_tokenizer(tmp_path, template="<bos> $A <eos>")
    assert tokenizer("t5 t6")["input_ids"] == [1, 5, 6, 2]
    for bos, expected in (("on", [1, 5, 6]), ("off", [5, 6]), ("tokenizer", [1, 5, 6])):
        assert encode(tokenizer, "t5 t6", bos=bos) == expected
    assert encode(tokenizer, "t5 <eos>", bos="tokenizer") == [1, 5, 2]  # the user's own


def test_tokenizer_rule_keeps_all_it_puts_in_front(tmp_path):
    tokenizer = word_tokenizer(tmp_path, template="<eos> <bos> $A")
    assert encode(tokenizer, "t5", bos="tokenizer") == [2, 1, 5]
    assert encode(tokenizer, "<bos> t5", bos="tokenizer") == [2, 1, 5]
    assert encode(tokenizer, "t5", bos="on") == [1, 5]


@pytest.mark.parametrize("bos", RULES)
@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_prompt(auto_bos_tokenizer, text, bos):  # C65
    with pytest.raises(InterpError, match="is empty: expected at least one token"):
        encode(auto_bos_tokenizer, text, bos=bos)


def test_without_tokenizer_there_is_no_text():
    for call in (
        lambda: encode(None, "t5", bos="off"),
        lambda: ordinary_ids(None, 61),
        lambda: token_strings(None, [5]),
        lambda: prefix_ids(None, "on"),
    ):
        with pytest.raises(InterpError, match="no tokenizer, so it takes token ids and not text"):
            call()
    assert bos_id(None) is None


# --------------------------------------------------------------------------------- ordinary tokens


def test_special_and_added_tokens_are_not_ordinary(tmp_path):  # C07
    tokenizer = word_tokenizer(tmp_path)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<call>"]})  # id 64
    tokenizer.add_tokens(["added"])  # id 65, not special
    assert tokenizer.convert_tokens_to_ids(["<call>", "added"]) == [64, 65]
    assert ordinary_ids(tokenizer, 70) == list(range(3, 64))


def test_ids_without_embedding_are_not_ordinary(tokenizer):  # C07
    assert ordinary_ids(tokenizer, 61) == list(range(3, 61))


def test_ids_without_token_are_not_ordinary():  # a vocabulary with holes, as Pythia's at its end
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 4}, unk_token="a"))
    )
    assert ordinary_ids(tokenizer, 9) == [0, 4]


def test_reserved_entries_are_not_ordinary():
    reserved = ["<unused7>", "[unused12]", "<|reserved_special_token_3|>", "<extra_id_0>",
                "madeupword0001", "<|placeholder1|>"]  # fmt: skip
    words = ["[i]", "<b>", "unused", "<|", "reserved>", *reserved]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(
            models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[i]")
        )
    )
    assert ordinary_ids(tokenizer, 99) == [0, 1, 2, 3, 4]


def test_no_ordinary_tokens_left(tokenizer):
    with pytest.raises(InterpError, match=r"no ordinary tokens left to draw: .* 64 tokens.* 3 emb"):
        ordinary_ids(tokenizer, 3)


# ------------------------------------------------------------------------------------ token strings


def byte_level(*words: str) -> PreTrainedTokenizerFast:
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_strings_of_byte_level_tokens():
    tokenizer = byte_level("Ġthe", "the", "Ċ", "âĢ")
    ids = tokenizer.convert_tokens_to_ids(["Ġthe", "the", "Ċ", "âĢ"])
    assert token_strings(tokenizer, ids) == [" the", "the", "\n", "<0xE2><0x80>"]
    euro = tokenizer("€")["input_ids"]
    assert token_strings(tokenizer, euro) == ["<0xE2>", "<0x82>", "<0xAC>"]


def test_strings_of_sentencepiece_tokens():
    backend = Tokenizer(
        models.BPE({"▁the": 0, "the": 1, "<0xE2>": 2, "▁": 3}, [], byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert tokenizer.decode([0]) == "the"  # the trap: its leading space is gone
    assert token_strings(tokenizer, [0, 1, 2, 3]) == [" the", "the", "<0xE2>", " "]


def test_strings_of_special_and_missing_ids(tokenizer):
    ids = torch.tensor([BOS, 5, 90])
    assert token_strings(tokenizer, ids) == ["<bos>", "t5", "<id 90>"]


# ------------------------------------------------------------------------------------------ checks


def test_too_long_names_both_numbers():  # C66
    with pytest.raises(InterpError, match=r"prompt 3: 10 tokens > 8, the model's context"):
        check_length(range(10), 8, "prompt 3")
    check_length(range(8), 8, "prompt 3")
    check_length(range(10), None, "prompt 3")


@pytest.mark.parametrize("bad", [-1, 61])
def test_id_outside_the_vocabulary(bad):
    with pytest.raises(InterpError, match=rf"prompt 3: id {bad} at position 1 .*\(0 to 60\)"):
        check_ids([0, bad, 60], 61, "prompt 3")
    check_ids([0, 60], 61, "prompt 3")


@pytest.mark.parametrize("ids", [[1, 5, 9], torch.tensor([1, 5, 9]), [[1, 5, 9]], [(1, 5, 9)]])
def test_a_flat_list_is_one_prompt(ids):  # C67
    assert id_lists(ids) == [[1, 5, 9]]
    assert pad(ids)[0].tolist() == [[1, 5, 9]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "no prompt given"),
        ([[5], []], "prompt 1 is empty"),
        (torch.zeros(2, 0, dtype=torch.long), "prompt 0 is empty"),
        (torch.tensor([[0.5]]), r"prompt 0: expected a list of token ids, got \[0.5\]"),
        (torch.zeros(1, 1, 2, dtype=torch.long), "prompt 0: expected a list of token ids"),
        (torch.tensor([[True]]), "prompt 0: expected a list of token ids, got"),
    ],
)
def test_what_is_no_batch(ids, message):
    with pytest.raises(InterpError, match=message):
        id_lists(ids)


# ----------------------------------------------------------------------------------------- padding


def test_padding_by_hand():
    ids, mask, positions = pad([[5, 6, 7], [8]], "right", pad_id=6)
    assert ids.tolist() == [[5, 6, 7], [8, 6, 6]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]  # the real 6 is not taken for padding
    assert positions.tolist() == [[0, 1, 2], [0, 0, 0]]
    ids, mask, positions = pad([[5, 6, 7], [8, 9]], "left", pad_id=6)
    assert ids.tolist() == [[5, 6, 7], [6, 8, 9]]
    assert mask.tolist() == [[1, 1, 1], [0, 1, 1]]
    assert positions.tolist() == [[0, 1, 2], [0, 0, 1]]


@given(
    rows=st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=9), min_size=1, max_size=5),
    side=st.sampled_from(["left", "right"]),
    pad_id=st.integers(0, 60),
)
def test_padding_loses_nothing(rows, side, pad_id):  # C08, C12
    ids, mask, positions = pad(rows, side, pad_id)
    assert ids.dtype == mask.dtype == positions.dtype == torch.long
    for row, row_ids, row_mask, row_positions in zip(
        rows, ids, mask.bool(), positions, strict=True
    ):
        assert row_ids[row_mask].tolist() == row
        assert row_positions[row_mask].tolist() == list(range(len(row)))
        assert set(row_ids[~row_mask].tolist()) <= {pad_id}
    assert positions.min() >= 0 and positions.max() < ids.shape[1]
    last = last_positions(mask)
    assert ids[torch.arange(len(rows)), last].tolist() == [row[-1] for row in rows]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("special", [{}, {"pad_token": "<eos>"},
                                     {"pad_token": "<eos>", "bos_token": "<eos>"}])  # fmt: skip
@pytest.mark.parametrize("family", ["gpt2", "llama"])  # absolute and rotary positions
def test_a_batch_equals_its_prompts_alone(family, special, side, tmp_path):  # C08, C11, C13
    tokenizer = word_tokenizer(tmp_path, **special)
    texts = ["t5 <eos> t6 t7 <eos> t8", "t9 t10"]
    rows = [encode(tokenizer, text, bos="off") for text in texts]
    model = tiny_model(family)
    model.set_attn_implementation("eager")
    ids, mask, positions = pad(rows, side, tokenizer.pad_token_id)
    with torch.no_grad():
        batch = model(ids, attention_mask=mask, position_ids=positions, output_attentions=True)
        for number, row in enumerate(rows):
            real = mask[number].bool()
            alone = model(torch.tensor([row]), output_attentions=True)
            torch.testing.assert_close(
                batch.logits[number, real], alone.logits[0], atol=1e-5, rtol=0
            )
            for padded, single in zip(batch.attentions, alone.attentions, strict=True):
                weights = padded[number][:, real]
                assert (weights[:, :, ~real] == 0).all()  # C13
                torch.testing.assert_close(weights[:, :, real], single[0], atol=5e-6, rtol=0)
        inner_eos = batch.attentions[0][0][:, mask[0].bool()][:, 2:, mask[0].bool()][:, :, 1]
        assert (inner_eos > 0).all()


def test_the_tokenizer_is_left_as_it_was(tokenizer):  # C12
    before = (tokenizer.padding_side, tokenizer.init_kwargs.copy(), len(tokenizer))
    for bos in RULES:
        encode(tokenizer, "t5 t6 t7", bos=bos)
    ordinary_ids(tokenizer, 61), token_strings(tokenizer, [5])
    assert (tokenizer.padding_side, tokenizer.init_kwargs, len(tokenizer)) == before


def test_a_long_text_is_not_cut_by_the_tokenizer(tmp_path):  # our check decides, not theirs
    word_tokenizer(tmp_path, model_max_length=4)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert len(encode(tokenizer, "t5 " * 9, bos="on")) == 10
