"""Every experiment from its command line to its files, on a tiny random Llama read from a folder."""

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, MambaConfig, T5Config

import experiments
from experiments.command_line.launch import launch, main
from experiments.command_line.listing import experiments as listed
from interp.attention.door import implementation
from interp.errors import InterpError
from interp.inputs.prompts import given_prompts, repeated_random_prompts
from interp.models.model import load_model
from interp.results import summaries, tables
from interp.results.stability import stability
from interp.runs import strict_yaml
from interp.scoring import scores
from interp.scoring.nulls import score_nulls
from interp.scoring.roles import ROLES
from interp.weights.named_pairs import named_against_others
from tests.families import tiny_model
from tests.tokenizers_ import word_tokenizer

pytestmark = pytest.mark.usefixtures("composed_once")

ROOT = Path(experiments.__file__).parent.parent
WORDS = " ".join(f"t{3 + (7 * i * i + i) % 61}" for i in range(400))
HEADS = [(layer, head) for layer in range(3) for head in range(4)]


class Run(NamedTuple):
    code: int
    folder: Path
    out: str
    err: str


def start(name: str, arguments: list[str], folder: Path) -> Run:
    """Run an experiment in this process, as the command line would."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = launch(name, [*arguments, f"out={folder}"])
    return Run(code, folder, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")  # which launch() would set for good
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)  # an experiment sets them, too


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model in `model` and a plain text in `words.txt`. Don't change it."""
    place = tmp_path_factory.mktemp("place")
    tiny_model("llama", vocab_size=64).save_pretrained(place / "model")
    word_tokenizer(place / "model")
    (place / "words.txt").write_text(WORDS)
    return place


STABILITY = {"stability.csv", "stability.png", "stability.pdf"}
SCORES = {"table.csv", "per_prompt.parquet", "heads.png", "heads.pdf"} | STABILITY
RECORDS = {"config.yaml", "log.txt", "manifest.json", "methods.txt"}
TEXT = ["prompts.source=file", "prompts.path={place}/words.txt", "prompts.length=24", "bos=on"]
COPYING = ["task=copying", "task.n_prompts=3", "task.period=5"]
EFFECTS = {"table.csv", "per_prompt.parquet", "effects.png", "effects.pdf"} | STABILITY
RUNS: dict[str, tuple[list[str], set[str], list[str]]] = {
    "find_sinks": (
        [*TEXT, "prompts.n_prompts=6", "sink_rate={tokens: 16}"],
        SCORES | {"sink_rate.csv"},
        ["sink_first", "sink_first_4", "sink_bos", "sink_fresh", "sink_repeat", "sink_any"],
    ),
    "find_previous_token": (
        ["prompts.periods=[9,13]", "prompts.n_prompts=5", "seed=3"],
        SCORES,
        ["previous_token", "current_token"],
    ),
    "find_induction": (
        ["prompts.periods=[9]", "prompts.n_prompts=4", "prompts.repeats=3", "bos=on", "top=3"],
        SCORES,
        ["induction", "induction_last", "duplicate_token"],
    ),
    "find_heads": (
        [
            "prompts=given",
            'prompts.texts=["t5 t6 t7 t8 t5 t6","t9 t8 t9 t8"]',
            "nulls=[random_init,shuffled]",
        ],
        SCORES | {"nulls.csv"},
        [*ROLES],
    ),
    "ablate_heads": (
        [
            "task.n_prompts=4",
            "task.period=7",
            "ablation=resample",
            "together=[1.0,2.3]",
            "n_random=3",
        ],
        EFFECTS | {"sets.csv", "sets_per_prompt.parquet"},
        [],
    ),
    "knock_out_sinks": (
        [*TEXT, "prompts.n_prompts=3", "first_keys=[1,4]", "by_layer=true", "n_random=1"],
        {"table.csv", "per_prompt.parquet", "mass.csv", "sinks.png", "sinks.pdf"},
        [],
    ),
    "evict_cache": (
        [*TEXT, "prompts.n_prompts=3", "budget=6", "pins=[1,2]", "n_checked=2"],
        {
            "table.csv",
            "per_prompt.parquet",
            "positions.csv",
            "heads.csv",
            "heads_per_prompt.parquet",
            "agreement.csv",
            "evictions.png",
            "evictions.pdf",
        },
        [],
    ),
    "find_hypotheses": (
        [*TEXT, "prompts.n_prompts=4", "n_hypotheses=3", "role=duplicate_token"],
        {
            "table.csv",
            "tests.csv",
            "per_prompt.parquet",
            "hypotheses.png",
            "hypotheses.pdf",
        },
        [],
    ),
    "find_composition": (
        ["prompts.periods=[9]", "prompts.n_prompts=3", "least_mass=0", "n_random=5", "top=3"],
        {
            "table.csv",
            "copying.csv",
            "heads.csv",
            "tests.csv",
            "composition.png",
            "composition.pdf",
        },
        [],
    ),
    "weight_vs_influence": (
        ["task.n_prompts=4", "task.period=7", "target=induction_last", "judged_by=mean"],
        {"table.csv", "per_prompt.parquet", "agreement.csv", "influence.png", "influence.pdf"},
        [],
    ),
    "split_effects": (
        ["task=copying", "task.n_prompts=4", "task.period=7", "ablation=zero"],
        EFFECTS,
        [],
    ),
    "patch_heads": ([*COPYING, "positions=all", "direction=noise"], EFFECTS, []),
    "trace_paths": ([*COPYING, "receivers=[q1.0,k2.1]"], EFFECTS, []),
    "attribute_heads": (
        [*COPYING, "site=q", "correct_qk=true", "audit=3", "n_random=4"],
        EFFECTS | {"audit.csv"},
        [],
    ),
    "check_circuit": (
        [
            *("task=copying", "task.n_prompts=6", "task.period=7", "ablation=resample"),
            *("circuit=given", "circuit.heads=early: 0.1 0.2; late: 2.3", "shares=[0.1,0.5]"),
        ],
        {
            "table.csv",
            "areas.csv",
            "heads.csv",
            "per_prompt.parquet",
            "faithfulness.png",
            "faithfulness.pdf",
        },
        [],
    ),
    "read_attention": (
        ["prompt=t5 t6 t7 t5", "layer=1", "head=2", "query=2", "k=2"],
        {"table.csv", "table.parquet", "row.png", "row.pdf"},
        [],
    ),
}
RUNS |= {  # the lesson
    "attention_by_hand": (
        ["queries=[[1.2,0.4],[0.3,-1]]", "n_heads=[1,4]"],
        {"table.csv", "outputs.csv", "flops.csv", "steps.png", "steps.pdf"},
        [],
    ),
    "causal_mask": (
        [*TEXT, "prompts.n_prompts=3", "n_cuts=2"],
        {"table.csv", "positions.csv", "prefixes.csv", "causality.png", "causality.pdf"},
        [],
    ),
    "attention_cost": (
        ["lengths=[16,32,64]", "n_heads=2", "d_head=8", "repeats=1"],
        {"table.csv", "exponents.csv", "cost.png", "cost.pdf"},
        [],
    ),
    "kv_cache_size": (
        ["models=[{place}/model]", "load=true", "kv_heads=[2,1]", "n_heads=4", "memory_gb=0.5"],
        {"table.csv", "growth.csv", "measured.csv", "cache.png", "cache.pdf"},
        [],
    ),
    "score_scaling": (
        [*TEXT, "prompts.n_prompts=3", "d_k=[1,8]", "n_draws=20"],
        {"table.csv", "heads.csv", "losses.csv", "scaling.png", "scaling.pdf"},
        [],
    ),
}
WITHOUT_MODEL = {"attention_by_hand", "attention_cost", "kv_cache_size"}
SCORING = [name for name, (_, _, roles) in RUNS.items() if roles]
ALL = pytest.mark.parametrize("name", RUNS)
EACH = pytest.mark.parametrize("name", SCORING)


