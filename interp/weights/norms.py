"""The linear part of a norm, measured rather than looked up.

    norm(x) = centred(x) / scale(x) · gain + bias       x (size); centred: less its mean, or x as it is
    reading:   norm(x) W   = x / scale · into_rows(W)     + bias W          a matrix behind the norm
    writing:   norm(z W)   = z into_columns(W) / scale    + bias            a matrix before it

RMS norms don't centre, layer norms do, with or without weights (Zhang & Sennrich, 1910.07467; Ba et al.,
1607.06450). Some keep their gain as a difference from 1 (Gemma). None of that has to be known: three
vectors through the module tell.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class Norm:
    """The linear part of a norm.

    Attributes:
        gain, bias: (size,), float32.
        centres: whether the mean is taken off.
    """

    gain: Float[Tensor, " size"]
    bias: Float[Tensor, " size"]
    centres: bool

    @classmethod
    def measured(cls, norm: nn.Module, size: int, like: Tensor) -> Norm:
        """From what the module makes of x, −x and x + c, however it stores its gain (Gemma: less 1)."""
        x = torch.ones(size)
        x[1::2] = -1
        x = 16 * (x - x.mean()) / (x - x.mean()).square().mean().sqrt()  # large against epsilon
        probes = torch.stack([x, -x, x + 16])[:, None].to(like.device, like.dtype)
        with torch.no_grad():
            plus, minus, moved = norm(probes).float().cpu()[:, 0]
        bias = (plus + minus) / 2
        gain = (plus - minus) / 2 / (x / 16)
        change = (moved - plus).abs().max()
        centres = bool(change <= 1e-2 * (plus - bias).abs().max())
        return cls(gain.to(like.device), bias.to(like.device), centres)

    @classmethod
    def absent(cls, size: int, like: Tensor) -> Norm:
        """No norm there."""
        one = torch.ones(size, device=like.device)
        return cls(one, torch.zeros_like(one), False)

    def centred(self, x: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
        """x less its mean, if the norm takes it off."""
        return x - x.mean(-1, keepdim=True) if self.centres else x

    def into_rows(
        self, weight: Float[Tensor, "*batch size out"]
    ) -> Float[Tensor, "*batch size out"]:
        """What reads x / scale as ``weight`` reads norm(x), the bias left out."""
        return self.centred((self.gain[:, None] * weight).mT).mT

    def into_columns(
        self, weight: Float[Tensor, "*batch in size"]
    ) -> Float[Tensor, "*batch in size"]:
        """What writes as ``weight`` does with this norm behind it, its scale and bias left out."""
        return self.centred(weight) * self.gain
