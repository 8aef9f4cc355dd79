"""The shape of the house, read from the source: imports point backwards, and rooms keep their secrets.

The line is that of the README's map: what a module needs stands before it. A new module is put into
`LINE`, at a place where that is still true.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments
import interp
from experiments.command_line import listing

INTERP = Path(interp.__file__).parent
EXPERIMENTS = Path(experiments.__file__).parent

LINE = (
    ["errors", "arguments", "words"],
    [
        "runs.files",
        "runs.parts",
        "runs.lock",
        "runs.environment",
        "runs.strict_yaml",
    ],  # what a run stands on
    ["attention.masks", "attention.kernels", "attention.pattern", "attention.door"],
    ["models.checkpoint_checks", "models.loading", "models.tokens", "models.model"],
    [
        "scoring.roles",
        "circuits.head_sets",
        "sinks.prompt_length",
        "inputs.prompts",
        "attention.questions",
    ],
    ["models.forward", "models.checks"],
    [
        "results.stats",
        "results.columns",
        "lesson.tables",
        "results.score_tables",
        "results.effect_tables",
        "results.weight_tables",
        "results.influence_tables",
        "results.circuit_tables",
        "results.tables",
        "results.latex",
        "results.summaries",
        "results.stability",
        "results.figures",
        "results.stability_figure",
        "results.findings",
    ],  # of any table: they know of no model
    [
        "scoring.targets",
        "scoring.scores",
        "scoring.nulls",
        "scoring.sink_rate",
        "scoring.reading",
        "scoring.formation",
    ],
    [
        "config.common",
        "config.reruns",
        "config.scoring",
        "config.training",
        "config.effects",
        "config.circuits",
    ],
    [
        "lesson.config",
        "runs.methods",
        "runs.run_folder",
        "runs.single_file",
        "runs.rerun",
        "runs.finished",
    ],
    ["editing.sites", "editing.edits"],  # touching what passes the door
    ["weights.norms", "weights.head_weights", "weights.named_pairs", "weights.composition"],
    ["pretraining.world", "pretraining.training"],
    ["inputs.tasks", "inputs.pronoun_frames", "inputs.sentences", "inputs.years"],
    ["inputs.pronoun_sets"],
    ["editing.metrics", "editing.passes", "editing.sweep"],  # many edits at once
    [
        "interventions.effects",
        "interventions.ablation",
        "interventions.patching",
        "interventions.paths",
        "interventions.gradients",
        "interventions.outputs",
        "interventions.influence_figure",
        "interventions.direct",
        "interventions.quadrants",
        "interventions.influence",
        "interventions.together",
    ],  # does it matter?
    ["sinks.sink_figure", "sinks.sink_effects", "sinks.sink_mass"],
    ["circuits.faithfulness_figure", "circuits.faithfulness", "circuits.check"],
    ["report.cells", "report.contents", "report.views", "report.page"],  # runs as one page
    [
        "lesson.by_hand",
        "lesson.multi_head",
        "lesson.scaling",
        "lesson.rescaling",
        "lesson.losses",
        "lesson.causality",
        "lesson.online_softmax",
        "lesson.attention_ways",
        "lesson.cost",
        "lesson.kv_cache",
        "lesson.figures",
        "lesson.eviction",
        "lesson.cache_steps",
        "lesson.eviction_effects",
        "lesson.eviction_figure",
        "lesson.hypotheses",
        "lesson.hypotheses_figure",
        "lesson.partial_scores",
        "lesson.pronouns",
        "lesson.pronouns_figure",
    ],  # the lesson
)
PLACE = {name: place for place, name in enumerate(name for room in LINE for name in room)}


def module_name(path: Path) -> str:
    """As it stands in the line: "errors", or "lesson.cost" in a room, whose own name is "lesson"."""
    name = ".".join(path.relative_to(INTERP).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {
    module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in INTERP.rglob("*.py")
}
PACKAGES = {module_name(path) for path in INTERP.rglob("__init__.py")}  # they import nothing
SCRIPTS = {
    ".".join(path.relative_to(EXPERIMENTS).with_suffix("").parts): ast.parse(
        path.read_text(encoding="utf-8")
    )
    for path in EXPERIMENTS.rglob("*.py")
}


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def nodes(tree: ast.AST, *, also_for_types: bool = False) -> Iterator[ast.AST]:
    """All nodes, also those inside functions, but what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if also_for_types or not is_for_types(node):
            yield node
            yield from nodes(node, also_for_types=also_for_types)


def imported(tree: ast.AST, *, also_for_types: bool = False) -> set[str]:
    """Full names of the modules that are imported, from interp one by one: "interp.attention.masks"."""
    found = set()
    for node in nodes(tree, also_for_types=also_for_types):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute here"
            whole = node.module in {"experiments", "interp", *(f"interp.{p}" for p in PACKAGES)}
            found |= {f"{node.module}.{a.name}" for a in node.names} if whole else {node.module}
    return found


def own(names: set[str]) -> set[str]:
    """The modules of interp among them, by their names in the line."""
    ours = (name.removeprefix("interp.") for name in names if name.startswith("interp."))
    return {name if name in MODULES else name.partition(".")[0] for name in ours}