def model_in(place: Path) -> list[str]:
    """One thread: a second one costs such a model more than it helps."""
    return [f"model={place / 'model'}", "threads=1"]


def arguments_of(name: str, place: Path) -> list[str]:
    filled = [argument.replace("{place}", str(place)) for argument in RUNS[name][0]]
    return [*(["threads=1"] if name in WITHOUT_MODEL else model_in(place)), *filled]


@pytest.fixture
def done(place: Path) -> Callable[[str], Run]:
    """Each experiment, run once for all tests."""

    def run(name: str) -> Run:
        return _run_once(name, place)

    return run


@functools.cache
def _run_once(name: str, place: Path) -> Run:
    return start(name, arguments_of(name, place), place / name)


def strict(text: str) -> dict:
    """JSON without NaN, Infinity or a key given twice."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    def once(pairs: list[tuple[str, object]]) -> dict:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ------------------------------------------------------------------------------ what a run leaves


def test_every_experiment_is_run_here():
    """But those in tests of their own: form_heads further below, resolve_pronoun, and others."""
    own = {"form_heads", "train_default_model", "reproduce", "report", "resolve_pronoun"}
    assert listed().keys() == RUNS.keys() | own


@ALL
def test_a_run_leaves_its_files_and_nothing_else(name, done):
    run = done(name)
    assert (run.code, run.err) == (0, f"{name}: results in {run.folder}\n")
    paper = {"table.tex"} if "table.csv" in RUNS[name][1] else set()
    assert {path.name for path in run.folder.iterdir()} == RUNS[name][1] | RECORDS | paper
    for path in run.folder.iterdir():
        begins = {".png": b"\x89PNG", ".pdf": b"%PDF", ".parquet": b"PAR1"}.get(path.suffix, b"")
        assert path.stat().st_size and path.read_bytes().startswith(begins)


@ALL
def test_the_manifest_is_strict_and_says_what_was_run(name, done, place):
    folder = done(name).folder
    manifest = strict((folder / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["experiment"], manifest["status"], manifest["error"]) == (name, "done", None)
    if name not in WITHOUT_MODEL:
        model = load_model(place / "model")
        assert manifest["model"]["weight_hash"] == model.weight_hash
        assert manifest["model"]["architecture"] == "LlamaForCausalLM"
        assert len(manifest["checks"]) == 4
        for check in manifest["checks"]:
            assert check["passed"] and check["difference"] <= check["allowed"]
    paper = {"methods.txt"} | ({"table.tex"} if "table.csv" in RUNS[name][1] else set())
    assert manifest["files"].keys() == RUNS[name][1] | {"config.yaml"} | paper
    for file, entry in manifest["files"].items():
        assert entry["sha256"] == sha256(folder / file)
    config, _ = strict_yaml.load(folder / "config.yaml")
    assert config == manifest["config"] and config["threads"] == 1
    assert name in WITHOUT_MODEL or config["model"] == str(place / "model")
    assert manifest["environment"]["packages"]["torch"] == torch.__version__
    log = (folder / "log.txt").read_text(encoding="utf-8")
    assert f"{name} begins" in log and f"{name} is done" in log
    assert name in WITHOUT_MODEL or "LlamaForCausalLM" in log


def test_the_manifest_says_what_the_prompts_were(done, place):
    """The hash of the ids, which can be worked out from the config alone, and of the source."""

    def prompts_of(name: str) -> dict:
        return strict((done(name).folder / "manifest.json").read_text())["prompts"]

    assert prompts_of("read_attention") == {
        "bos": "tokenizer",
        "n_prompts": 1,
        "n_templates": 1,
        "n_tokens": 4,
        "shortest": 4,
        "longest": 4,
        "bos_at_position_0": 0,
        "truncated": {},
        "sha256": hashlib.sha256(b"[[5,6,7,5]]").hexdigest(),
    }
    given = hashlib.sha256(b"[[5,6,7,8,5,6],[9,8,9,8]]").hexdigest()
    assert prompts_of("find_heads")["sha256"] == given
    text = prompts_of("find_sinks")
    assert text["source_sha256"] == sha256(place / "words.txt")
    assert text["source"] == str(place / "words.txt")
    assert (text["n_tokens"], text["bos_at_position_0"], text["bos"]) == (6 * 24, 6, "on")
    random = prompts_of("find_previous_token")
    assert (random["shortest"], random["longest"], random["n_tokens"]) == (18, 26, 3 * 18 + 2 * 26)
    assert prompts_of("find_induction")["n_tokens"] == 4 * (1 + 3 * 9)


@EACH
def test_the_tables_agree_with_one_another(name, done):
    """A row for each role and head; the summary is that of the values per prompt, best first."""
    folder = done(name).folder
    table, rows = (tables.read(folder / file) for file in ("table.csv", "per_prompt.parquet"))
    pd.testing.assert_frame_equal(table, summaries.summarise(rows, seed=3 * (name == SCORING[1])))
    assert table.role.unique().tolist() == RUNS[name][2]
    for _, ranked in table.groupby("role", sort=False):
        assert sorted(zip(ranked.layer, ranked["head"], strict=True)) == HEADS
        defined = ranked.mass.dropna()
        assert defined.is_monotonic_decreasing and ranked.mass.iloc[: len(defined)].notna().all()
    assert set(table.attention_path) <= {"fused", "tiled"}


@EACH
def test_a_short_ranked_table_is_printed(name, done):
    """Per role the best heads of the table, no more than `top`, and nothing wider than a screen."""
    run = done(name)
    table = tables.read(run.folder / "table.csv")
    top = 3 if name == "find_induction" else 10
    sections = [part.splitlines() for part in run.out.split("\n\n") if "note: " not in part]
    assert len(sections) >= len(RUNS[name][2])
    for role, lines in zip(RUNS[name][2], sections, strict=False):
        ranked = table[table.role == role]
        title, columns, *shown = filter(str.strip, lines)
        assert title == f"{role}: 12 heads"
        if ranked.mass.isna().all():
            assert columns == f"  undefined: {ranked.undefined_reason.iloc[0]}" and not shown
            continue
        assert columns.split()[:3] == ["layer", "head", "mass"]
        best = ranked.dropna(subset="mass").head(top)
        expected = zip(best.layer, best["head"], best.mass.map("{:.4f}".format), strict=True)
        assert [line.split()[:3] for line in shown] == [[*map(str, row)] for row in expected]
        assert len(shown) == top and max(map(len, shown)) <= 120


def test_what_else_is_printed(done):
    heads, sinks = done("find_heads").out, done("find_sinks").out
    assert heads.startswith(
        "note: with 2 prompts no p is below 0.25; a single real effect among 12 tests can't reach q < 0.05 "
        "(BH: at best 1): take 8 prompts or more\n"  # 12 · 2⁻⁸ = 0.047
    )
    assert "sink_bos: 12 heads\n  undefined: no BOS token in the prompt" in heads
    rate = tables.read(done("find_sinks").folder / "sink_rate.csv").set_index("layer")
    assert (rate.n_heads["all"], rate.n_prompts["all"], rate.tokens["all"]) == (12, 6, 16)
    line = (
        f"sink rate (Gu et al.): {rate.sink_rate['all']:.1%} of 12 heads have more than 0.3 on the"
    )
    assert line in sinks


def test_what_so_few_prompts_can_show_is_said_first_and_recorded(done, place, here, monkeypatch):
    """Printed before anything is scored, logged, in the manifest; nothing is said where there are enough."""
    folder = done("find_heads").folder
    assert strict((folder / "manifest.json").read_text())["tests"] == {
        "n_observations": 2,
        "n_tests": 12,
        "sides": 1,
        "correction": "bh",
        "smallest_p": 0.25,
        "smallest_q": 1.0,
        "observations_needed": 8,
    }
    assert "WARNING with 2 prompts no p is below 0.25" in (folder / "log.txt").read_text()

    def fail(*args, **kwargs):
        raise InterpError("stopped here")

    monkeypatch.setattr("interp.scoring.scores.score_heads", fail)
    arguments = [*model_in(place), "prompts.periods=[5]", "correction=by"]
    few = start("find_induction", [*arguments, "prompts.n_prompts=9"], here / "few")
    assert (few.code, few.err) == (2, "find_induction: stopped here\n")
    assert few.out.endswith("(BY: at best 0.073): take 10 prompts or more\n")  # 12 · 3.10 · 2⁻⁹
    enough = start("find_induction", [*arguments, "prompts.n_prompts=10"], here / "enough")
    assert (enough.code, enough.out) == (2, "")


@pytest.mark.parametrize(
    ("name", "measuring", "arguments", "note"),
    [  # 3 · 12 one-sided tests and 12 two-sided ones, with 4 prompts and with 3
        (
            "find_hypotheses",
            "interp.lesson.hypotheses.measure",
            ["level=0.01"],
            "q < 0.01 (BH: at best 1): take 12 prompts or more\n",  # 36 · 2⁻¹²
        ),
        (
            "evict_cache",
            "interp.lesson.eviction_effects.evict",
            ["correction=by"],
            "q < 0.05 (BY: at best 1): take 11 prompts or more\n",  # 12 · 3.10 · 2⁻¹⁰
        ),
    ],
)
def test_the_lesson_says_so_too(place, here, monkeypatch, name, measuring, arguments, note):
    def fail(*args, **kwargs):
        raise InterpError("stopped here")

    monkeypatch.setattr(measuring, fail)
    run = start(name, [*arguments_of(name, place), *arguments], here / "few")
    assert (run.code, run.err) == (2, f"{name}: stopped here\n")
    assert run.out.startswith("note: with ") and run.out.endswith(note)


def test_what_can_not_be_ablated_is_refused_before_anything_is_said(place, here):
    tiny_model("falcon", vocab_size=64).save_pretrained(here / "falcon")
    word_tokenizer(here / "falcon")
    others = [one for one in arguments_of("find_hypotheses", place) if "model=" not in one]
    run = start("find_hypotheses", [*others, f"model={here / 'falcon'}"], here / "run")
    assert (run.code, run.out) == (2, "") and run.err == (
        "find_hypotheses: FalconForCausalLM does not take its attention from transformers' interface\n"
    )


@pytest.mark.parametrize("name", [*SCORING, "ablate_heads", "split_effects", "attribute_heads"])
def test_the_stability_card_is_that_of_the_values_by_prompt(name, done):
    run = done(name)
    card = tables.read(run.folder / "stability.csv")
    rows = tables.read(run.folder / "per_prompt.parquet")
    seed = 3 * (name == SCORING[1])
    pd.testing.assert_frame_equal(card, stability(rows, seed=seed))
    last = run.out.split("\n\n")[-1].splitlines()
    assert last[0].startswith(f"stability: rank agreement of two halves of {card.n_total.max()} ")
    reasons = card.undefined_reason.nunique()  # a line each
    assert len(last) == 2 + card.ranking.nunique() + reasons


def test_the_nulls_asked_for(done, place):
    """As the library gives them, and the best head of each role is printed beside them."""
    run = done("find_heads")
    table = tables.read(run.folder / "nulls.csv")
    model = load_model(place / "model")
    texts = ["t5 t6 t7 t8 t5 t6", "t9 t8 t9 t8"]
    prompts = given_prompts(model, texts)
    expected = score_nulls(model, prompts, ROLES, scores.score_heads(model, prompts))
    pd.testing.assert_frame_equal(table, expected)
    for null in ("random_init", "shuffled"):
        assert f"\n{null}: for each role the head of most mass beside itself" in run.out
    assert (
        "  undefined for sink_first, previous_token, current_token: the role's targets are"
        in run.out
    )


def test_texts_of_one_template_are_one_observation(place, here):
    """Three texts of two templates: the interval is over two, and a test has two signs to flip."""
    texts = 'prompts.texts=["t5 t6 t7 t5 t6","t9 t8 t4 t9 t8","t9 t3 t4 t9 t3"]'
    arguments = [*model_in(place), "prompts=given", texts, "prompts.templates=[a,a,b]"]
    run = start("find_induction", arguments, here / "run")
    assert run.code == 0, run.err
    assert run.out.startswith("note: with 2 templates no p is below 0.25; ")
    table, rows = (tables.read(run.folder / f) for f in ("table.csv", "per_prompt.parquet"))
    assert (table.n_templates == 2).all() and (table.n_prompts == 3).all()
    assert rows.template.unique().tolist() == ["a", "b"]
    one = rows[(rows.layer == 1) & (rows["head"] == 2) & (rows.role == "induction")]
    row = table[(table.layer == 1) & (table["head"] == 2) & (table.role == "induction")].iloc[0]
    assert row.mass == pytest.approx(one.groupby("template").mass.mean().mean())
    assert row.mass != pytest.approx(one.mass.mean()) and table.p.min() == 0.25
    assert strict((run.folder / "manifest.json").read_text())["prompts"]["n_templates"] == 2


def test_the_row_of_read_attention(done, place):
    """The k largest weights, as eager attention has them, and the rest."""
    run = done("read_attention")
    hf_model = load_model(place / "model").hf_model
    with torch.no_grad(), implementation(hf_model, "eager"):
        out = hf_model(torch.tensor([[5, 6, 7, 5]]), output_attentions=True)
    weights = out.attentions[1][0, 2, 2, :3]
    table = tables.read(run.folder / "table.csv")
    assert table.key.tolist() == weights.argsort(descending=True).tolist()
    np.testing.assert_allclose(table.weight, weights.sort(descending=True).values, atol=1e-6)
    lines = run.out.splitlines()
    assert lines[0] == "layer 1, head 2: query 2 ('t7') of 4 tokens looks at"
    assert lines[1].split() == ["key", "key_token", "weight"]
    expected = [
        [str(row.key), repr(row.key_token), f"{row.weight:.4f}"]
        for row in table.head(2).itertuples()
    ]
    assert [line.split() for line in lines[2:4]] == expected
    assert lines[4].endswith(f": {1 - table.weight.head(2).sum():.4f}") and len(lines) == 5


def test_the_numbers_are_those_of_eager_attention(done, place):
    """A second witness: the prompts drawn again, the library's own weights, plain means."""
    rows = tables.read(done("find_previous_token").folder / "per_prompt.parquet")
    rows = rows.set_index(["role", "layer", "head", "prompt"]).sort_index()
    model = load_model(place / "model")
    prompts = repeated_random_prompts(model, n_prompts=5, periods=(9, 13), seed=3)
    for prompt in prompts:
        with torch.no_grad(), implementation(model.hf_model, "eager"):
            out = model.hf_model(torch.tensor([prompt.ids]), output_attentions=True)
        for layer, head in HEADS:
            weights = out.attentions[layer][0, head]
            previous = rows.loc["previous_token", layer, head, prompt.name]
            current = rows.loc["current_token", layer, head, prompt.name]
            n = len(prompt.ids)
            assert previous.mass == pytest.approx(weights.diagonal(-1).mean().item(), abs=1e-5)
            assert current.mass == pytest.approx(weights.diagonal()[1:].mean().item(), abs=1e-5)
            assert previous.n_queries == current.n_queries == n - 1
            chance = sum(1 / keys for keys in range(2, n + 1)) / (n - 1)
            assert previous.chance == pytest.approx(chance)


