"""How the default model is trained: its configuration, the loop, the evaluations, and its files.

The model is an ordinary Llama (RoPE, grouped-query attention, tied embeddings) with the library's
own random initialisation. The loss is next-token cross-entropy in nats, averaged over *all*
positions: a head is then punished for what it writes on unpredictable random tokens, and learns to
park on <bos> while it has nothing to copy.

Every random choice of step s comes from a generator seeded by (seed, s), so a step depends only on
the weights and optimiser state before it. A run that goes on from its checkpoint equals an
uninterrupted one bit for bit, on the same machine with as many torch threads (which the caller
sets).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from interp.config.training import TrainingConfig
from interp.pretraining import world

CHECKPOINT = "checkpoint.pt"
SPREAD = {"embed_tokens": 0.25, "q_proj": 0.08, "k_proj": 0.08}
"""Standard deviations of initial weights; of all other matrices: 0.05."""


@dataclass(frozen=True)
class Record:
    """One evaluation. Losses are in nats per token, accuracies are shares of held-out pairs."""

    step: int
    tokens: int
    """training tokens seen"""
    learning_rate: float
    """of the step just taken; 0 at step 0"""
    train_loss: float
    """mean over the batches since the last evaluation; NaN at step 0"""
    story_loss: float
    """on rows of new stories"""
    fresh_loss: float
    """on the first r of [<bos>, r, r], 50 distinct random tokens; at best about log(vocabulary)"""
    repeat_loss: float
    """on the second r, without its first token, which nothing foretells"""
    indirect_object: float
    """both members of the pair right: the answer's logit above the other candidate's"""
    pronoun: float
    recurring_name: float
    possession: float


@dataclass(frozen=True)
class Trained:
    """A model in eval mode, its tokenizer, and every evaluation from step 0 on."""

    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    records: list[Record]


def world_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of all runs, whatever their seed."""
    return world.build_tokenizer(Random("tokenizer"))


