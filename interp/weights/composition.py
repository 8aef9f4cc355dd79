"""What the weights say: which heads copy, and which earlier head writes where a later one reads.

Row vectors, W_OV = W_V W_O, W_QK = W_Q W_Kᵀ, norms folded in (:mod:`interp.weights.head_weights` says how).

    copying       = Σ Re λ / Σ |λ|       λ: eigenvalues of W_OV, or of the full circuit W_E W_OV W_U
                    in [−1, 1]: 1 a head that raises what it reads, −1 one that lowers it, 0 at random
    composition   = ‖W_OV¹ X‖ / (‖W_OV¹‖ ‖X‖)         Frobenius norms, in [0, 1]; head 1 earlier than head 2
                    q: X = W_QK²       does head 2 ask by what head 1 wrote?
                    k: X = W_QK²ᵀ      is head 2 found by what head 1 wrote? (previous token → induction)
                    v: X = W_OV²       does head 2 move what head 1 wrote?

Sources: Elhage et al., A Mathematical Framework for Transformer Circuits (2021); copying by eigenvalues
also Olsson et al. (2209.11895), appendix. A composition is a share: nothing is said of its sign, of how
large the sum is, nor of the positions at which the two heads look (rotary models turn queries and keys:
W_QK is that of one position, as in the field). It is high for any two heads that share a large direction,
so beside it stand random factors (≈ 1/√d_model), the other pairs and, for named pairs, other heads of the
same layers (:mod:`interp.weights.named_pairs`). Only earlier *layers* count as earlier: heads of one layer
don't read one another. With grouped queries the unit is the query head; heads of a group share W_K and W_V.

No d_model × d_model matrix is made for a pair: eigenvalues are those of the d_head × d_head product in the
other order (AB and BA share all but zeros), and with W_V = QR, ‖W_V W_O X‖ = ‖R W_O X‖, likewise on the
other side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InterpError
from interp.results import tables
from interp.weights.head_weights import HeadWeights, LayerWeights

N_RANDOM = 100
Head = tuple[int, int]


# --- copying -------------------------------------------------------------------------------------


def eigenvalue_score(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """Σ Re λ / Σ |λ|; NaN where all eigenvalues are 0."""
    eigenvalues = torch.linalg.eigvals(matrix.double())
    return eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)


def copying_scores(
    weights: HeadWeights, *, n_random: int = N_RANDOM, seed: int = 0
) -> pd.DataFrame:
    """The copying score of each query head, for W_OV and for the full circuit.

    Args:
        n_random: random heads for the baseline: W_V and W_O of the same shapes, each entry uniform about 0,
            between the model's own W_E and W_U.

    Returns:
        a row a head, as ``tables.COPYING`` describes.

    Raises:
        InterpError: fewer than two random heads, or whatever the weights refuse.
    """
    _check_random(n_random)
    model = weights.model
    around = weights.unembedding() @ weights.embedding()  # (d_model, d_model)
    shape = (n_random, model.d_model, model.d_head)
    generator = torch.Generator().manual_seed(seed)
    value, output = (_uniform(shape, generator).to(around) for _ in range(2))
    random = _both_scores(value, output.mT, around)
    frames = []
    for layer in weights.layers:
        one = weights.layer(layer)
        ov, full = _both_scores(one.value, one.output, around)
        frame = {"model": model.name, "layer": layer, "head": range(model.n_heads)}
        for name, scores, null in (("ov", ov, random[0]), ("full", full, random[1])):
            frame |= {f"copying_{name}": scores, f"{name}_baseline": null.mean()}
            frame |= {f"{name}_sd": null.std(ddof=1)}
        frames.append(pd.DataFrame(frame | {"n_random": n_random}))
    table = pd.concat(frames, ignore_index=True)
    return tables.COPYING.validate(table[list(tables.COPYING.columns)])


def _both_scores(
    value: Float[Tensor, "head d_model d_head"],
    output: Float[Tensor, "head d_head d_model"],
    around: Float[Tensor, "d_model d_model"],
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of W_OV and of the full circuit, (head,) each; ``around`` is W_U W_E."""
    scores = eigenvalue_score(output @ value), eigenvalue_score(output @ around @ value)
    return scores[0].cpu().numpy(), scores[1].cpu().numpy()


# --- composition ---------------------------------------------------------------------------------


def left_factor(one: LayerWeights) -> Float[Tensor, "head d_head d_model"]:
    """What stands for W_OV on the left: R W_O with W_V = QR, divided by its norm, that of W_OV."""
    return _unit(torch.linalg.qr(one.value).R @ one.output)


def right_factors(one: LayerWeights) -> dict[str, Float[Tensor, "head d_model d_head"]]:
    """What stands for X on the right, by kind: X = A Bᵀ, A Rᵀ with B = QR, divided by its norm."""
    sides = {
        "q": (one.query, one.key),
        "k": (one.key, one.query),
        "v": (one.value, one.output.mT),
    }
    return {kind: _unit(a @ torch.linalg.qr(b).R.mT) for kind, (a, b) in sides.items()}