@pytest.mark.parametrize("name", ["find_induction", "read_attention"])
def test_the_saved_config_runs_again_to_the_same_bytes(name, done, here):
    first = done(name).folder
    again = start(name, ["--config", str(first / "config.yaml")], here / "again").folder
    for file in RUNS[name][1]:
        assert (again / file).read_bytes() == (first / file).read_bytes(), file
    if name == "read_attention":
        config = ["--config", str(first / "config.yaml")]
        other = start(name, [*config, "head=1"], here / "other").folder
        assert (other / "table.csv").read_bytes() != (first / "table.csv").read_bytes()


def test_heads_forming_from_the_first_step(here):
    """form_heads trains the default model anew: here it stops before it has begun."""
    arguments = ["until=1", "threads=1", "prompts.n_prompts=2", "prompts.periods=[9]"]
    run = start("form_heads", arguments, here / "run")
    assert (run.code, run.err) == (0, f"form_heads: results in {run.folder}\n")
    files = {path.name for path in run.folder.iterdir() if path.is_file()}
    assert files >= {"heads.csv", "losses.csv", "formation.png", "formation.pdf"} | RECORDS
    heads, losses = (tables.read(run.folder / f"{name}.csv") for name in ("heads", "losses"))
    assert heads.step.unique().tolist() == losses.step.unique().tolist() == [0]
    assert losses.tokens.tolist() == ["fresh", "repeat"]
    assert losses.loss.between(6, 14).all()  # untrained: at best log 773 = 6.65
    assert strict((run.folder / "manifest.json").read_text())["status"] == "done"