def test_every_module_has_its_place_in_the_line():
    assert MODULES.keys() - PACKAGES == PLACE.keys()


@pytest.mark.parametrize("name", sorted(MODULES.keys() - PACKAGES))
def test_imports_point_backwards(name):
    """Also those inside functions, which Python would allow to go round in a circle."""
    forwards = {other for other in own(imported(MODULES[name])) if PLACE[other] >= PLACE[name]}
    assert not forwards, f"{name} imports {forwards}, which come after it"


def test_the_reader_of_imports_reads_them():
    """A test that saw no import would pass whatever happened."""
    tree = ast.parse(
        "from interp import arguments\nfrom interp.attention.masks import causal\n"
        "import interp.scoring.roles\nfrom interp.results import stats\n"
        "if TYPE_CHECKING:\n    from interp.scoring.scores import x\n"
        "def f():\n    from interp.models.model import y\n"
    )
    found = {"arguments", "attention.masks", "scoring.roles", "results.stats", "models.model"}
    assert own(imported(tree)) == found
    assert own(imported(tree, also_for_types=True)) == found | {"scoring.scores"}
    assert own(imported(MODULES["scoring.scores"])) >= {"models.forward", "attention.pattern"}
    assert sum(len(own(imported(tree))) for tree in MODULES.values()) > 50


def test_no_public_name_is_that_of_a_module():
    """An imported submodule becomes an attribute of its package, and would stand in the name's place."""
    assert not set(interp.__all__) & {path.stem for path in INTERP.iterdir()}


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_a_package_itself_imports_nothing(name):
    assert not own(imported(MODULES[name]))


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_library_knows_of_no_experiment_and_of_no_command_line(name):
    """Nor prints: a function gives values back, and the experiments print."""
    tops = {other.partition(".")[0] for other in imported(MODULES[name], also_for_types=True)}
    assert not tops & {"experiments", "argparse", "click", "hydra", "omegaconf", "tqdm"}
    called = {ast.unparse(node.func) for node in nodes(MODULES[name]) if isinstance(node, ast.Call)}
    assert not called & {
        "print",
        "sys.stdout.write",
        "sys.stderr.write",
        "input",
        "exit",
        "sys.exit",
    }
    attributes = {
        ast.unparse(node) for node in nodes(MODULES[name]) if isinstance(node, ast.Attribute)
    }
    assert (
        name == "runs.run_folder" or "sys.argv" not in attributes
    )  # a run records its command line


def constants(tree: ast.AST) -> Iterator[str]:
    """String constants that are no docstrings, those inside f-strings too."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if text and id(node) not in docstrings:
            yield node.value


def test_one_file_knows_the_names_of_hooks():
    """TransformerLens' hook points, such as "blocks.3.attn.hook_pattern", are named in models/forward.py."""
    users = {
        name
        for name, tree in (MODULES | SCRIPTS).items()
        if any(re.search(r"\bhook_[a-z]+|\.hook_", text) for text in constants(tree))
    }
    assert users == {"models.forward"}


def test_only_the_door_registers_with_transformers_and_only_it_is_asked():
    """Nobody else touches the attention implementation; modules are hooked by edits and their sites."""
    names = {"AttentionInterface", "AttentionMaskInterface", "_attn_implementation_internal"}
    hooks = {"register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"}
    users = {}
    for name, tree in (MODULES | SCRIPTS).items():
        text = {getattr(node, "attr", getattr(node, "id", None)) for node in ast.walk(tree)}
        users[name] = text & (names | hooks)
    assert {name for name, found in users.items() if found & names} == {"attention.door"}
    assert {name for name, found in users.items() if found & hooks} == {
        "editing.sites",
        "editing.edits",
    }
    assert users["attention.door"] == names


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in MODULES if name.startswith("config.")),
        "lesson.config",
        "scoring.roles",
        *("runs.strict_yaml", "runs.run_folder", "runs.files", "runs.environment"),
    ],
)
def test_what_the_command_line_needs_first_imports_nothing_heavy(name):
    """So that --help and a misspelt key are answered at once."""
    heavy = {"torch", "transformers", "pandas", "pandera", "scipy", "matplotlib"}
    waiting, seen = [name], set()
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += own(imported(MODULES[current]))
            tops = {other.partition(".")[0] for other in imported(MODULES[current])}
            assert not tops & heavy, current


def test_a_file_among_the_experiments_is_one():
    """What they share is in steps/ and command_line/."""
    here = {name for name in SCRIPTS if "." not in name} - {"__init__", "__main__"}
    assert here == set(listing.experiments())


def test_every_experiment_makes_the_same_moves():
    """A docstring, Config, run(config, folder), and a last line that goes through the front door."""
    found = [name for name in SCRIPTS if name.startswith("find_")] + ["read_attention"]
    assert len(found) >= 5
    for name in found:
        tree = SCRIPTS[name]
        assert ast.get_docstring(tree)
        assert [n.args.args[1].arg for n in tree.body if getattr(n, "name", "") == "run"] == [
            "folder"
        ]
        assert ast.unparse(tree.body[-1].body[0]) == f"sys.exit(launch('{name}'))"
        assert len((EXPERIMENTS / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 120
