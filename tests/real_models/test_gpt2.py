"""GPT-2 small against the reference numbers that TransformerLens' head-detector demo stores.

Runs where `gpt2` is in the cache; `HF_HUB_OFFLINE=0 pytest -m gpt2` downloads it. The prompt is 25 tokens
with <|endoftext|> first; the figures are means over the demo's stored attention matrices, 4 decimals.
"""

import pytest
import torch

from interp.errors import InterpError
from interp.inputs.prompts import given_prompts
from interp.models.forward import capture
from interp.models.model import load_model

pytestmark = pytest.mark.gpt2

TEXT = (
    "The head detector feature for TransformerLens allows users to check for various common heads "
    "automatically, reducing the cost of discovery."
)
# layer, head: mean diagonal(−1), mean column 0 (query 0 included), mean diagonal
REFERENCE = {
    (4, 11): (0.9994, 0.0800, 0.0405),
    (2, 2): (0.5977, 0.1465, 0.1686),
    (4, 7): (0.1881, 0.2069, 0.5515),
    (5, 6): (0.1909, 0.8020, 0.0730),
    (0, 1): (0.0039, 0.0411, 0.9401),
    (0, 3): (0.1176, 0.0622, 0.8228),
    (5, 0): (None, 0.9406, None),
    (5, 1): (None, 0.9965, None),
    (5, 5): (None, 0.8912, None),
    (5, 9): (None, 0.8101, None),
}


@pytest.fixture(scope="module")
def means():
    try:
        model = load_model("gpt2")
    except InterpError as error:
        pytest.skip(f"gpt2 can't be had: {error}")
    prompt = given_prompts(model, [TEXT], bos="on")
    assert len(prompt[0].ids) == 25
    found = {}

    def look(layer, pattern, z):
        first = pattern.keys(torch.tensor([0]))[0, :, :, 0].mean(-1)
        previous, current = (pattern.offset(d)[0].mean(-1) for d in (1, 0))
        for head in range(pattern.n_heads):
            found[layer, head] = tuple(float(t[head]) for t in (previous, first, current))

    capture(model, prompt, look)
    return found


@pytest.mark.parametrize("place", REFERENCE)
def test_reference_scores(means, place):
    for ours, theirs in zip(means[place], REFERENCE[place], strict=True):
        assert theirs is None or ours == pytest.approx(theirs, abs=2e-3)
