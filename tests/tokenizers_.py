"""Tiny offline tokenizers: one word, one id.

The vocabulary is `<pad>`=0, `<bos>`=1, `<eos>`=2, `t3`=3 ... `t63`=63, so that "t5 t6" is [5, 6]
and every expected id can be read off the text.
"""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, BOS, EOS = 0, 1, 2
VOCABULARY = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS} | {f"t{i}": i for i in range(3, 64)}


def word_tokenizer(
    folder: Path, *, template: str | None = None, **special_tokens: str | list[str] | None
) -> PreTrainedTokenizerBase:
    """A word-level tokenizer, saved to `folder` and read back as a user's would be.

    Args:
        folder: where it is saved (an existing model folder may serve).
        template: what the tokenizer adds by itself, such as "<bos> $A" or "<bos> $A <eos>".
        special_tokens: keywords such as `bos_token=None` that override the three above.
    """
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if template is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
        )
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"} | special_tokens
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)