def test_the_pairs_of_find_composition_are_those_of_its_named_heads(done):
    """Named by heads.csv, first in table.csv's K rows, tested in tests.csv, printed."""
    run = done("find_composition")
    heads, pairs, tests = (
        tables.read(run.folder / f"{name}.csv") for name in ("heads", "table", "tests")
    )
    ends = {
        role: [*zip(rows.layer, rows["head"], strict=True)][: 2 if role == "previous_token" else 3]
        for role, rows in heads.groupby("role")
    }
    wanted = {(*a, *b) for a in ends["previous_token"] for b in ends["induction"] if a[0] < b[0]}
    named = pairs[pairs.named]
    assert set(map(tuple, named.iloc[:, 1:5].to_numpy().tolist())) == wanted and wanted
    assert len(pairs) == 3 * 3 * 4**2 and (named.kind.value_counts() == len(wanted)).all()
    pd.testing.assert_frame_equal(named_against_others(pairs, group_size=2), tests)
    manifest = strict((run.folder / "manifest.json").read_text())
    assert manifest["named"] == {role: [*map(list, some)] for role, some in ends.items()}
    for layer, head in ends["induction"]:
        assert f"{layer}.{head} (mass " in run.out


def test_a_role_of_ones_own_from_a_file(place, here):
    Path("mine.py").write_text(
        "def two_back(p):\n    return [(q, q - 2) for q in range(2, len(p.ids))]\n"
    )
    arguments = ["prompts.periods=[5]", "prompts.n_prompts=2", "roles=[mine.py:two_back,induction]"]
    run = start("find_heads", [*model_in(place), *arguments], here / "run")
    assert run.code == 0, run.err
    table = tables.read(run.folder / "table.csv")
    assert table.role.unique().tolist() == ["two_back", "induction"]
    assert (table[table.role == "two_back"].n_queries == 2 * (10 - 2)).all()


