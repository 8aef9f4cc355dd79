"""What a head reads and writes, from the weights: its four matrices, with the norms folded in, and doubted.

    x (d_model) the residual stream, rows are vectors:       n = (x − mean x) / scale(x) · gain + bias
    q = n W_Q + b_Q      k = n W_K + b_K      v = n W_V + b_V      attn_out = Σ_heads z W_O + b_O
    W_QK = W_Q W_Kᵀ      W_OV = W_V W_O       (Elhage et al., A Mathematical Framework, 2021)

The scale of a norm is a positive number for each token, which drops out of every ratio. The rest of it is
linear (:mod:`interp.weights.norms`), and folded into the matrices beside it, as the field does:

    norm before attention        gain into the rows of W_Q, W_K, W_V; where it takes the mean off
                                 (LayerNorm), so do they, and so does W_O, whose mean nobody reads
    norm behind attention        gain into the columns of W_O (Gemma, OLMo 2)
    norm of queries and keys     gain into the columns of W_Q and W_K (Qwen3, Gemma 3, OLMo)
    final norm                   gain and mean into W_U; its mean over the vocabulary goes, which no
                                 softmax sees

Not in them: biases, the rotation of rotary models (W_QK is that of a query and a key at one position; so
are the gains of query and key norms), position embeddings, soft caps, constant factors.

TransformerLens splits fused projections (GPT-2, GPT-NeoX, Phi-3). What came of it is held against what
passes the door in five prompts of one token: queries, keys and values of all layers and, in float32,
attn_out of three must point where the folded matrices say. An architecture that does more (gates, latent
attention) is refused by name. With grouped queries, query head h has key-value head
h // (n_heads / n_kv_heads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.attention import door
from interp.editing.edits import Recording, edited
from interp.editing.sites import Kind, Site
from interp.errors import InterpError
from interp.models.forward import logits_at
from interp.models.model import Model
from interp.weights.norms import Norm

# Largest 1 − cosine between what passes the door and what the matrices give, by number type.
ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-6}
COARSE = 1e-3
PROBES = 5
PASSING: tuple[Kind, ...] = ("resid_pre", "q", "k", "v", "z")


@dataclass(frozen=True)
class LayerWeights:
    """The folded matrices of one layer's query heads, in float32.

    Attributes:
        layer: from 0.
        query, key, value: (head, d_model, d_head); heads of a group hold the same key and value.
        output: (head, d_head, d_model).
    """

    layer: int
    query: Float[Tensor, "head d_model d_head"]
    key: Float[Tensor, "head d_model d_head"]
    value: Float[Tensor, "head d_model d_head"]
    output: Float[Tensor, "head d_head d_model"]


class HeadWeights:
    """The folded matrices of a model's heads, layer by layer.

    Attributes:
        model: whose they are; the weights are read when they are asked for.
        layers: those with attention (a hybrid has others).

    Raises:
        InterpError: an architecture that bypasses the door, has latent attention, or does something else
            to queries, keys, values or outputs than its matrices say.
    """

    def __init__(self, model: Model) -> None:
        if not door.serves(model.hf_model):
            raise InterpError(
                f"{model.architecture} bypasses transformers' attention interface: its weights can't be "
                "held against what its heads do; choose a model that goes through it"
            )
        if getattr(model.config, "kv_lora_rank", None):
            raise InterpError(
                f"{model.architecture} has latent attention: a norm stands in the middle of its keys and "
                "values, so no W_K and W_V of a head exist"
            )
        self.model = model
        self._bridge = model.bridge()
        self.layers = tuple(layer for layer, _ in self._bridge.blocks_with("attn"))
        self._check()

    def layer(self, layer: int) -> LayerWeights:
        """The folded matrices of one layer.

        Raises:
            InterpError: no attention in that layer, or matrices of other sizes than the model's heads have.
        """
        if layer not in self.layers:
            raise InterpError(
                f"layer {layer} of {self.model.name}: no attention there; layers {self.layers} have it"
            )
        before, behind = self._norm(layer, "ln1"), self._norm(layer, "ln1_post")
        query, key, value = (
            before.into_rows(self._matrix(layer, f"W_{kind}"))
            * self._head_gain(layer, f"{kind}_norm")
            for kind in "QKV"
        )
        output = before.centred(behind.into_columns(self._matrix(layer, "W_O")))
        return LayerWeights(layer, query, self._expanded(key), self._expanded(value), output)

    def embedding(self) -> Float[Tensor, "d_vocab d_model"]:
        """W_E.

        Raises:
            InterpError: the embedding is of another size than the residual stream (some OPT).
        """
        return self._wide(self.model.hf_model.get_input_embeddings(), "W_E")

    def unembedding(self) -> Float[Tensor, "d_model d_vocab"]:
        """W_U with the final norm folded in, less its mean over the vocabulary."""
        weight = self._wide(self.model.hf_model.get_output_embeddings(), "W_U").T
        norm = self._measured("ln_final", self.model.d_model)
        return norm.into_rows(weight - weight.mean(-1, keepdim=True))

    def _wide(self, module: Any, name: str) -> Tensor:
        weight = module.weight.detach().float()
        if weight.shape[1] != self.model.d_model:
            raise InterpError(
                f"{name} of {self.model.name}: {weight.shape[1]} columns, expected d_model = "
                f"{self.model.d_model}; something stands between embedding and residual stream"
            )
        return weight

    def _matrix(self, layer: int, name: str) -> Tensor:
        """One matrix as TransformerLens splits it, in float32: (head, in, out), or a bias (head, out)."""
        model = self.model
        try:
            weight = getattr(self._bridge.blocks[layer].attn, name)
        except (NotImplementedError, AttributeError, ValueError) as error:
            raise InterpError(
                f"layer {layer} of {model.architecture}: TransformerLens can't give {name} head by head "
                f"({str(error).splitlines()[0]})"
            ) from error
        heads = model.n_kv_heads if name[-1] in "KV" else model.n_heads
        shape = {
            "W_O": (heads, model.d_head, model.d_model),
            "b_O": (model.d_model,),
            **dict.fromkeys(("W_Q", "W_K", "W_V"), (heads, model.d_model, model.d_head)),
            **dict.fromkeys(("b_Q", "b_K", "b_V"), (heads, model.d_head)),
        }[name]
        if weight is None and name[0] == "b":
            return torch.zeros(shape, device=model.device)
        if tuple(weight.shape) != shape:
            raise InterpError(
                f"layer {layer} of {model.architecture}: {name} is {tuple(weight.shape)}, expected {shape}"
            )
        return weight.detach().float()

    def _expanded(self, weight: Tensor) -> Tensor:
        """A key-value head's matrix for each of its query heads."""
        return weight.repeat_interleave(self.model.n_heads // len(weight), dim=0)

    def _norm(self, layer: int, name: str) -> Norm:
        """A norm of a block by TransformerLens' name for it; none if the block has none."""
        if name not in self._bridge.blocks[layer]._modules:
            return Norm.absent(self.model.d_model, self._like)
        return self._measured(f"blocks.{layer}.{name}", self.model.d_model)

    def _head_gain(self, layer: int, name: str) -> Float[Tensor, "head 1 d_head"]:
        """The gain of a norm of queries or keys, which is over one head or over all together."""
        model = self.model
        name = name.lower()
        heads = model.n_heads if name == "q_norm" else model.n_kv_heads
        if name not in self._bridge.blocks[layer].attn._modules:
            return torch.ones(heads, 1, model.d_head, device=model.device)
        module = model.component(f"blocks.{layer}.attn.{name}")
        weight = getattr(module, "weight", None)
        shape = (model.d_head,) if weight is None else tuple(weight.shape)
        if shape not in ((model.d_head,), (heads * model.d_head,)):
            raise InterpError(
                f"layer {layer} of {model.architecture}: {name} has gains {shape}, expected those of one "
                f"head, {model.d_head}, or of all {heads} in a row"
            )
        gain = self._measured(f"blocks.{layer}.attn.{name}", shape[0]).gain
        return gain.reshape(-1, 1, model.d_head).expand(heads, -1, -1)

    def _measured(self, path: str, size: int) -> Norm:
        return Norm.measured(self.model.component(path), size, self._like)

    @property
    def _like(self) -> Tensor:
        """Where things are and of which number type."""
        return torch.empty(0, device=self.model.device, dtype=self.model.dtype)

    # ------------------------------------------------------------------------- doubting the matrices

    def _check(self) -> None:
        """Hold the folded matrices of every layer against what passes the door."""
        model = self.model
        # Where attn_out leaves the block is searched for, which takes a pass a layer, and in half precision
        # a stream with massive activations hides it.
        n, exact = len(self.layers), model.dtype in ALLOWED
        searched = {self.layers[i] for i in (0, n // 2, n - 1)} if exact else ()
        kinds: dict[int, tuple[Kind, ...]] = {
            layer: (*PASSING, "attn_out") if layer in searched else PASSING for layer in self.layers
        }
        recording = Recording(Site(kind, layer) for layer in kinds for kind in kinds[layer])
        ids = torch.linspace(0, model.vocab_size - 1, PROBES + 2)[1:-1].long()[:, None]
        with edited(model, recording=recording):
            logits_at(model, ids.to(model.device), torch.zeros_like(ids).to(model.device))
        allowed = ALLOWED.get(model.dtype, COARSE)
        for layer in self.layers:
            seen: dict[str, Tensor] = {
                kind: recording[Site(kind, layer)].float() for kind in kinds[layer]
            }
            for what, there, said in self._claims(layer, seen):
                cosine = _cosine(there, said)
                if not 1 - cosine <= allowed:  # NaN too
                    raise InterpError(
                        f"layer {layer} of {model.name} ({model.architecture}): {what} is not what the "
                        f"matrices of its heads give (cosine {cosine:.4f}, expected 1): this architecture "
                        "does something that no such matrix says"
                    )

    def _claims(self, layer: int, seen: dict[str, Tensor]) -> list[tuple[str, Tensor, Tensor]]:
        """(what, as it was seen, as the folded matrices have it), each up to a positive factor."""
        weights = self.layer(layer)
        before, behind = self._norm(layer, "ln1"), self._norm(layer, "ln1_post")
        x = before.gain * before.centred(seen["resid_pre"])  # (prompt, 1, d_model)
        normed = self._normed(layer, seen["resid_pre"]) - before.bias
        claims = [("the norm before attention", normed, x)]
        # Biases stand beside the scaled x: what the norm divided it by is needed after all.
        scaled = (
            before.centred(seen["resid_pre"]) * (normed.norm(dim=-1) / x.norm(dim=-1))[..., None]
        )
        for kind, weight in (("q", weights.query), ("k", weights.key), ("v", weights.value)):
            gain = self._head_gain(layer, f"{kind}_norm")
            constant = before.bias @ self._matrix(layer, f"W_{kind.upper()}")
            constant = (constant + self._matrix(layer, f"b_{kind.upper()}"))[:, None] * gain
            own = weight[:: len(weight) // len(constant)]  # of key-value heads, each once
            said = torch.einsum("pxd,hde->phxe", scaled, own) + constant
            claims.append((f"the {kind} of a head", seen[kind], said))
        if "attn_out" not in seen:
            return claims
        said = torch.einsum("phxe,hed->pxd", seen["z"], weights.output)
        said = said + before.centred(behind.gain * behind.centred(self._matrix(layer, "b_O")))
        added = before.centred(seen["attn_out"] - behind.bias)
        return [*claims, ("what attention adds to the residual stream", added, said)]

    def _normed(self, layer: int, x: Tensor) -> Tensor:
        """What the norm before attention makes of x."""
        if "ln1" not in self._bridge.blocks[layer]._modules:
            return x
        with torch.no_grad():
            return self.model.component(f"blocks.{layer}.ln1")(x.to(self.model.dtype)).float()


def _cosine(a: Tensor, b: Tensor) -> float:
    """The smallest cosine over all vectors; two zero vectors point the same way."""
    both_zero = (a.norm(dim=-1) == 0) & (b.norm(dim=-1) == 0)
    cosine = torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=-1)
    return float(torch.where(both_zero, 1.0, cosine).min())
