"""What a head writes into the residual stream, and what the unembedding makes of it: linear, added up.

    written[h] = factor · N(W_O z[h])         Σ_h written[h] + constant = attn_out
    direct[h]  = F(written[h]) · u            F: the final norm, u: a direction of the unembedding

N is the norm behind attention (Gemma 2, OLMo 2; elsewhere nothing) and F the final norm, both with their
scale held at what it was for that token: so they are linear, and shares of heads add up to the whole. That
sum is checked at every use; an architecture in which it does not hold is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from interp.attention.kernels import Engine
from interp.editing.edits import Recording, edited
from interp.editing.sites import Site, adders, final_norm
from interp.errors import InterpError
from interp.models.forward import logits_at
from interp.models.model import Model
from interp.weights.norms import Norm

# How far the parts may miss the whole, as a share of the whole.
ADDS_UP = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE = 5e-2


@dataclass(frozen=True)
class Frozen:
    """A norm with the scale that it had for each token: linear in what goes in.

    Attributes:
        norm: its gain, and whether it centres.
        scale: (…, 1) what each token was divided by.
    """

    norm: Norm
    scale: Float[Tensor, "*token 1"]

    @classmethod
    def at(cls, module: nn.Module, x: Tensor, y: Tensor, where: str) -> Frozen:
        """From what went into the norm and came out of it.

        Raises:
            InterpError: it is not a gain on x / scale.
        """
        norm = Norm.measured(module, x.shape[-1], y)
        unit = norm.gain * norm.centred(x.float())
        rest = y.float() - norm.bias
        scale = unit.square().sum(-1, keepdim=True) / (unit * rest).sum(-1, keepdim=True)
        miss = (unit / scale - rest).norm() / rest.norm()
        if not miss <= ADDS_UP.get(y.dtype, COARSE):
            raise InterpError(
                f"{where}: the norm is not a gain on a scaled input (it misses by {float(miss):.2g}); "
                "its scale can't be held"
            )
        return cls(norm, scale)

    def __call__(self, part: Float[Tensor, "*token d"]) -> Float[Tensor, "*token d"]:
        """What a part of the input became; without the bias, which is no part's."""
        return self.norm.gain * self.norm.centred(part.float()) / self.scale


class Writing:
    """How the heads of one layer write, for the tokens of one pass.

    Args:
        model: whose.
        layer: from 0.
        recording: of a pass, with z and attn_out of the layer.
    """

    def __init__(self, model: Model, layer: int, recording: Recording) -> None:
        self.projection = model.component(f"blocks.{layer}.attn.o")
        self.dtype, found = model.dtype, adders(model, layer)
        self.factor = found.factor
        z, whole = (recording[Site(kind, layer)] for kind in ("z", "attn_out"))
        self.n_heads = z.shape[1]
        self.nothing = self._projected(torch.zeros_like(z[:1, :, :1]))  # the bias
        self.frozen: Frozen | None = None
        inside = {id(module) for module in found.attention.modules()}
        if id(self.projection) not in inside:  # a norm stands between
            projected = self._projected(z)
            behind = whole / self.factor
            where = f"layer {layer} of {model.architecture}, norm behind attention"
            self.frozen = Frozen.at(found.attention, projected, behind, where)
        written = self(z).sum(1)
        constant = self._behind(self.nothing.expand_as(written)) * self.factor
        if self.frozen is not None:
            constant = constant + self.factor * self.frozen.norm.bias
        miss = (written + constant - whole.float()).norm() / whole.float().norm()
        if not miss <= ADDS_UP.get(whole.dtype, COARSE):
            raise InterpError(
                f"layer {layer} of {model.architecture}: what the heads write misses the attention output by "
                f"{float(miss):.2g} of it; its heads do more than their output projection says"
            )

    def __call__(
        self, z: Float[Tensor, "batch head pos d_value"], positions: Tensor | None = None
    ) -> Float[Tensor, "batch head pos d_model"]:
        """What each head writes with this z, in float32.

        Args:
            positions: (batch, pos) of the tokens that z is of; all of the pass if not given.
        """
        parts = [
            self._behind(self._projected(z, only=head) - self.nothing, positions)
            for head in range(self.n_heads)
        ]
        return self.factor * torch.stack(parts, 1)

    def norms(
        self, value: Float[Tensor, "batch head key d_value"]
    ) -> Float[Tensor, "batch head key"]:
        """The norm of what a value is written as, by each head; before the scale of the query's token."""
        found = []
        for head in range(self.n_heads):
            written = self._projected(value, only=head) - self.nothing
            if self.frozen is not None:
                written = self.frozen.norm.gain * self.frozen.norm.centred(written)
            found.append(self.factor * written.norm(dim=-1))
        return torch.stack(found, 1)

    def scale_of(self, positions: Tensor) -> Float[Tensor, "batch pos"] | float:
        """What the norm behind attention divides a query's token by; 1 where there is none."""
        if self.frozen is None:
            return 1.0
        return self.frozen.scale[..., 0].gather(1, positions)

    def _projected(self, z: Tensor, only: int | None = None) -> Float[Tensor, "batch pos d_model"]:
        """Through the output projection: all heads, or one and zeros for the others."""
        if only is not None:
            alone = torch.zeros_like(z)
            alone[:, only] = z[:, only]
            z = alone
        flat = rearrange(z, "batch head pos d -> batch pos (head d)")
        with torch.no_grad():
            return self.projection(flat.to(self.dtype)).float()

    def _behind(self, part: Tensor, positions: Tensor | None = None) -> Tensor:
        """Through the norm behind attention, its scale held."""
        if self.frozen is None:
            return part
        frozen = self.frozen
        if positions is not None:
            scale = frozen.scale.gather(1, positions[..., None])
            frozen = Frozen(frozen.norm, scale)
        return frozen(part)