def build_model(config: TrainingConfig, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A freshly initialised model; torch's global generator is left as it was."""
    llama = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=config.d_model,
        intermediate_size=config.d_mlp,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.d_head,
        max_position_embeddings=config.context,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = LlamaForCausalLM(llama)
        initialise(model)
    return model


@torch.no_grad()
def initialise(model: LlamaForCausalLM) -> None:
    """Draw every matrix from a normal distribution of mean 0, from torch's global generator.

    All token embeddings share one random offset. The projections have no biases, so it is what the
    queries and keys of all tokens have in common, and lets heads see places before they know tokens.
    """
    for name, weight in model.named_parameters():
        if weight.ndim >= 2:
            weight.normal_(std=next((s for part, s in SPREAD.items() if part in name), 0.05))
    model.model.embed_tokens.weight += SPREAD["embed_tokens"] * torch.randn(
        model.config.hidden_size
    )


def build_optimizer(config: TrainingConfig, model: LlamaForCausalLM) -> torch.optim.AdamW:
    """AdamW; norms and other vectors are not decayed."""
    embedding = model.model.embed_tokens.weight
    rest = [p for p in model.parameters() if p is not embedding]
    groups = [
        {"params": [embedding], "rate": config.embedding_rate, "weight_decay": 0.0},
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas)


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The rate of a step, counted from 1: warm-up, constant, then linear decay."""
    warm = min(1.0, step / max(1, config.warmup_steps))
    start = config.decay_start * config.steps
    passed = max(0.0, step - start) / max(1.0, config.steps - start)
    return config.learning_rate * warm * (1 - passed * (1 - config.final_share))


def training_batch(
    config: TrainingConfig, tokenizer: PreTrainedTokenizerFast, step: int
) -> Int[Tensor, "batch pos"]:
    """The rows of one step: stories, cyclic rows and segment rows of one length."""
    rng = Random(f"{config.seed}/{step}")
    length = rng.choice(config.row_lengths)
    n_rows = max(1, config.tokens_per_step // length)
    n_story = round(n_rows * config.story_share)
    n_cyclic = round(n_rows * config.cyclic_share)
    ids, bos = world.ordinary_ids(tokenizer), tokenizer.bos_token_id
    rows = [world.story_row(rng, tokenizer, length) for _ in range(n_story)]
    rows += [world.cyclic_row(rng, ids, bos, length) for _ in range(n_cyclic)]
    rows += [world.segment_row(rng, ids, bos, length) for _ in range(n_rows - n_story - n_cyclic)]
    return torch.tensor(rows)


def token_losses(
    logits: Float[Tensor, "batch pos d_vocab"], tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch next"]:
    """Cross-entropy in nats of every token but the first, given those before it."""
    targets = tokens[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


@torch.no_grad()
def both_right(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pairs: list[world.ClozePair]
) -> Float[Tensor, " pair"]:
    """1 where the right word's logit exceeds the wrong word's in both members of a pair, else 0."""
    clozes = [cloze for pair in pairs for cloze in pair]
    prompts = [tokenizer.encode(cloze.prompt) for cloze in clozes]
    width = max(map(len, prompts))
    # Padding on the right needs no mask: in a causal model it cannot reach the last real token.
    rows = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids in prompts])
    last = torch.tensor([len(ids) - 1 for ids in prompts])
    logits = model(rows).logits[torch.arange(len(rows)), last]

    def logit(words: list[str]) -> Float[Tensor, " cloze"]:
        ids = [tokenizer.encode(word, add_special_tokens=False) for word in words]
        return logits.gather(1, torch.tensor(ids)).squeeze(1)

    right = logit([c.right for c in clozes]) > logit([c.wrong for c in clozes])
    return right.view(-1, 2).all(dim=1).float()


@torch.no_grad()
def evaluate(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, n: int
) -> dict[str, float]:
    """Losses and accuracies of a `Record`, on `n` rows and pairs, the same at every call."""
    rng = Random("evaluation")
    ids, bos = world.ordinary_ids(tokenizer), tokenizer.bos_token_id
    stories = torch.tensor([world.story_row(rng, tokenizer, 128) for _ in range(n)])
    blocks = [rng.sample(ids, 50) for _ in range(n)]
    repeats = torch.tensor([[bos, *block, *block] for block in blocks])
    repeat_losses = token_losses(model(repeats).logits, repeats)
    scores = {
        "story_loss": token_losses(model(stories).logits, stories).mean().item(),
        "fresh_loss": repeat_losses[:, :50].mean().item(),
        "repeat_loss": repeat_losses[:, 51:].mean().item(),
    }
    for kind in world.CLOZE_KINDS:
        pairs = world.held_out_pairs(kind, n, rng)
        scores[kind] = both_right(model, tokenizer, pairs).mean().item()
    return scores


def save_checkpoint(path: Path, state: dict) -> None:
    """Write beside, then rename: an interruption leaves the old checkpoint or the new one."""
    beside = path.with_suffix(".partial")
    torch.save(state, beside)
    os.replace(beside, path)


def load_checkpoint(path: Path, config: TrainingConfig) -> dict | None:
    """The state of an interrupted run of the same config; None if there is none."""
    if not path.exists():
        return None
    state = torch.load(path, weights_only=True)
    if state["config"] != config.model_dump():
        differ = [k for k, v in config.model_dump().items() if state["config"].get(k) != v]
        raise ValueError(f"{path} belongs to a run of another config; differing fields: {differ}")
    return state


def train(
    config: TrainingConfig,
    folder: str | Path,
    on_record: Callable[[Record, LlamaForCausalLM], None] | None = None,
    *,
    until: int | None = None,
) -> Trained:
    """Train to the last step (or only to step `until`), going on from the checkpoint in `folder`.

    `on_record` is called at every new evaluation, step 0 included, with the model in eval mode; it
    may copy the weights but must not change them. A checkpoint is written at each evaluation.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = world_tokenizer()
    model = build_model(config, tokenizer)
    optimizer = build_optimizer(config, model)
    records: list[Record] = []
    state = load_checkpoint(folder / CHECKPOINT, config)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        records = [Record(**record) for record in state["records"]]
    last = config.steps if until is None else min(until, config.steps)
    for record in _steps(config, model, optimizer, tokenizer, records, last):
        records.append(record)
        # First the caller, then the checkpoint: one who is stopped between the two is called again.
        if on_record is not None:
            on_record(record, model)
        save_checkpoint(
            folder / CHECKPOINT,
            {
                "config": config.model_dump(),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "records": [asdict(r) for r in records],
            },
        )
    return Trained(model.eval(), tokenizer, records)


def _steps(
    config: TrainingConfig,
    model: LlamaForCausalLM,
    optimizer: torch.optim.Optimizer,
    tokenizer: PreTrainedTokenizerFast,
    records: list[Record],
    last: int,
) -> Iterator[Record]:
    """Take the steps that are left, and yield a record at every evaluation."""

    def record(step: int, rate: float, train_loss: float) -> Record:
        model.eval()
        scores = evaluate(model, tokenizer, config.evaluation_prompts)
        return Record(step, step * config.tokens_per_step, rate, train_loss, **scores)

    if not records:
        yield record(0, 0.0, float("nan"))
    losses: list[float] = []
    for step in range(records[-1].step + 1, last + 1):
        model.train()
        tokens = training_batch(config, tokenizer, step)
        loss = token_losses(model(tokens).logits, tokens).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        rate = learning_rate(config, step)
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("rate", 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % config.evaluate_every == 0 or step == config.steps:
            yield record(step, rate, sum(losses) / len(losses))
            losses.clear()


def save_model(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: str | Path
) -> None:
    """Write float16 safetensors, config, generation config and tokenizer for `from_pretrained`.

    The config names float32: users compute in float32 from weights stored in half the bytes.
    """
    half = copy.deepcopy(model).half()
    half.generation_config = GenerationConfig.from_model_config(model.config)
    half.save_pretrained(folder)
    half.config.dtype = torch.float32
    half.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
