"""What was run, as a paragraph for a paper: from the manifest alone, so that it says what was done.

It names the model by its weights, what was measured over how many prompts, the null, the intervals and
the correction, and the software. Nothing in it is from memory; what a manifest does not hold is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from interp.words import counted

TWO_SIDED = "two-sided sign flips"
NULLS = {
    "random_init": "the same architecture with weights drawn anew",
    "shuffled": "the prompts' tokens in another order",
}
CORRECTIONS = {"bh": "Benjamini–Hochberg", "by": "Benjamini–Yekutieli"}


def methods(manifest: Mapping[str, Any], question: str = "") -> str:
    """The paragraph, of whole sentences; one line.

    Args:
        manifest: of a finished run, as manifest.json holds it.
        question: what the experiment asks; said where the manifest does not say what was measured.
    """
    return " ".join(_sentences(manifest, question))


def _sentences(manifest: Mapping[str, Any], question: str) -> Iterator[str]:
    if "model" in manifest:
        yield _model(manifest["model"])
    if "prompts" in manifest:
        yield _prompts(manifest)
    if "task" in manifest:
        yield _task(manifest["task"])
    if "measured" in manifest:
        yield from _MEASURED[manifest["measured"]["kind"]](manifest["measured"], manifest)
    elif question:
        yield f"The question was: {question}"
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
    size = f"{counted(model['n_layers'], 'layer')} of {counted(model['n_heads'], 'head')}"
    return (
        f"We studied {model['name']} ({model['architecture']}{revision}; {size}; {model['dtype']}; hash of "
        f"the weights {model['weight_hash'][:12]})."
    )


def _prompts(manifest: Mapping[str, Any]) -> str:
    prompts = manifest["prompts"]
    source = manifest["config"].get("prompts", {"kind": "given"})  # read_attention has but one
    lengths = {prompts["shortest"], prompts["longest"]}
    length = " to ".join(map(str, sorted(lengths)))
    periods = " or ".join(map(str, source.get("periods", ())))
    what, of = {
        "repeated_random": ("sequence", f" of repeated random tokens, period {periods}"),
        "text": ("window", f" of text from {prompts.get('source')}"),
        "given": ("given text", ""),
    }[source["kind"]]
    with_bos = prompts["bos_at_position_0"]
    bos = {0: "none", prompts["n_prompts"]: "all"}.get(with_bos, str(with_bos))
    return (
        f"We used {counted(prompts['n_prompts'], what)}{of} ({length} tokens each; {bos} of them "
        f"begin with BOS; SHA-256 of the token ids {prompts['sha256'][:12]})."
    )


def _task(task: Mapping[str, Any]) -> str:
    dropped = sum(task["dropped"].values())
    left_out = f"; {counted(dropped, 'candidate')} left out" if dropped else ""
    return (
        f"The task was {task['name']}: {counted(task['n_examples'], 'prompt')} of "
        f"{counted(task['n_templates'], 'template')}{left_out}."
    )


def _intervals(manifest: Mapping[str, Any], over: str) -> str:
    level = manifest["config"]["confidence"]
    return f"Intervals are {100 * level:g} % bootstrap intervals over {over}"


def _observations(manifest: Mapping[str, Any]) -> str:
    """What is independent: prompts, or templates where prompts share one."""
    prompts = manifest["prompts"]
    shared = prompts.get("n_templates", prompts["n_prompts"]) < prompts["n_prompts"]
    if not shared:
        return "prompts"
    return f"the {counted(prompts['n_templates'], 'template')} that prompts share"


def _tests(manifest: Mapping[str, Any], flips: str, over: str, all_of: str) -> str:
    """Intervals and tests over these observations, false discoveries held over all of those."""
    if manifest.get("tests", {}).get("n_observations", 2) < 2:
        return f"There are neither intervals nor tests: these would be over {over}, and there is but one."
    how = CORRECTIONS[manifest["config"].get("correction", "bh")]
    return (
        f"{_intervals(manifest, over)}; p is from {flips} over {over}; q holds the false discovery rate over "
        f"{all_of} ({how})."
    )


def _scores(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    roles = f"the role {measured['roles'][0]}"
    if len(measured["roles"]) > 1:
        roles = f"each of the roles {', '.join(measured['roles'])}"
    over = _observations(manifest)
    yield (
        f"For every head and {roles}, attention mass on the role's targets was averaged over the queries "
        f"that have a target, then over {over}. Chance is the mass of uniform attention to all keys in "
        "reach; the null is the mass on position-matched wrong targets, moved by the same 1 to 8 tokens in "
        "a prompt."
    )
    paths = {"fused": "the fused operator's log-sum-exp", "tiled": "tiles of plain PyTorch"}
    how = [paths.get(path, path) for path in manifest.get("attention_paths", ())]
    if how:
        yield f"Post-softmax weights were computed exactly, from {' and '.join(how)}."
    flips = "one-sided sign flips of mass less null"
    yield _tests(manifest, flips, over, "all heads of a role")
    if manifest["config"].get("nulls"):
        others = " and ".join(NULLS[name] for name in manifest["config"]["nulls"])
        yield f"Masses were also held against those of all heads under further nulls: {others}."
    if rate := manifest["config"].get("sink_rate"):
        yield (
            f"The sink rate is the share of heads whose mean attention to the first of {rate['tokens']} "
            f"tokens is above {rate['epsilon']:g} (Gu et al., 2410.10781)."
        )


def _effects(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    edits = "; ".join(measured["edits"])
    if measured.get("sites"):
        edits += f", of {', '.join(measured['sites'])}"
    how = "was estimated from gradients" if measured.get("estimated") else "was measured"
    yield (
        f"The effect of an edit ({edits}) is the {measured['metric']} after it less that before, and {how}; "
        "it was averaged over templates, since prompts of one template are dependent."
    )
    yield _tests(manifest, TWO_SIDED, "templates", f"all {counted(measured['n_rows'], 'effect')}")


def _sinks(measured: Mapping[str, Any], manifest: Mapping[str, Any]) -> Iterator[str]:
    config = manifest["config"]
    n = config["n_random"]
    beside = f", beside {counted(n, 'draw')} of as many other keys" if n else ""
    yield (
        f"The first {', '.join(map(str, config['first_keys']))} keys of all heads were knocked out "
        f"({', '.join(config['knock_outs'])}); the effect is the loss after it less that before, averaged "
        f"over prompts{beside}."
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
    yield "Spearman's rank correlations have symmetric bootstrap intervals over templates."


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
        names = ", ".join(check["name"] for check in checks)
        yield (
            f"Before the run the model passed {counted(len(checks), 'check')}: {names}; the largest "
            f"difference was {worst:.1g}."
        )


def _software(manifest: Mapping[str, Any]) -> str:
    environment = manifest["environment"]
    packages = environment["packages"]
    source = environment.get("source") or {}
    commit = f", commit {source['commit'][:12]}" if source.get("commit") else ""
    dirty = " with changes" if source.get("dirty") else ""
    threads = f", {counted(manifest['threads'], 'CPU thread')}" if manifest.get("threads") else ""
    return (
        f"Experiment {manifest['experiment']} of interp {packages['interp']}{commit}{dirty}, PyTorch "
        f"{packages['torch']}, transformers {packages['transformers']}, Python {environment['python']}; "
        f"seed {manifest['seed']}{threads}."
    )
