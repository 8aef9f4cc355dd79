"""What old tokens are worth: the loss when a key-value cache keeps no more than ``budget`` of them.

    a query sees    itself and what the cache holds of the tokens before it: ``budget`` at most
    when it is full the oldest token that is not pinned leaves it, for good, in all layers and heads

    all             nothing leaves: the bound
    oldest          nothing is pinned: a sliding window
    first           the first k tokens are pinned (StreamingLLM: Xiao et al., 2309.17453, §3.2)
    random          k tokens are pinned, drawn from the first ``budget``, none of them among the first ones
    attended        the k tokens are pinned that draw most attention while the cache fills

With r[t] the number of tokens before t that are not pinned, what is left is a mask, so that one pass over the
whole text is as good as a cache stepped token by token (:mod:`interp.lesson.cache_steps`; both must agree):

    t sees s  ⇔  s pinned, or r[t] − r[s] ≤ budget − k

Positions are kept here: a token stays at the distance at which it was read. Tokens that have left are not
forgotten altogether: those that are still there have read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.attention.door import Touch, check_serves, open_door
from interp.attention.kernels import Engine, attend
from interp.attention.masks import IndexMask, MaskFunction
from interp.attention.pattern import AttentionPattern, Pattern
from interp.errors import InterpError
from interp.inputs.prompts import Prompt
from interp.lesson.losses import id_batches, losses_of
from interp.models.forward import batches, capture, logits_at
from interp.models.model import Model
from interp.scoring.roles import ROLES, AnySink

Choice = Literal["first", "random", "attended"]


@dataclass(frozen=True, eq=False)
class Policy:
    """What leaves the cache.

    Attributes:
        name: as in tables.
        pinned: positions that never leave, by prompt; (prompt, 0) where none is pinned.
    """

    name: str
    pinned: Int[Tensor, "prompt pin"]

    @property
    def n_pinned(self) -> int:
        """Number of pinned tokens in each prompt."""
        return self.pinned.shape[1]

    def is_pinned(self, n: int) -> Bool[Tensor, "prompt pos"]:
        """Which of ``n`` tokens are pinned."""
        none = torch.zeros(len(self.pinned), n, dtype=torch.bool, device=self.pinned.device)
        return none.scatter(1, self.pinned, True)

    def of(self, members: slice) -> Policy:
        """The same for some of the prompts."""
        return Policy(self.name, self.pinned[members])

    def seen(self, n: int, budget: int) -> MaskFunction:
        """What queries still see, for texts of ``n`` tokens."""
        pinned = self.is_pinned(n)
        rank = (~pinned).long().cumsum(1) - (~pinned).long()
        room = budget - self.n_pinned

        def left(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return pinned[batch, key] | (rank[batch, query] - rank[batch, key] <= room)

        return left


def policies(
    model: Model,
    prompts: Sequence[Prompt],
    choices: Sequence[Choice],
    pins: Sequence[int],
    budget: int,
    *,
    engine: Engine = "auto",
    seed: int = 0,
) -> list[Policy]:
    """ "oldest", then every choice with every number of pins.

    Raises:
        InterpError: texts of several lengths, or so short that nothing leaves, or more pins than the
            budget has room for; an architecture that bypasses the door.
    """
    check_budget(prompts, budget, pins if choices else ())
    check_serves(model.hf_model)
    most, n = max(pins, default=0), len(prompts)
    found = [Policy("oldest", torch.zeros(n, 0, dtype=torch.long, device=model.device))]
    for choice in choices if pins else ():
        if choice == "first":
            ranked = torch.arange(most).expand(n, most)
        elif choice == "random":
            ranked = _drawn(prompts, most, budget, seed)
        else:
            ranked = most_attended(model, prompts, most, budget, engine)
        ranked = ranked.to(model.device)
        found += [Policy(choice, ranked[:, :k]) for k in pins]
    return found


def check_budget(prompts: Sequence[Prompt], budget: int, pins: Sequence[int]) -> None:
    """Refuse what can't be compared, or what would evict nothing."""
    lengths = {len(prompt.ids) for prompt in prompts}
    if len(lengths) > 1:
        raise InterpError(
            f"texts of {min(lengths)} to {max(lengths)} tokens: expected all of one length, so that one "
            "budget means the same for each; take prompts=text"
        )
    (n,) = lengths
    if n < 4:
        raise InterpError(
            f"texts of {n} tokens: expected 4 or more, so that something leaves before the last prediction"
        )
    if not 1 <= budget < n - 2:  # the last token has lost something first, and predicts nothing
        raise InterpError(
            f"budget={budget}: expected 1 to {n - 3} for texts of {n} tokens, or nothing would leave before "
            "the last prediction"
        )
    if pins and not 1 <= min(pins) <= max(pins) <= budget:
        raise InterpError(
            f"pins={list(pins)}: expected numbers from 1 to the budget, {budget}, which they are part of"
        )


def _drawn(
    prompts: Sequence[Prompt], most: int, budget: int, seed: int
) -> Int[Tensor, "prompt pin"]:
    """Random positions of each prompt's first ``budget``, but of the first ones."""
    if budget - most < most:
        raise InterpError(
            f"random pins: the first {budget} tokens have no room for {most} others than the first {most}; "
            f"expected a budget of at least {2 * most}"
        )
    drawn = [
        np.random.default_rng([seed, 8, i]).choice(np.arange(most, budget), most, replace=False)
        for i in range(len(prompts))
    ]
    return torch.from_numpy(np.stack(drawn))


