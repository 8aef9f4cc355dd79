"""The door against the library's own eager attention, on every family, padded and not."""

import pytest
import torch

from interp.attention.door import open_door
from tests.families import BYPASSING, CONFIGS, VOCAB_SIZE, tiny_model

SERVED = [name for name in CONFIGS if name not in BYPASSING]


def inputs(side: str, n: int = 12) -> dict[str, torch.Tensor]:
    """Two rows of n tokens; the first is three tokens shorter when padded."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, VOCAB_SIZE, (2, n), generator=generator)
    mask = torch.ones_like(ids)
    if side == "left":
        mask[0, :3] = 0
    elif side == "right":
        mask[0, -3:] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return dict(input_ids=ids, attention_mask=mask, position_ids=positions)


def accepted(hf_model, batch):
    """Drop position ids where the architecture takes none."""
    import inspect

    names = inspect.signature(hf_model.forward).parameters
    return {k: v for k, v in batch.items() if k in names or k != "position_ids"}


def eager(hf_model, batch):
    hf_model.set_attn_implementation("eager")
    with torch.no_grad():
        out = hf_model(**batch, output_attentions=True, use_cache=False)
    return out.logits, out.attentions


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("engine", ["auto", "tiled"])
@pytest.mark.parametrize("family", SERVED)
def test_patterns_and_logits_equal_eager_attention(family, engine, side):
    hf_model = tiny_model(family)
    batch = accepted(hf_model, inputs(side))
    logits, weights = eager(hf_model, batch)
    seen = {}
    with (
        open_door(hf_model, lambda layer, p, z: seen.update({layer: p}), engine=engine),
        torch.no_grad(),
    ):
        ours = hf_model(**batch, use_cache=False).logits
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(ours[real], logits[real], atol=2e-5, rtol=1e-4)
    assert sorted(seen) == list(range(len(weights)))
    for layer, theirs in enumerate(weights):
        both = real[:, None, :, None]
        difference = ((seen[layer].dense() - theirs) * both).abs().max()
        assert difference < 1e-5, (family, layer, difference)
