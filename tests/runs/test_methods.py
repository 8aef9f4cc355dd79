"""The paragraph of methods says what the manifest says, and nothing else."""

import copy

from interp.runs.methods import methods

MANIFEST = {
    "experiment": "find_heads",
    "seed": 7,
    "threads": 2,
    "config": {
        "confidence": 0.9,
        "correction": "by",
        "prompts": {"kind": "repeated_random", "periods": [20, 35]},
    },
    "environment": {
        "python": "3.11.7",
        "packages": {"interp": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0"},
        "source": {"commit": "abcdef0123456789", "dirty": True},
    },
    "model": {
        "name": "gpt2",
        "revision": "main",
        "weight_hash": "0123456789abcdef",
        "architecture": "GPT2LMHeadModel",
        "n_layers": 12,
        "n_heads": 12,
        "dtype": "float32",
    },
    "prompts": {
        "n_prompts": 16,
        "shortest": 41,
        "longest": 71,
        "bos_at_position_0": 16,
        "sha256": "fedcba9876543210",
    },
    "checks": [{"name": "logits", "difference": 2e-6, "allowed": 2e-4, "passed": True}],
    "attention_paths": ["tiled"],
    "measured": {"kind": "scores", "roles": ["induction"]},
}


def test_it_says_what_was_scored_over_what_with_which_null_and_correction():
    text = methods(MANIFEST)
    for part in (
        "gpt2 (GPT2LMHeadModel, revision main; 12 layers of 12 heads; float32; hash of the weights 01234567",
        "16 sequences of repeated random tokens, period 20 or 35 (41 to 71 tokens each; all of them begin",
        "every head and the role induction, attention mass",
        "position-matched wrong targets",
        "tiles of plain PyTorch",
        "90 % bootstrap intervals over prompts",
        "one-sided sign flips",
        "over all heads of a role (Benjamini–Yekutieli)",
        "the model passed 1 check: logits; the largest difference was 2e-06.",
        "interp 0.1.0, commit abcdef012345 with changes, PyTorch 2.13.0",
        "transformers 5.24.0, Python 3.11.7; seed 7, 2 CPU threads.",
    ):
        assert part in text, part
    assert "\n" not in text and "None" not in text


def test_what_was_not_recorded_is_left_out():
    lacking = {key: MANIFEST[key] for key in ("experiment", "seed", "config", "environment")}
    lacking["environment"] = lacking["environment"] | {"source": None}
    assert methods(lacking) == (
        "Experiment find_heads of interp 0.1.0, PyTorch 2.13.0, transformers 5.24.0, Python 3.11.7; seed 7."
    )


def test_effects_are_over_templates():
    manifest = copy.deepcopy(MANIFEST) | {
        "measured": {"kind": "effects", "edits": ["zero"], "metric": "loss", "n_rows": 24},
        "task": {"name": "copying", "n_examples": 8, "n_templates": 4, "dropped": {"too long": 3}},
        "largest_difference_from_plain_passes": 2.1e-5,
    }
    del manifest["prompts"], manifest["attention_paths"]
    text = methods(manifest)
    assert "The task was copying: 8 prompts of 4 templates; 3 candidates left out." in text
    assert (
        "The effect of an edit (zero) is the loss after it less that before, and was measured; it was "
        "averaged over templates" in text
    )
    assert (
        "two-sided sign flips over templates; q holds the false discovery rate over all 24 effects"
        in text
    )
    assert "differed from plain forward passes by at most 2e-05" in text


def test_an_estimate_is_called_one_and_what_was_edited_is_said():
    measured = {
        "kind": "effects",
        "edits": ["noise: attribution, 10 steps"],
        "sites": ["z"],
        "estimated": True,
        "metric": "loss",
        "n_rows": 1,
    }
    text = methods(MANIFEST | {"measured": measured})
    assert "an edit (noise: attribution, 10 steps, of z) is the loss" in text
    assert "was estimated from gradients" in text and "was measured" not in text
    assert "over all 1 effect (" in text


def test_templates_that_prompts_share_are_what_is_averaged_over():
    text = methods(MANIFEST | {"prompts": MANIFEST["prompts"] | {"n_templates": 3}})
    shared = "the 3 templates that prompts share"
    assert f"have a target, then over {shared}." in text
    assert f"bootstrap intervals over {shared}; p is from one-sided sign flips" in text
    assert "over prompts" not in text


def test_further_nulls_and_the_sink_rate_are_said():
    config = MANIFEST["config"] | {
        "nulls": ["random_init", "shuffled"],
        "sink_rate": {"epsilon": 0.3, "tokens": 64},
    }
    text = methods(MANIFEST | {"config": config})
    assert "nulls: the same architecture with weights drawn anew and the prompts' tokens in" in text
    assert "to the first of 64 tokens is above 0.3 (Gu et al., 2410.10781)." in text
    assert "further nulls" not in methods(MANIFEST) and "sink rate" not in methods(MANIFEST)


def test_what_has_no_sentences_of_its_own_says_its_question():
    asked = "When do heads form?"
    without = {key: MANIFEST[key] for key in MANIFEST if key != "measured"}
    assert f"The question was: {asked} " in methods(without, asked)
    assert asked not in methods(MANIFEST, asked)


def test_one_observation_has_no_intervals_and_no_tests():
    text = methods(MANIFEST | {"tests": {"n_observations": 1}})
    assert "neither intervals nor tests: these would be over prompts, and there is but one." in text
    assert "bootstrap" not in text and "sign flips" not in text
    assert "sign flips" in methods(MANIFEST | {"tests": {"n_observations": 2}})