@dataclass(frozen=True)
class Ending:
    """The end of a pass at chosen positions: final norm held, and the unembedding.

    Attributes:
        stream: (batch, pos, d_model) residual stream after the last layer.
        final: (batch, pos, d_model) the same behind the final norm.
        frozen: the final norm with its scale held.
        unembedding: (d_vocab, d_model).
        factor: what logits are multiplied by (Cohere, Granite); 1 elsewhere.
    """

    stream: Float[Tensor, "batch pos d_model"]
    final: Float[Tensor, "batch pos d_model"]
    frozen: Frozen
    unembedding: Float[Tensor, "d_vocab d_model"]
    factor: float

    @classmethod
    def of(cls, model: Model, recording: Recording, positions: Tensor) -> Ending:
        """From a recording of resid_post and final of the last layer, at (batch, pos) positions."""
        last = model.n_layers - 1
        index = positions[..., None].expand(-1, -1, model.d_model)
        stream, final = (
            recording[Site(kind, last)].gather(1, index) for kind in ("resid_post", "final")
        )
        where = f"{model.architecture}, final norm"
        frozen = Frozen.at(final_norm(model), stream, final, where)
        weight = model.hf_model.get_output_embeddings().weight.detach()
        config = model.config
        factor = float(getattr(config, "logit_scale", None) or 1.0)
        factor /= float(getattr(config, "logits_scaling", None) or 1.0)
        return cls(stream, final, frozen, weight, factor)

    def direct(
        self,
        part: Float[Tensor, "batch pos d_model"],
        direction: Float[Tensor, "batch pos d_model"],
    ) -> Float[Tensor, " batch"]:
        """What a part of the final stream adds to a combination of logits, mean over positions; before a
        soft cap of the logits, where there is one."""
        return self.factor * (self.frozen(part) * direction).sum(-1).mean(-1)


def sites_for_outputs(model: Model, *more: str) -> list[Site]:
    """What must be recorded for :class:`Writing` of every layer, and :class:`Ending`."""
    kinds = ("z", "attn_out", *more)
    sites = [Site(kind, layer) for layer in range(model.n_layers) for kind in kinds]  # type: ignore[arg-type]
    return [*sites, Site("resid_post", model.n_layers - 1), Site("final", model.n_layers - 1)]


def observed(
    model: Model, ids: Tensor, where: Tensor, sites: list[Site], engine: Engine = "auto"
) -> Recording:
    """What a plain pass records."""
    recording = Recording(sites)
    with edited(model, recording=recording, engine=engine):
        logits_at(model, ids, where)
    return recording
