"""Training a tiny model: determinism, resuming, evaluations, and the files that it saves."""

import json
import math
from random import Random
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from interp.pretraining import training, world

TINY = training.TrainingConfig(
    seed=3,
    steps=6,
    tokens_per_step=256,
    row_lengths=(32, 64),
    warmup_steps=2,
    evaluate_every=2,
    evaluation_prompts=2,
    d_model=24,
    d_mlp=28,
    d_head=4,
    layers=3,
    heads=6,
    key_value_heads=2,
    context=160,
)


@pytest.fixture(scope="module")
def tokenizer():
    return training.world_tokenizer()


@pytest.fixture(scope="module", autouse=True)
def quick(tokenizer):
    """One thread, and one tokenizer for all runs: they are tiny, and there are many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "world_tokenizer", lambda: tokenizer)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return training.train(TINY, tmp_path_factory.mktemp("uninterrupted"))


def assert_equal_runs(one, other):
    weights, others = one.model.state_dict(), other.model.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    # The training loss before the first step is NaN, which equals nothing; its text does.
    assert repr(one.records) == repr(other.records)


def test_the_same_config_gives_the_same_weights_whatever_the_global_seed(trained, tmp_path):
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    assert_equal_runs(training.train(TINY, tmp_path), trained)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_another_seed_gives_other_weights(trained, tmp_path):
    other = training.train(TINY.model_copy(update={"seed": 4}), tmp_path, until=2)
    assert other.records[0].story_loss != trained.records[0].story_loss


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(trained, tmp_path):
    part = training.train(TINY, tmp_path, until=4)
    assert [record.step for record in part.records] == [0, 2, 4]
    assert_equal_runs(training.train(TINY, tmp_path), trained)


def test_a_run_killed_in_an_evaluation_comes_by_it_again(trained, tmp_path):
    """Who was told of a step only half (form_heads writes its table there) is told of it again."""

    def kill(record, model):
        if record.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(TINY, tmp_path, kill)
    steps = []
    resumed = training.train(TINY, tmp_path, lambda record, model: steps.append(record.step))
    assert steps == [4, 6]
    assert_equal_runs(resumed, trained)


def test_a_run_killed_while_writing_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    training.train(TINY, tmp_path, until=2)

    def fail(state, path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        training.train(TINY, tmp_path, until=4)
    state = training.load_checkpoint(tmp_path / training.CHECKPOINT, TINY)
    assert state["records"][-1]["step"] == 2


def test_a_checkpoint_of_another_config_is_refused_and_names_the_field(tmp_path):
    training.train(TINY, tmp_path, until=2)
    with pytest.raises(ValueError, match=r"another config.*\['learning_rate'\]"):
        training.train(TINY.model_copy(update={"learning_rate": 1e-3}), tmp_path)


def test_records_tell_the_steps_and_losses(trained):
    first, *rest = trained.records
    assert [record.step for record in trained.records] == [0, 2, 4, 6]
    assert math.isnan(first.train_loss) and first.learning_rate == 0
    assert rest[-1].tokens == 6 * 256
    # An untrained model is no better than uniform; loud embeddings make it somewhat worse.
    assert -0.3 < first.fresh_loss - math.log(len(trained.tokenizer)) < 2
    assert rest[-1].story_loss < first.story_loss
    assert not trained.model.training


@pytest.mark.parametrize(("step", "share"), [(1, 0.5), (2, 1.0), (3, 1.0), (6, 0.05), (4, 0.683)])
def test_the_learning_rate_warms_up_stays_and_falls(step, share):
    rate = training.learning_rate(TINY, step)
    assert rate == pytest.approx(TINY.learning_rate * share, rel=1e-3)


def test_a_batch_mixes_the_shares_asked_for(tokenizer):
    config = training.TrainingConfig(row_lengths=(128,))
    batch = training.training_batch(config, tokenizer, 1)
    assert batch.shape == (16, 128)
    assert (batch[:, 0] == tokenizer.bos_token_id).all()
    special = (batch[:, 1:, None] == torch.tensor(tokenizer.all_special_ids)).any(-1).any(-1)
    assert special.tolist() == [True] * 8 + [False] * 8, "only stories hold <eos>"
    assert torch.equal(batch, training.training_batch(config, tokenizer, 1))
    assert not torch.equal(batch, training.training_batch(config, tokenizer, 2))


def test_token_losses_are_those_of_transformers(trained):
    tokens = torch.randint(3, 500, (5, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = trained.model(tokens, labels=tokens)
    losses = training.token_losses(output.logits, tokens)
    assert losses.shape == (5, 10)
    assert losses.mean().item() == pytest.approx(output.loss.item(), abs=1e-6)


def test_a_pair_counts_only_when_both_members_are_right(trained, tokenizer, monkeypatch):
    # Prompts of several lengths, so that reading at the wrong position would show.
    pairs = world.held_out_pairs("pronoun", 3, Random(0))
    clozes = [cloze for pair in pairs for cloze in pair]
    assert len({len(tokenizer.encode(cloze.prompt)) for cloze in clozes}) > 1
    words = [cloze.right for cloze in clozes]
    words[3] = clozes[3].wrong
    answers = [tokenizer.encode(word, add_special_tokens=False)[0] for word in words]

    def oracle(rows):
        """One chosen token has logit 1 at each row's last real token, all others 0."""
        logits = torch.zeros(*rows.shape, len(tokenizer))
        last = (rows != tokenizer.pad_token_id).sum(1) - 1
        logits[torch.arange(len(rows)), last, torch.tensor(answers)] = 1.0
        return SimpleNamespace(logits=logits)

    monkeypatch.setattr(trained.model, "forward", oracle)
    assert training.both_right(trained.model, tokenizer, pairs).tolist() == [1, 0, 1]


def test_saved_files_load_anywhere_in_half_the_bytes(trained, tmp_path):
    training.save_model(trained.model, trained.tokenizer, tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert model.dtype == torch.float32
    for name, weight in trained.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight.half().float())
    assert trained.model.dtype == torch.float32, "saving must not change the model"
    text = "When Ann and Ben went to the lake, Ben gave a cup to"
    assert tokenizer.encode(text) == trained.tokenizer.encode(text)
    assert len(tokenizer) == model.config.vocab_size
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    parameters = sum(p.numel() for p in model.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < 2 * parameters + 8192


@pytest.mark.parametrize("bad", [{"steps": 0}, {"clip": 0.0}, {"story_share": 1.5}, {"stepz": 3}])
def test_a_bad_setting_is_refused_by_name(bad):
    with pytest.raises(ValidationError, match=next(iter(bad))):
        training.TrainingConfig(**bad)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValidationError, match="row of 512 tokens exceeds the context, 256"):
        training.TrainingConfig(context=256)
    with pytest.raises(ValidationError, match="shares of rows add up to more than 1"):
        training.TrainingConfig(story_share=0.7, cyclic_share=0.4)
    with pytest.raises(ValidationError, match="8 query heads cannot share 3 key-value heads"):
        training.TrainingConfig(key_value_heads=3)
