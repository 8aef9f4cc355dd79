"""The checks before a run: they pass on what is supported, and stop a run where something is off."""

import pytest
import torch

from interp.errors import InterpError
from interp.models import checks
from interp.models.checks import check_model
from interp.models.model import load_model
from tests.families import BYPASSING, CONFIGS, tiny_model


@pytest.mark.parametrize("family", CONFIGS)
def test_checks_pass_on_every_family(family):
    found = check_model(load_model((tiny_model(family), None)))
    assert len(found) == (1 if family in BYPASSING else 4)
    assert all(check["passed"] and check["difference"] <= check["allowed"] for check in found)


def test_a_family_whose_attention_is_not_what_it_says_is_stopped(monkeypatch):
    """An architecture that scales its scores after the door would be caught by its pattern."""
    import transformers.models.llama.modeling_llama as llama

    own = llama.eager_attention_forward

    def other(*args, **kwargs):
        return own(*args, **kwargs | {"scaling": 0.01})

    monkeypatch.setattr(llama, "eager_attention_forward", other)
    with pytest.raises(InterpError, match="fails the check 'pattern equals eager attention"):
        check_model(load_model((tiny_model("llama"), None)))


def test_nan_weights_are_stopped():
    hf_model = tiny_model("llama")
    with torch.no_grad():
        hf_model.lm_head.weight[3, 0] = torch.nan
    with pytest.raises(InterpError, match="logits are NaN or infinite"):
        check_model(load_model((hf_model, None)))


def test_half_precision_passes_with_its_own_tolerance():
    found = check_model(load_model((tiny_model("llama").bfloat16(), None)))
    assert all(check["passed"] for check in found)


def test_a_device_that_computes_something_else_would_be_seen():
    """C23: the comparison itself, since there is no other device here."""
    hf_model = tiny_model("gpt2")
    with torch.no_grad():
        logits = hf_model(torch.tensor([[3, 4, 5]])).logits[0, -1]
    model = load_model((hf_model, None))
    assert checks._cpu_error(model, [3, 4, 5], logits) < 1e-5
    assert checks._cpu_error(model, [3, 4, 5], -logits) > 0.1