def most_attended(
    model: Model, prompts: Sequence[Prompt], most: int, budget: int, engine: Engine = "auto"
) -> Int[Tensor, "prompt pin"]:
    """The positions that draw most attention from those after them, while the cache fills: best first.

    Means over all heads of the mean weight that a later query gives a key, over the first ``budget`` tokens;
    as for the role ``sink_any``, only keys that enough of them come after.
    """
    role = ROLES["sink_any"]
    assert isinstance(role, AnySink)
    viewers = torch.arange(budget - 1, -1, -1)  # queries after each key
    fair = viewers >= max(1, role.viewers * budget)
    if int(fair.sum()) < most:
        raise InterpError(
            f"attended pins: {int(fair.sum())} of the first {budget} tokens are looked at by enough others, "
            f"expected at least {most}; take a larger budget or fewer pins"
        )
    short = [replace(prompt, ids=prompt.ids[:budget]) for prompt in prompts]
    found = []
    for batch in batches(short):
        drawn = torch.zeros(len(batch), budget, dtype=torch.float64)

        def look(layer: int, pattern: Pattern, z: Tensor, drawn: Tensor = drawn) -> None:
            own = pattern.offset(0)  # of the key itself, which is not what others see in it
            drawn += (pattern.received() - own).double().mean(1).cpu()

        capture(model, batch, look, engine=engine)
        found.append(drawn / viewers.clamp(min=1))
    mean = torch.cat(found).masked_fill(~fair, -1.0)
    return mean.argsort(dim=1, descending=True, stable=True)[:, :most]


# --- one masked pass -----------------------------------------------------------------------------


class Narrowing:
    """A model's own masks less what a mask function hides; made once a pass, since most layers share one."""

    def __init__(self, seen: MaskFunction) -> None:
        self.seen = seen
        self._masks: dict[int, tuple[IndexMask, IndexMask]] = {}

    def __call__(self, mask: IndexMask) -> IndexMask:
        """The narrower mask."""
        if id(mask) not in self._masks:
            own, seen = mask.mask_function, self.seen

            def both(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
                return own(batch, head, query, key) & seen(batch, head, query, key)

            self._masks[id(mask)] = mask, replace(mask, mask_function=both)
        return self._masks[id(mask)][1]


class Evicting(Touch):
    """At the door: all heads see less."""

    def __init__(self, seen: MaskFunction) -> None:
        self.narrowed = Narrowing(seen)

    def inputs(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: IndexMask
    ) -> tuple[Tensor, Tensor, Tensor, IndexMask]:
        """The narrower mask."""
        return query, key, value, self.narrowed(mask)


class WouldBe(Touch):
    """At the door: the pass goes on as it is, and what each head would write if it saw less is kept.

    Attributes:
        z: by layer, (batch, head, query, d_value).
    """

    def __init__(self, seen: MaskFunction) -> None:
        self.narrowed = Narrowing(seen)
        self.z: dict[int, Tensor] = {}

    def output(
        self, layer: int, pattern: AttentionPattern, value: Tensor, z: Tensor, looked: bool
    ) -> tuple[Pattern, Tensor]:
        """As it comes; the heads' own queries and keys are attended to once more."""
        again = attend(
            pattern.query,
            pattern.key,
            value,
            scale=pattern.scale,
            mask=self.narrowed(pattern.mask),
            softcap=pattern.softcap,
            sink=pattern.sink,
        )
        self.z[layer] = again.z
        return pattern, z


def masked_losses(
    model: Model,
    prompts: Sequence[Prompt],
    policy: Policy | None,
    budget: int,
    *,
    engine: Engine = "auto",
    progress: Callable[[int], None] | None = None,
) -> Float[np.ndarray, "prompt pos"]:
    """The loss of every token, nats, in one pass a prompt; NaN for the first, which nothing predicts.

    Args:
        policy: what leaves the cache; None: nothing.

    Raises:
        InterpError: an architecture that bypasses the door.
    """
    n = len(prompts[0].ids)
    losses = []
    for members, ids in id_batches(model, prompts):
        touch = None if policy is None else Evicting(policy.of(members).seen(n, budget))
        with open_door(model.hf_model, touch=touch, engine=engine):
            losses.append(losses_of(model, ids))
        if progress is not None:
            progress(len(ids))
    return np.concatenate(losses)


def evicted_outputs(
    model: Model,
    prompts: Sequence[Prompt],
    policy: Policy,
    budget: int,
    *,
    engine: Engine = "auto",
) -> dict[int, Float[Tensor, "prompt head pos d_value"]]:
    """What each head of each layer would write if it alone no longer saw what left, in one pass a prompt.

    A head's input is the same whether or not it evicts, so one pass with nothing evicted serves all heads.
    """
    found: dict[int, list[Tensor]] = {}
    for members, ids in id_batches(model, prompts):
        touch = WouldBe(policy.of(members).seen(ids.shape[1], budget))
        with open_door(model.hf_model, touch=touch, engine=engine):
            logits_at(model, ids, torch.full_like(ids[:, :1], ids.shape[1] - 1))
        for layer, z in touch.z.items():
            found.setdefault(layer, []).append(z)
    return {layer: torch.cat(parts) for layer, parts in sorted(found.items())}
