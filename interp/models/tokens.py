"""Text to token ids and back: the BOS rule, ordinary tokens, padding.

The BOS rule. Many heads rest on the first token, so whether that is BOS is never left to chance:

- "on": exactly one BOS at position 0, whether or not the tokenizer adds one by itself;
- "off": no BOS at position 0, even if the tokenizer adds one by itself;
- "tokenizer": what the tokenizer puts in front by itself, but never a second BOS.

Text that brings its own BOS (a rendered chat template, say) keeps that one. With "off" such text is
refused rather than cut: the text and the rule contradict each other, and only the user knows which
of the two is meant. What a tokenizer would add *behind* the text (EOS, SEP) is always left out,
since a prompt ends where the user ended it. BOS elsewhere than at position 0 is left alone.

Padding. Masks come from the lengths of the prompts and never from comparing ids with a padding id,
which may well be a real token (GPT-2's BOS, EOS and padding are one id). Position ids count the
real tokens from 0, so absolute-position models see the same positions on either side.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence, Sized
from typing import Any, Literal, cast, get_args

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from interp.errors import InterpError

Bos = Literal["on", "off", "tokenizer"]
Side = Literal["right", "left"]

RESERVED = re.compile(
    r"madeupword\d+|[<\[]\|?(unused|reserved|extra|placeholder).*[>\]]", re.IGNORECASE
)
"""Strings of vocabulary entries that stand for nothing, such as "<unused7>" or "[unused12]"."""

_BYTE_OF = {character: byte for byte, character in bytes_to_unicode().items()}


def bos_id(tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """The id of the tokenizer's BOS token; None if it has none, or if there is no tokenizer."""
    return None if tokenizer is None else tokenizer.bos_token_id


def prefix_ids(tokenizer: PreTrainedTokenizerBase | None, bos: Bos) -> list[int]:
    """What this rule puts before ordinary text: nothing, BOS, or all that the tokenizer puts there.

    Raises:
        InterpError: "on" without a BOS token, a rule that is none, or no tokenizer.
    """
    tokenizer = _required(tokenizer)
    _check_rule(bos)
    first = bos_id(tokenizer)
    if bos == "off":
        return []
    if bos == "on":
        return [_required_bos(tokenizer)]
    for token in sorted(tokenizer.get_vocab().values()):
        # Any text that gives ids will do; some tokenizers have no token for a plain letter.
        text = cast(str, tokenizer.decode([token], skip_special_tokens=True))
        body = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if text else []
        if body and first not in body:
            return _added_in_front(tokenizer, text, body)
    raise InterpError(f"{_label(tokenizer)} gives no ids for any text of its own vocabulary")


def encode(tokenizer: PreTrainedTokenizerBase | None, text: str, *, bos: Bos) -> list[int]:
    """The token ids of a text under a BOS rule (see the head of this file).

    Raises:
        InterpError: no tokenizer, an empty text, "on" without a BOS token, "off" for text that
            brings its own BOS, text that begins with two.
    """
    tokenizer = _required(tokenizer)
    _check_rule(bos)
    body = plain_ids(tokenizer, text)
    first = bos_id(tokenizer)
    if first is not None and body[:2] == [first, first]:
        raise InterpError(
            f"the prompt {text[:40]!r} begins with two BOS tokens "
            f"({tokenizer.bos_token!r}): remove one"
        )
    begins = first is not None and body[0] == first
    if bos == "off":
        if begins:
            raise InterpError(
                f"the prompt {text[:40]!r} itself begins with the BOS token "
                f"{tokenizer.bos_token!r}, but bos is off: remove it there, or set bos to on"
            )
        return body
    if bos == "on":
        return body if begins else [_required_bos(tokenizer), *body]
    prefix = _added_in_front(tokenizer, text, body)
    return [token for token in prefix if not (begins and token == first)] + body


def plain_ids(tokenizer: PreTrainedTokenizerBase | None, text: str) -> list[int]:
    """The ids of a text and nothing else: no special token is added on either side.

    Raises:
        InterpError: a text that is no Unicode, or that gives no ids; no tokenizer.
    """
    tokenizer = _required(tokenizer)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InterpError(
            f"the prompt {text[:40]!a} holds half a surrogate pair: it is no Unicode text"
        )
    body = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if not body:
        raise InterpError(f"the prompt {text!r} is empty: expected at least one token")
    return body