def test_a_truncated_prompt_is_recorded(place, here):
    """C66."""
    arguments = ["prompts=given", f"prompts.texts={'t5 t6 ' * 35}", "prompts.truncate=true"]
    run = start("find_previous_token", [*model_in(place), *arguments], here / "run")
    assert run.code == 0, run.err
    prompts = strict((run.folder / "manifest.json").read_text())["prompts"]
    assert (prompts["longest"], prompts["truncated"]) == (64, {"given-0": 70})


def test_prompts_without_repeats_are_a_result_and_not_a_zero(place, here):
    """C64."""
    arguments = [*model_in(place), "prompts=given", "prompts.texts=t5 t6 t7 t8"]
    run = start("find_induction", arguments, here / "run")
    assert run.code == 0
    assert "induction: 12 heads\n  undefined: no token of the prompt occurs twice" in run.out
    assert "0.0000" not in run.out
    assert tables.read(run.folder / "table.csv").mass.isna().all()


# --------------------------------------------------------------------------------------- bad input


def no_tokenizer(folder: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()


def no_words(folder: Path) -> None:
    """Every word of the vocabulary that the model has is made a special token."""
    word_tokenizer(folder, extra_special_tokens=[f"t{i}" for i in range(3, 64)])


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def garble(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no weights at all")


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def not_a_number(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights[name][3, 5] = torch.nan
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return spoil


def config_of(config_type: type, architecture: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config_type(architectures=[architecture]).save_pretrained(folder)

    return spoil


class Bad(NamedTuple):
    name: str
    arguments: list[str]
    message: str
    spoil: Callable[[Path], None] | None = None


GIVEN = ["prompts=given"]
SHORT = ["prompts.periods=[5]", "prompts.n_prompts=2"]
ROW = ["prompt=t5 t6 t5", "layer=0", "head=0"]
WINDOWS = ["prompts.source=file", "prompts.length=12", "prompts.n_prompts=2"]
BAD = {
    "empty prompt": Bad(
        "find_sinks", [*GIVEN, "prompts.texts=['']"], 'prompts.texts = "": expected'
    ),
    "blank prompt": Bad(
        "find_sinks", [*GIVEN, "prompts.texts=['t5 t6','  ']"], "prompt '  ' is empty"
    ),
    "empty text": Bad("read_attention", ["prompt=", *ROW[1:]], "it is empty"),
    "blank text": Bad("read_attention", ["prompt= ", *ROW[1:]], "the prompt ' ' is empty"),
    "one token": Bad("find_sinks", [*GIVEN, "prompts.texts=t5"], "the prompt 't5' is one token"),
    "one token to read": Bad("read_attention", ["prompt=t5", *ROW[1:]], "is one token, which can"),
    "over the context": Bad(
        "find_heads", [*GIVEN, f"prompts.texts={'t5 ' * 65}"], "prompt 0: 65 tokens > 64"
    ),
    "reading over the context": Bad(
        "read_attention", [f"prompt={'t5 ' * 64}", "bos=on", *ROW[1:]], "65 tokens > 64"
    ),
    "repeats over the context": Bad("find_heads", ["prompts.periods=[33]"], "66 tokens > 64"),
    "windows over the context": Bad("find_sinks", ["prompts.length=65"], "65 tokens > 64"),
    "layer": Bad("read_attention", [*ROW, "layer=3"], "layer=3: .* has layers 0 to 2"),
    "circuit": Bad(
        "check_circuit",
        ["task=copying", "circuit=given", "circuit.heads=0.1 2.4"],
        r"set 'circuit', head 2\.4: .* has query heads 0 to 3",
    ),
    "ranking": Bad("check_circuit", ["task=copying", "ranking=no.csv"], "no table no.csv"),
    "one template": Bad(
        "check_circuit",
        ["task=copying", "task.n_prompts=1", "task.period=5"],
        r"one template \(1 prompt\)",
    ),
    "a head of a set": Bad(
        "ablate_heads", ["task.period=5", "together=[1.0,2.10]"], "query heads 0 to 3 .* no head 10"
    ),
    "no other heads": Bad(
        "ablate_heads",
        ["task.period=5", "together=1.0 1.1 1.2"],
        "layer 1: 3 of 4 heads are named, which leaves 1 to compare",
    ),
    "no room for the control": Bad(
        "knock_out_sinks",
        [*GIVEN, f"prompts.texts={'t5 ' * 12}", "first_keys=[4]"],
        "12 tokens: too few to hold the first 4 keys .* at least 16",
    ),
    "head": Bad("read_attention", [*ROW, "head=4"], "head=4: layer 0 of .* has heads 0 to 3"),
    "query": Bad("read_attention", [*ROW, "query=3"], "query=3: the prompt has 3 tokens, 0 to 2"),
    "query from the end": Bad(
        "read_attention", [*ROW, "query=-4"], "query=-4: the prompt has 3 tok"
    ),
    "query token": Bad("read_attention", [*ROW, "query_token=t9"], "'t9' occurs nowhere among the"),
    "query token twice": Bad(
        "read_attention",
        [*ROW, "query_token=t5"],
        r"'t5' occurs at positions \[0, 2\]: give query=",
    ),
    "no ordinary tokens": Bad("find_heads", SHORT, "no ordinary tokens left to draw", no_words),
    "too few ordinary tokens": Bad(
        "find_heads", ["prompts.periods=[62]"], "62 distinct tokens asked for, the model has 61"
    ),
    "text too short": Bad(
        "find_sinks",
        [*WINDOWS, "prompts.path=short.txt"],
        "3 tokens: enough for 0 windows of 12, 2",
    ),
    "text missing": Bad("find_sinks", [*WINDOWS, "prompts.path=no.txt"], "no text file no.txt"),
    "text empty": Bad("find_sinks", [*WINDOWS, "prompts.path=empty.txt"], "empty.txt is empty"),
    "text binary": Bad(
        "find_sinks", [*WINDOWS, "prompts.path=binary"], "binary is not text in UTF-8"
    ),
    "text a folder": Bad(
        "find_sinks", [*WINDOWS, "prompts.path=."], "cannot read .: Is a directory"
    ),
    "text below a file": Bad(
        "find_sinks", [*WINDOWS, "prompts.path=short.txt/x"], "cannot read short.txt/x: Not a dir"
    ),
    "too short for the sink rate": Bad(
        "find_sinks",
        ["prompts.length=12", "prompts.n_prompts=2", "sink_rate={}"],
        "of 64 tokens or more",
    ),
    "no tokenizer": Bad("find_heads", SHORT, "holds no tokenizer", no_tokenizer),
    "weights cut": Bad("find_heads", SHORT, "model.safetensors is damaged or truncated", cut),
    "weights garbled": Bad(
        "find_heads", SHORT, "model.safetensors is damaged or truncated", garble
    ),
    "weights a pickle": Bad("find_heads", SHORT, "only the pickle pytorch_model.bin", pickle_only),
    "encoder": Bad(
        "find_heads",
        SHORT,
        "BertForMaskedLM is an encoder: ",
        config_of(BertConfig, "BertForMaskedLM"),
    ),
    "encoder-decoder": Bad(
        "find_heads",
        SHORT,
        "is an encoder-decoder",
        config_of(T5Config, "T5ForConditionalGeneration"),
    ),
    "no attention": Bad(
        "find_heads", SHORT, "has no attention heads", config_of(MambaConfig, "MambaForCausalLM")
    ),
    "NaN in a head": Bad(
        "find_heads",
        SHORT,
        r"layer 1 \(LlamaAttention\), head 0: the attention output is NaN",
        not_a_number("model.layers.1.self_attn.v_proj.weight"),
    ),
    "NaN in the logits": Bad(
        "read_attention", ROW, "the logits are NaN or infinite", not_a_number("lm_head.weight")
    ),
    "no model": Bad(
        "find_heads", ["model=./nowhere"], "./nowhere: there is no such file or folder"
    ),
    "no model in the cache": Bad(
        "find_heads", ["model=no/where"], "no/where: there is no such file or"
    ),
    "model a file": Bad(
        "find_heads", ["model=short.txt"], "short.txt is a file: expected a folder"
    ),
    "no device": Bad("find_heads", ["device=mps"], "device: mps is not available here"),
    "output a file": Bad("find_heads", ["out=short.txt"], "out: short.txt is a file, not a folder"),
    "output below a file": Bad("find_heads", ["out=short.txt/run"], "out: short.txt is a file"),
    "output taken": Bad("find_heads", ["out=model"], "out: model is not empty and holds no run"),
    "templates where each prompt counts": Bad(
        "causal_mask",
        [*GIVEN, 'prompts.texts=["t5 t6 t7","t8 t9 t5"]', "prompts.templates=[a,a]"],
        "prompts.templates: causal_mask takes each prompt by itself; leave them out",
    ),
    "a template short": Bad(
        "find_heads",
        [*GIVEN, 'prompts.texts=["t5 t6 t7","t8 t9 t5"]', "prompts.templates=[a]"],
        "templates holds 1 names for 2 texts; expected one each",
    ),
    "a null twice": Bad(
        "find_heads", [*SHORT, "nulls=[shuffled,shuffled]"], "nulls.*twice; expected each once"
    ),
    "no such null": Bad("find_heads", [*SHORT, "nulls=[suffled]"], "nulls.*suffled"),
    "no such correction": Bad("find_heads", [*SHORT, "correction=bonferroni"], "correction.*bh"),
    "no role": Bad("find_heads", ["roles=[inductoin]"], "did you mean induction"),
    "no file of roles": Bad(
        "find_heads", ["roles=[no.py:x]", *SHORT], "roles: no file no.py to take"
    ),
    "a file without the role": Bad(
        "find_heads",
        ["roles=[mine.py:two_bakc]", *SHORT],
        "mine.py defines no role named 'two_bakc'",
    ),
    "a role that looks ahead": Bad(
        "find_heads",
        ["roles=[mine.py:ahead]", *SHORT, "prompts.n_prompts=8"],
        "query 0 cannot look at key 1; expected",
    ),
}


@pytest.fixture
def room(place: Path, here: Path) -> Path:
    """A working directory with a model of its own and files that are not what they should be."""
    shutil.copytree(place / "model", here / "model")
    (here / "short.txt").write_text("t5 t6 t7")
    (here / "empty.txt").write_text(" \n")
    (here / "binary").write_bytes(bytes(range(256)))
    (here / "mine.py").write_text(
        "def two_back(p):\n    return [(q, q - 2) for q in range(2, len(p.ids))]\n\n"
        "def ahead(p):\n    return [(0, 1)]\n"
    )
    return here


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(case, room, capfd):
    """Exit code 2, one line that says what, no traceback, and every file as it was before."""
    name, arguments, message, spoil = BAD[case]
    if spoil is not None:
        spoil(room / "model")
    before = contents(room)
    refused(name, ["model=model", "threads=1", *arguments], message, capfd)
    assert contents(room) == before


def refused(
    name: str, arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    code = launch(name, last_of_each(arguments))
    out, err = capfd.readouterr()
    assert (code, out) == (2, ""), err
    assert err.startswith(f"{name}: ") and err.endswith("\n") and err.count("\n") == 1
    assert "Traceback" not in err and "internal error" not in err
    assert re.search(message, err), err


def last_of_each(arguments: list[str]) -> list[str]:
    """A key that is given again replaces the one before it."""
    return [*{argument.partition("=")[0]: argument for argument in arguments}.values()]


def test_attention_that_is_not_what_the_model_does_is_no_result(room, capfd, monkeypatch):
    """The door's pattern against the library's own: a family that scales in another place."""
    import transformers.models.llama.modeling_llama as llama

    own = llama.eager_attention_forward
    monkeypatch.setattr(
        llama, "eager_attention_forward", lambda *args, **kw: own(*args, **kw | {"scaling": 0.01})
    )
    before = contents(room)
    message = "fails the check 'pattern equals eager attention"
    refused("find_heads", ["model=model", "threads=1", *SHORT], message, capfd)
    assert contents(room) == before


def test_a_full_disk_loses_nothing_that_was_finished(room, capfd, monkeypatch):
    def full(table, path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(tables, "write", full)
    message = "the disk is full .*No space left.*; what was finished is in full$"
    refused(
        "find_heads",
        ["model=model", "threads=1", *SHORT, "prompts.n_prompts=8", "out=full"],
        message,
        capfd,
    )
    assert [path.name for path in Path("full/parts/scores").iterdir()] == ["0.npz"]
    assert not Path("full/table.csv").exists()


def test_a_run_that_is_stopped_goes_on_and_ends_the_same(room, capfd, monkeypatch):
    """Before the first batch nothing is left; after it the batch is there and not measured again."""
    same = ["model=model", "threads=1", *SHORT, "prompts.n_prompts=4", "batch_size=1"]
    before = contents(room)
    capture, calls = scores.capture, []

    def stopped_at(number: int) -> None:
        def counted(*args, **kwargs):
            calls.append(args)
            if len(calls) == number:
                raise KeyboardInterrupt
            return capture(*args, **kwargs)

        calls.clear()
        monkeypatch.setattr(scores, "capture", counted)

    stopped_at(1)
    assert launch("find_heads", last_of_each([*same, "out=run"])) == 130
    assert capfd.readouterr().err == "find_heads: interrupted\n"
    assert contents(room) == before
    stopped_at(3)
    assert launch("find_heads", last_of_each([*same, "out=run"])) == 130
    assert "what was finished is in run" in capfd.readouterr().err
    assert sorted(path.name for path in Path("run/parts/scores").iterdir()) == ["0.npz", "1.npz"]
    Path("run/parts/scores/1.npz").write_bytes(
        Path("run/parts/scores/1.npz").read_bytes()[:100]
    )  # half written
    stopped_at(0)
    assert launch("find_heads", last_of_each([*same, "out=run"])) == 0
    assert len(calls) == 3
    out = capfd.readouterr().out
    assert launch("find_heads", last_of_each([*same, "out=whole"])) == 0
    assert capfd.readouterr().out == out
    for name in ("table.csv", "per_prompt.parquet", "heads.png"):
        assert Path("run", name).read_bytes() == Path("whole", name).read_bytes(), name
    assert not Path("run/parts").exists()


# -------------------------------------------------------------------------------------- as a process


def process(command: list[str], here: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    return subprocess.run(
        command,
        cwd=here,
        env={**inherited, "PYTHONHASHSEED": "17", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_python_m_from_a_process_gives_the_same_bytes(done, place, here):
    """Another process, where sets have another order: the same table, figure and values."""
    command = [sys.executable, "-m", "experiments.find_sinks", *arguments_of("find_sinks", place)]
    ran = process([*command, "out=run"], here, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]))
    first = done("find_sinks")
    assert (ran.returncode, ran.stderr) == (0, "find_sinks: results in run\n")
    assert ran.stdout == first.out
    for file in RUNS["find_sinks"][1]:
        assert (here / "run" / file).read_bytes() == (first.folder / file).read_bytes(), file
    manifest = strict((here / "run" / "manifest.json").read_text())
    assert manifest["command"][:4] == ["python", "-m", "experiments.find_sinks", command[3]]


def test_the_console_script_runs_an_experiment(done, place, here):
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = main(["read_attention", *arguments_of("read_attention", place)])
    assert (code, out.getvalue()) == (0, done("read_attention").out)
    (folder,) = Path("runs/read_attention").iterdir()
    assert err.getvalue() == f"read_attention: results in {folder}\n"
    first = done("read_attention").folder
    assert (folder / "table.csv").read_bytes() == (first / "table.csv").read_bytes()


def test_the_console_script_is_not_hidden_by_a_package_of_the_users(here):
    """In a folder with an experiments/ of one's own, where `python -m` finds that, `interp` is ours."""
    (script,) = entry_points(group="console_scripts", name="interp")
    assert script.load() is main
    Path("experiments").mkdir()
    Path("experiments/__init__.py").write_text("raise SystemExit('the wrong package')\n")
    wrong = process([sys.executable, "-m", "experiments.read_attention", "--help"], here)
    assert (wrong.returncode, wrong.stderr) == (1, "the wrong package\n")
    path = Path(sys.executable).with_name("interp")
    assert path.exists()
    ran = process([str(path), "read_attention", "--help"], here)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Where does one query of one head look?")
