"""What was run, as a paragraph for a paper: from the manifest alone, so that it says what was done.

It names the model by its weights, what was measured over how many prompts, the null, the intervals and
the correction, and the software. Nothing in it is from memory; what a manifest does not hold is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TWO_SIDED = "two-sided sign flips"
CORRECTIONS = {"bh": "Benjamini–Hochberg", "by": "Benjamini–Yekutieli"}


def methods(manifest: Mapping[str, Any]) -> str:
    """The paragraph, of whole sentences; one line.

    Args:
        manifest: of a finished run, as manifest.json holds it.
    """
    return " ".join(_sentences(manifest))


def _sentences(manifest: Mapping[str, Any]) -> Iterator[str]:
    if "model" in manifest:
        yield _model(manifest["model"])
    if "prompts" in manifest:
        yield _prompts(manifest)
    if "task" in manifest:
        yield _task(manifest["task"])
    if "measured" in manifest:
        yield from _MEASURED[manifest["measured"]["kind"]](manifest["measured"], manifest)
    difference = manifest.get("largest_difference_from_plain_passes")
    if difference is not None:
        yield (
            f"Edited runs started at the edited layer; on a sample they differed from plain forward "
            f"passes by at most {difference:.1g}."
        )
    yield from _checks(manifest.get("checks") or ())
    yield _software(manifest)


def _model(model: Mapping[str, Any]) -> str:
    if "architecture" not in model:  # of somebody's own experiment
        return f"We studied {model['name']}."
    revision = f", revision {model['revision']}" if model.get("revision") else ""
    return (
        f"We studied {model['name']} ({model['architecture']}{revision}; {model['n_layers']} layers of "
        f"{model['n_heads']} heads; {model['dtype']}; hash of the weights {model['weight_hash'][:12]})."
    )


def _prompts(manifest: Mapping[str, Any]) -> str:
    prompts = manifest["prompts"]
    source = manifest["config"].get("prompts", {"kind": "given"})  # read_attention has but one
    lengths = {prompts["shortest"], prompts["longest"]}
    length = " to ".join(map(str, sorted(lengths)))
    kinds = {
        "repeated_random": "sequences of repeated random tokens, period "
        + " or ".join(map(str, source.get("periods", ()))),
        "text": f"windows of text from {prompts.get('source')}",
        "given": "given texts",
    }
    with_bos = prompts["bos_at_position_0"]
    bos = {0: "none", prompts["n_prompts"]: "all"}.get(with_bos, str(with_bos))
    return (
        f"Prompts were {prompts['n_prompts']} {kinds[source['kind']]} ({length} tokens each; {bos} of them "
        f"begin with BOS; SHA-256 of the token ids {prompts['sha256'][:12]})."
    )


def _task(task: Mapping[str, Any]) -> str:
    dropped = sum(task["dropped"].values())
    left_out = f"; {dropped} candidates were left out" if dropped else ""
    return (
        f"The task was {task['name']}: {task['n_examples']} prompts of {task['n_templates']} "
        f"templates{left_out}."
    )


def _intervals(manifest: Mapping[str, Any], over: str) -> str:
    level = manifest["config"]["confidence"]
    return f"Intervals are {100 * level:g} % bootstrap intervals over {over}"


def _observations(manifest: Mapping[str, Any]) -> str:
    """What is independent: prompts, or templates where prompts share one."""
    prompts = manifest["prompts"]
    shared = prompts.get("n_templates", prompts["n_prompts"]) < prompts["n_prompts"]
    return f"the {prompts['n_templates']} templates that prompts share" if shared else "prompts"


def _tests(manifest: Mapping[str, Any], flips: str, over: str, all_of: str) -> str:
    """Intervals and tests over these observations, false discoveries held over all of those."""
    how = CORRECTIONS[manifest["config"].get("correction", "bh")]
    return (
        f"{_intervals(manifest, over)}; p is from {flips} over {over}; q holds the false discovery rate over "
        f"{all_of} ({how})."
    )


def _scores(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"For every head and each of the roles {', '.join(measured['roles'])}, attention mass on the role's "
        "targets was averaged over the queries that have a target, then over prompts. Chance is the mass of "
        "uniform attention to all keys in reach; the null is the mass on position-matched wrong targets, "
        "moved by the same 1 to 8 tokens in a prompt."
    )
    paths = {"fused": "the fused operator's log-sum-exp", "tiled": "tiles of plain PyTorch"}
    how = [paths.get(path, path) for path in manifest.get("attention_paths", ())]
    if how:
        yield f"Post-softmax weights were computed exactly, from {' and '.join(how)}."
    flips = "one-sided sign flips of mass less null"
    yield _tests(manifest, flips, _observations(manifest), "all heads of a role")


def _effects(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"The effect of an edit ({', '.join(measured['edits'])}) is the {measured['metric']} after it less "
        f"that before, averaged over templates, since prompts of one template are dependent."
    )
    yield _tests(manifest, TWO_SIDED, "templates", f"all {measured['n_rows']} effects")


def _sinks(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    config = manifest["config"]
    yield (
        f"The first {', '.join(map(str, config['first_keys']))} keys of all heads were knocked out "
        f"({', '.join(config['knock_outs'])}); the effect is the loss after it less that before, averaged "
        f"over prompts, beside {config['n_random']} draws of as many other keys."
    )
    yield _tests(manifest, TWO_SIDED, _observations(manifest), "all knock-outs")


def _circuits(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Faithfulness of a set of heads is (m(set) − m(none)) / (m(all) − m(none)), m the "
        f"{measured['metric']} with the other heads ablated ({measured['ablation']}), beside random "
        f"sets with as many heads in every layer. {_intervals(manifest, 'templates')}."
    )


def _influence(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    config = manifest["config"]
    yield (
        f"For every head we put attention mass and the length of what is fetched (α v W_O) on the target "
        f"{measured['target']}, and direct logit attribution, beside its influence on the "
        f"{measured['metric']}: zero, mean and resample ablation, the direct effect, and a gradient "
        f"estimate. A head counts as looked at if its mass is above the null, above chance and at least "
        f"{config['least_mass']:g}; as used if the effect of {config['judged_by']} ablation is not 0 and "
        f"at least {config['least_share']:g} of what sets clean and corrupted prompts apart."
    )
    yield _tests(manifest, "sign flips", "templates", "all heads")
    yield "Intervals of Spearman's rank correlations are over templates, too."


_MEASURED = {
    "scores": _scores,
    "effects": _effects,
    "influence": _influence,
    "sinks": _sinks,
    "circuits": _circuits,
}


def _checks(checks: Any) -> Iterator[str]:
    if checks:
        worst = max(check["difference"] for check in checks)
        yield (
            f"Before the run, {len(checks)} checks held the attention weights and logits against the "
            f"library's own eager attention (largest difference {worst:.1g})."
        )


def _software(manifest: Mapping[str, Any]) -> str:
    environment = manifest["environment"]
    packages = environment["packages"]
    source = environment.get("source") or {}
    commit = f", commit {source['commit'][:12]}" if source.get("commit") else ""
    dirty = " with changes" if source.get("dirty") else ""
    threads = f", {manifest['threads']} CPU threads" if manifest.get("threads") else ""
    return (
        f"Experiment {manifest['experiment']} of interp {packages['interp']}{commit}{dirty}, PyTorch "
        f"{packages['torch']}, transformers {packages['transformers']}, Python {environment['python']}; "
        f"seed {manifest['seed']}{threads}."
    )
