"""What heads write and what the unembedding makes of it: parts add up, and agree with hands."""

import pytest
import torch

from interp.editing.edits import Recording, Replace, edited
from interp.editing.sites import Site
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.inputs.tasks import Example, Task
from interp.interventions.direct import decompose
from interp.interventions.outputs import Ending, Frozen, Writing, observed, sites_for_outputs
from interp.models.forward import logits_at
from interp.models.model import load_model
from tests.families import BYPASSING, CONFIGS, N_LAYERS, tiny_model

SERVED = [family for family in CONFIGS if family not in BYPASSING]
IDS = torch.tensor([[5, 17, 3, 42, 8, 17, 29], [50, 2, 31, 8, 8, 19, 4]])
WHERE = torch.tensor([[6, 3], [6, 5]])


def tiny(family):
    return load_model((tiny_model(family), None))


def passed(model):
    recording = observed(model, IDS, WHERE, sites_for_outputs(model, "mlp_out", "resid_pre"))
    return recording, Ending.of(model, recording, WHERE)


def at(tensor, where=WHERE):
    return tensor.gather(1, where[..., None].expand(-1, -1, tensor.shape[-1]))


@pytest.mark.parametrize("family", SERVED)
def test_what_is_written_adds_up_to_the_logits(family):
    """Embedding, every head, every MLP and what no head writes, through the frozen final norm."""
    model = tiny(family)
    recording, ending = passed(model)
    parts = [at(recording[Site("resid_pre", 0)])]
    for layer in range(N_LAYERS):
        z = recording[Site("z", layer)]
        index = WHERE[:, None, :, None].expand(-1, z.shape[1], -1, z.shape[-1])
        heads = Writing(model, layer, recording)(z.gather(2, index), WHERE)
        whole = at(recording[Site("attn_out", layer)])
        parts += [*heads.unbind(1), whole - heads.sum(1), at(recording[Site("mlp_out", layer)])]
    total = sum(ending.frozen(part) for part in parts)
    torch.testing.assert_close(total, ending.final - ending.frozen.norm.bias, atol=2e-4, rtol=1e-3)
    logits = logits_at(model, IDS, WHERE)
    if getattr(model.config, "final_logit_softcapping", None):
        return
    direction = (ending.unembedding[11] - ending.unembedding[23]).expand_as(ending.final)
    by_parts = sum(ending.direct(part, direction) for part in parts)
    bias = model.hf_model.get_output_embeddings().bias
    constant = ending.factor * (ending.frozen.norm.bias @ direction[0, 0]).item()
    constant += 0 if bias is None else (bias[11] - bias[23]).item()
    expected = (logits[..., 11] - logits[..., 23]).mean(-1) - constant
    torch.testing.assert_close(by_parts, expected, atol=2e-4, rtol=1e-3)


def test_a_head_by_hand():
    """Llama: its columns of the output projection, the final norm's gain, its scale held."""
    model = tiny("llama")
    recording, ending = passed(model)
    layer, head, d = 1, 2, model.d_head
    z = recording[Site("z", layer)]
    weight = model.hf_model.model.layers[layer].self_attn.o_proj.weight
    written = z[:, head] @ weight[:, head * d : (head + 1) * d].T
    found = Writing(model, layer, recording)(z)[:, head]
    torch.testing.assert_close(found, written, atol=1e-5, rtol=1e-4)
    norm = model.hf_model.model.norm
    stream = at(recording[Site("resid_post", N_LAYERS - 1)])
    scale = (stream.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    u = model.hf_model.lm_head.weight[7]
    by_hand = (at(written) / scale * norm.weight @ u).mean(-1)
    torch.testing.assert_close(
        ending.direct(at(found), u.expand_as(stream)), by_hand, atol=1e-5, rtol=1e-4
    )


def test_a_norm_of_another_form_is_refused():
    class Squared(torch.nn.Module):
        def forward(self, x):
            return x.square()

    x = torch.randn(2, 3, 8)
    with pytest.raises(InterpError, match="here: the norm is not a gain"):
        Frozen.at(Squared(), x, x.square(), "here")


@pytest.fixture
def task():
    prompts = [Prompt(tuple(row), f"p{i}") for i, row in enumerate(IDS.tolist())]
    other = Prompt((5, 17, 3, 9, 8, 33, 29), "c")
    return Task("t", tuple(Example(p, 11, 23, corrupted=other) for p in prompts))


@pytest.mark.parametrize(
    "family", ["gptj", "gpt_neox", "cohere2", "llama", "gemma2", "olmo2", "gpt2"]
)
@pytest.mark.parametrize("how", ["zero", "resample"])
def test_total_is_direct_and_norm_and_later(family, how, task):
    model = tiny(family)
    table, difference = decompose(model, task, how)
    assert difference < 1e-4
    wide = table.pivot(index=["layer", "head", "prompt"], columns="edit", values="effect")
    wide.columns = [name.removeprefix(f"{how} ") for name in wide.columns]
    gap = wide.total - wide.direct - wide.norm - wide.later
    assert gap.abs().max() < 1e-9
    assert wide.direct.abs().max() > 1e-3 and wide.later.abs().max() > 1e-3
    if family in ("gptj", "gpt_neox", "cohere2"):
        # Attention and MLP side by side: nothing comes after a head of the last layer but the norm.
        assert wide.later[N_LAYERS - 1].abs().max() < 2e-4
    else:
        assert wide.later[N_LAYERS - 1].abs().max() > 1e-4


def test_direct_effects_by_hand(task):
    """Llama, one head: the stream before the final norm changed by what it writes, and nothing else."""
    model = tiny("llama")
    table, _ = decompose(model, task, "zero")
    layer, head = 1, 2
    recording, _ = passed(model)
    z = recording[Site("z", layer)]
    d = model.d_head
    weight = model.hf_model.model.layers[layer].self_attn.o_proj.weight
    written = (z[:, head] @ weight[:, head * d : (head + 1) * d].T)[:, -1]
    last = Site("resid_post", N_LAYERS - 1)
    stream = recording[last][:, -1]
    norm, unembed = model.hf_model.model.norm, model.hf_model.lm_head
    scale = (stream.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
    with torch.no_grad():
        clean, recomputed = unembed(norm(stream)), unembed(norm(stream - written))
        held = unembed((stream - written) / scale * norm.weight)

    def difference(logits):
        return logits[:, 11] - logits[:, 23]

    def found(part):
        rows = table[(table.layer == layer) & (table["head"] == head)]
        return torch.tensor(rows[rows.edit == f"zero {part}"].effect.to_numpy()).float()

    direct = difference(held) - difference(clean)
    torch.testing.assert_close(found("direct"), direct, atol=1e-4, rtol=1e-3)
    norm_part = difference(recomputed) - difference(held)
    torch.testing.assert_close(found("norm"), norm_part, atol=1e-4, rtol=1e-3)


def test_the_final_site_is_the_last_layers():
    model = tiny("llama")
    with (
        pytest.raises(InterpError, match="behind layer 2 only"),
        edited(model, recording=Recording([Site("final", 0)])),
    ):
        pass
    zero = Replace.zero(Site("final", N_LAYERS - 1))
    with edited(model, zero):
        logits = logits_at(model, IDS, WHERE)
    assert logits.abs().max() == 0  # no bias: nothing is left to unembed