def ordinary_ids(tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> list[int]:
    """Ids of tokens that may stand in ordinary text, in ascending order.

    Left out: ids the model has no embedding for, ids the tokenizer has no token for, special and
    added tokens, and entries whose string says that they are unused or reserved.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: the number of rows of the model's embedding.

    Raises:
        InterpError: none are left, or no tokenizer.
    """
    tokenizer = _required(tokenizer)
    left_out = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ids = [
        token_id
        for token, token_id in tokenizer.get_vocab().items()
        if token_id < vocab_size and token_id not in left_out and not RESERVED.fullmatch(token)
    ]
    if not ids:
        raise InterpError(
            f"no ordinary tokens left to draw: {_label(tokenizer)} has {len(tokenizer)} tokens, "
            f"the model {vocab_size} embeddings; is this the model's own tokenizer?"
        )
    return sorted(ids)


def token_strings(
    tokenizer: PreTrainedTokenizerBase | None, ids: Iterable[int] | Tensor
) -> list[str]:
    """What each id of a prompt stands for: leading spaces kept, parts of characters as bytes.

    " the" stays apart from "the"; a token that is only part of a UTF-8 character reads "<0xE2>";
    an id without a token reads "<id 50290>".
    """
    tokenizer = _required(tokenizer)
    rows = ids.tolist() if isinstance(ids, Tensor) else ids
    return [_token_string(tokenizer, token_id) for token_id in rows]


def check_ids(ids: Sequence[int], vocab_size: int, where: str) -> None:
    """Refuse ids that have no embedding.

    Raises:
        InterpError: naming the first such id and its position.
    """
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InterpError(
                f"{where}: id {token_id} at position {position} is not in the model's vocabulary "
                f"(0 to {vocab_size - 1}); is this the model's own tokenizer?"
            )


def check_length(ids: Sized, n_ctx: int | None, where: str, cure: str = "shorten it") -> None:
    """Refuse a prompt that is longer than the model's context (`n_ctx` tokens, None: unlimited).

    Args:
        cure: what to do about it, for the message.

    Raises:
        InterpError: naming both numbers.
    """
    if n_ctx is not None and len(ids) > n_ctx:
        raise InterpError(f"{where}: {len(ids)} tokens > {n_ctx}, the model's context; {cure}")


def id_lists(ids: Tensor | Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
    """A batch of id lists, from a tensor or lists; one flat list of ids is a batch of one prompt.

    Raises:
        InterpError: no prompt, an empty prompt, or what is not a list (of lists) of integers.
    """
    rows: list[Any] = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    if rows and all(isinstance(row, int) for row in rows):
        rows = [rows]
    if not rows:
        raise InterpError("no prompt given: expected at least one list of token ids")
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple) or not all(type(token) is int for token in row):
            raise InterpError(f"prompt {number}: expected a list of token ids, got {row!r:.60}")
        if not row:
            raise InterpError(f"prompt {number} is empty: expected at least one token")
    return [list(row) for row in rows]


def pad(
    ids: Tensor | Sequence[int] | Sequence[Sequence[int]], side: Side = "right", pad_id: int = 0
) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """Prompts of unequal length as one batch of int64 tensors on the CPU.

    Args:
        ids: one list of ids a prompt (one flat list is one prompt).
        side: where the padding goes.
        pad_id: any id the model has an embedding for; it is masked, so it may be a real token's.

    Returns:
        `input_ids`, `attention_mask` (1 = real token) and `position_ids` (0, 1, … over the real
        tokens; padding gets the position of its nearest real token).

    Raises:
        InterpError: no prompt, or an empty one.
    """
    rows = id_lists(ids)
    longest = max(len(row) for row in rows)
    input_ids = torch.full((len(rows), longest), pad_id, dtype=torch.long)
    mask = torch.zeros_like(input_ids)
    for number, row in enumerate(rows):
        real = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
        input_ids[number, real] = torch.tensor(row)
        mask[number, real] = 1
    return input_ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def last_positions(attention_mask: Int[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """The index of each prompt's last real token in its padded row, whichever side is padded."""
    reversed_mask = attention_mask.flip(-1)
    return attention_mask.shape[-1] - 1 - reversed_mask.argmax(-1)


def _required(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise InterpError(
            "this model has no tokenizer, so it takes token ids and not text: give ids, or load it "
            "with load_model((hf_model, tokenizer))"
        )
    return tokenizer


def _check_rule(bos: object) -> None:
    if bos not in get_args(Bos):
        raise InterpError(f"bos: expected one of {', '.join(get_args(Bos))}, got {bos!r}")


def _required_bos(tokenizer: PreTrainedTokenizerBase) -> int:
    first = bos_id(tokenizer)
    if first is None:
        raise InterpError(
            f"BOS could not be added: {_label(tokenizer)} has no BOS token; set bos to off or "
            "tokenizer, or give the tokenizer a bos_token"
        )
    return first


def _label(tokenizer: PreTrainedTokenizerBase) -> str:
    return f"the tokenizer {tokenizer.name_or_path or type(tokenizer).__name__}"


def _added_in_front(tokenizer: PreTrainedTokenizerBase, text: str, body: list[int]) -> list[int]:
    """What the tokenizer itself puts before a text whose own ids are `body`."""
    whole = tokenizer(text, verbose=False)["input_ids"]
    for start in range(len(whole) - len(body) + 1):
        if whole[start : start + len(body)] == body:
            return whole[:start]
    raise InterpError(
        f"{_label(tokenizer)} changes the ids of {text[:40]!r} when it adds its special tokens, so "
        "what it adds can't be told apart: set bos to on or off"
    )


def _token_string(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    token: str | None
    try:
        token = cast(str | None, tokenizer.convert_ids_to_tokens(token_id))
    except (IndexError, KeyError, OverflowError):  # slow tokenizers raise, fast ones say None
        token = None
    if token is None:
        return f"<id {token_id}>"
    if "▁" in token:  # SentencePiece's space; its decoder would strip a leading one
        return token.replace("▁", " ")
    if re.fullmatch("<0x[0-9A-F]{2}>", token):  # SentencePiece's byte
        return token
    text = str(tokenizer.decode([token_id], clean_up_tokenization_spaces=False))
    if "\N{REPLACEMENT CHARACTER}" in text and all(c in _BYTE_OF for c in token):
        return "".join(f"<0x{_BYTE_OF[character]:02X}>" for character in token)
    return text