def composition(
    left: Float[Tensor, "sender d_head d_model"], right: Float[Tensor, "receiver d_model d_head"]
) -> Float[Tensor, "sender receiver"]:
    """Of every sender with every receiver, from what :func:`left_factor` and :func:`right_factors` give."""
    product = left.flatten(0, 1) @ right.transpose(0, 1).flatten(1)
    shape = (len(left), left.shape[1], len(right), right.shape[2])
    return product.reshape(shape).square().sum((1, 3)).sqrt()


def random_compositions(
    d_model: int, d_head: int, *, n_random: int = N_RANDOM, seed: int = 0
) -> Float[np.ndarray, " draw"]:
    """Compositions of random heads: four factors uniform about 0 (Kaiming's bound is a scale: it drops out).

    One baseline serves all kinds and layers: with W_O of head 1 alone without direction, the mean square
    is 1 / d_model whatever head 2 is, so folded gains make no difference to it.
    """
    _check_random(n_random)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(n_random):
        value, output, a, b = (_uniform((1, d_model, d_head), generator) for _ in range(4))
        one = LayerWeights(0, a, b, value, output.mT)
        found.append(composition(left_factor(one), right_factors(one)["q"]).item())
    return np.array(found)


def composition_scores(
    weights: HeadWeights,
    senders: Sequence[Head] = (),
    receivers: Sequence[Head] = (),
    *,
    n_random: int = N_RANDOM,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> pd.DataFrame:
    """Q, K and V composition of every query head with every one of a later layer.

    Args:
        senders, receivers: (layer, head) each; the pairs of the two are marked in the column ``named``.
        n_random: random pairs for the baseline.
        progress: called with 1 after each layer.

    Returns:
        a row a pair and kind, as ``tables.COMPOSITION`` describes.

    Raises:
        InterpError: a named head that is not there, fewer than two random pairs, a model with one layer
            of attention, or whatever the weights refuse.
    """
    model = weights.model
    for layer, head in (*senders, *receivers):
        if layer not in weights.layers or not 0 <= head < model.n_heads:
            raise InterpError(
                f"head {layer}.{head}: {model.name} has heads 0 to {model.n_heads - 1} in layers "
                f"{weights.layers[0]} to {weights.layers[-1]}"
            )
    if len(weights.layers) < 2:
        raise InterpError(
            f"{model.name} has one layer of attention: no head is earlier than another"
        )
    baseline = random_compositions(model.d_model, model.d_head, n_random=n_random, seed=seed)
    earlier: dict[int, Tensor] = {}
    frames = []
    for layer in weights.layers:
        one = weights.layer(layer)
        for kind, right in right_factors(one).items():
            for before, left in earlier.items():
                frames.append(_pairs(before, layer, kind, composition(left, right)))
        earlier[layer] = left_factor(one)
        if progress is not None:
            progress(1)
    table = pd.concat(frames, ignore_index=True)
    table["model"] = model.name
    table["baseline"], table["baseline_sd"] = baseline.mean(), baseline.std(ddof=1)
    table["percentile"] = _share_below(table, ["kind"])
    table["layers_percentile"] = _share_below(table, ["kind", "sender_layer", "receiver_layer"])
    ends = {"sender": set(senders), "receiver": set(receivers)}
    within = [
        pd.MultiIndex.from_frame(table[[f"{end}_layer", f"{end}_head"]]).isin(list(heads))
        for end, heads in ends.items()
    ]
    table["named"] = within[0] & within[1]
    return tables.COMPOSITION.validate(table[list(tables.COMPOSITION.columns)])


def _pairs(before: int, layer: int, kind: str, scores: Tensor) -> pd.DataFrame:
    """Rows of all pairs of two layers."""
    first, second = np.indices(tuple(scores.shape)).reshape(2, -1)
    return pd.DataFrame(
        {
            "sender_layer": before,
            "sender_head": first,
            "receiver_layer": layer,
            "receiver_head": second,
            "kind": kind,
            "composition": scores.double().cpu().numpy().ravel(),
        }
    )


def _share_below(table: pd.DataFrame, by: list[str]) -> pd.Series:
    """Of the other pairs in the group, the share that lies below; ties count half."""
    grouped = table.groupby(by)["composition"]
    others = grouped.transform("count") - 1
    return (grouped.rank() - 1) / others.where(others > 0)


# --- small things --------------------------------------------------------------------------------


def _unit(matrix: Float[Tensor, "head a b"]) -> Float[Tensor, "head a b"]:
    """Divided by its Frobenius norm; NaN where it is all 0, as the composition then is."""
    return matrix / matrix.norm(dim=(1, 2), keepdim=True)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator) * 2 - 1


def _check_random(n_random: int) -> None:
    if n_random < 2:
        raise InterpError(f"n_random={n_random}: a baseline and its spread need at least 2")
