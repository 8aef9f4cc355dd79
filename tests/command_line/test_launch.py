"""The front door: every bad input is one line and an exit code, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.command_line import launch as door
from experiments.command_line.compose import CONFIGS
from experiments.command_line.launch import launch, main
from experiments.command_line.listing import experiments, listing
from interp.runs import run_folder
from tests import example_experiment

pytestmark = pytest.mark.usefixtures("composed_once")

EXAMPLE = Path(example_experiment.__file__)
ROOT = EXAMPLE.parent.parent


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TQDM_DISABLE", "1")  # which launch() would set for good
    return tmp_path


def start(*arguments: str) -> int:
    return launch("find_sinks", list(arguments), example_experiment)


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    inherited = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    return subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# --- a run ---------------------------------------------------------------------------------------


def test_a_run_prints_its_results_and_keeps_them(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start("out=a/b", "seed=3") == 0
    out, err = capfd.readouterr()
    assert out == "layer head\n0     1→\n"
    assert err == f"find_sinks: results in {Path('a/b')}\n"
    manifest = run_folder.json.loads(Path("a/b/manifest.json").read_text(encoding="utf-8"))
    assert manifest["status"] == "done"
    assert manifest["seed"] == 3
    assert manifest["command"] == ["python", "-m", "experiments.find_sinks", "out=a/b", "seed=3"]
    assert manifest["files"].keys() == {
        "config.yaml",
        "figures/map.png",
        "methods.txt",
        "table.csv",
    }
    assert "wrote a table" in Path("a/b/log.txt").read_text(encoding="utf-8")
    assert sorted(path.name for path in here.iterdir()) == ["a"]


def test_the_folder_has_a_default_and_a_saved_config_runs_again(here: Path) -> None:
    assert start("prompts.length=64") == 0
    (first,) = Path("runs/find_sinks").iterdir()
    assert start("--config", str(first / "config.yaml")) == 0
    assert start(f"--config={first / 'config.yaml'}", "out=c") == 0
    both = list(Path("runs/find_sinks").iterdir())
    assert len(both) == 2
    assert len({(folder / "config.yaml").read_text() for folder in both}) == 1


# --- bad input -----------------------------------------------------------------------------------

BAD = [
    (["treshold=0.3"], "command line: unknown key 'treshold'; did you mean 'sink_rate.epsilon'?"),
    (["sede=1"], "command line: unknown key 'sede'; did you mean 'seed'?"),
    (["prompts.lenght=3"], "unknown key 'prompts.lenght'; did you mean 'prompts.length'?"),
    (["n_promts=3"], "unknown key 'n_promts'; did you mean 'prompts.n_prompts'?"),
    (["seed.x=1"], "unknown key 'seed.x'; did you mean 'seed'?"),
    (["sink_rate={epsilon:0.2,tokns:3}"], "unknown key 'sink_rate.tokns'; did you mean"),
    (["hydra.run.dir=x"], "unknown key 'hydra.run.dir'; find_sinks --help lists the keys"),
    (
        ["prompts.periods=[5]"],
        "'prompts.periods' is a key of prompts=repeated_random, but prompts is",
    ),
    (
        ["confidence=0,3"],
        "'confidence=0,3' gives several values; expected number > 0 and < 1, with",
    ),
    (["seed=1,2"], "'seed=1,2' gives several values; expected integer >= 0"),
    (["seed=1.5"], "command line: seed = 1.5: expected integer >= 0"),
    (["seed=true"], "seed = true: expected integer >= 0"),
    (["seed=\n3"], "expected integer"),
    (["seed="], 'seed = "": expected integer'),
    (["seed=[1"], "cannot read 'seed=[1'"),
    (["overwrite=yes"], 'overwrite = "yes": expected true or false; did you mean true?'),
    (["dtype=flaot32"], "expected one of float32, bfloat16, float16; did you mean float32?"),
    (["device=gpu"], "did you mean cuda?"),
    (
        ["prompts=txt"],
        'prompts = "txt": expected one of repeated_random, text, given; did you mean',
    ),
    (["prompts=null"], "prompts = null: expected one of"),
    (["prompts.kind=[1]"], "prompts = [1]: expected one of"),
    (["prompts=given"], "prompts.texts must be given, such as prompts.texts='When Mary"),
    (
        ["prompts=given", "prompts.texts=[]"],
        "prompts.texts = []: expected list of texts; it is empty",
    ),
    (["prompts.path=a.txt"], "command line: prompts: path is read with source=file only"),
    (["prompts=repeated_random", "prompts.periods=50"], "list of integers > 0; write [50]"),
    (
        ["prompts=repeated_random", "prompts.periods=null"],
        "= null: expected list of integers > 0\n",
    ),
    (["sink_rate=0.3"], "sink_rate = 0.3: expected section of epsilon, tokens or null"),
    (["model="], 'model = "": expected text; it is empty'),
    (["seed=a", "top=b"], "(and 1 more)"),
    (["seed"], "'seed' is not of the form key=value"),
    (["--seed=3"], "'--seed=3' is not of the form key=value; write seed=3"),
    (["+seed=3"], "write seed=3"),
    (["~seed"], "'~seed' is not of the form key=value"),
    (["=3"], "'=3' is not of the form key=value"),
    (["prompts@x=text"], "is not of the form key=value"),
    (["--config"], "--config needs a file"),
    (["--config", "none.yaml"], "cannot read none.yaml: No such file"),
    (["--config", "."], "cannot read ."),
    (["out=a\0b"], "null byte"),
]


def refused(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert start(*arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("find_sinks: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_arguments(
    arguments: list[str], message: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(arguments, message, capfd)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "treshold: 0.3",
            "x.yaml, line 1: unknown key 'treshold'; did you mean 'sink_rate.epsilon'?",
        ),
        ("seed: 1\nprompts:\n  lenght: 3", "x.yaml, line 3: unknown key 'prompts.lenght'; did you"),
        ("seed: 1\ntop: 3\nseed: 2", "x.yaml, line 3: the key 'seed' is there twice"),
        (
            "prompts.length: 1\nprompts: {length: 2}",
            "line 2: the key 'prompts.length' is there twice",
        ),
        (
            'sink_rate:\n  epsilon: "0,3"',
            'x.yaml, line 2: sink_rate.epsilon = "0,3": expected number',
        ),
        ("confidence: 0,3", "expected number > 0 and < 1; write 0.3, with a decimal point"),
        (
            'seed: "3"',
            'seed = "3": expected integer >= 0 and <= 4294967295; write it without quotes',
        ),
        ("revision: 123", "revision = 123: expected text or null; put it in quotes"),
        ("prompts: [text]", 'x.yaml, line 1: prompts = ["text"]: expected one of repeated_random'),
        ("prompts:\n  source: file", "x.yaml, line 2: prompts: source=file needs path=FILE"),
        ("defaults: [x]", "unknown key 'defaults'"),
        ("- seed", "expected lines of `key: value`, found list"),
        ("seed: [", "x.yaml, line 1: "),
    ],
)
def test_bad_files(text: str, message: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """C73, and more of its kind."""
    Path("x.yaml").write_text(text, encoding="utf-8")
    refused(["--config", "x.yaml"], message, capfd)
    assert [path.name for path in here.iterdir()] == ["x.yaml"]


@pytest.mark.parametrize("out", ["file", "file/below", "file/far/below"])
def test_output_on_a_file(out: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """C74."""
    Path("file").write_text("mine")
    refused([f"out={out}"], "out: file is a file, not a folder", capfd)
    assert Path("file").read_text() == "mine"
    assert len(list(here.iterdir())) == 1


def test_output_that_holds_something(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("mine")
    for more in ([], ["overwrite=true"]):
        refused(["out=mine", *more], "mine is not empty and holds no run", capfd)
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.tex"]
    assert start("out=run") == 0
    capfd.readouterr()
    refused(["out=run"], "run holds a finished run; overwrite=true replaces it", capfd)
    assert start("out=run", "overwrite=true", "seed=1") == 0
    assert "seed: 1\n" in Path("run/config.yaml").read_text()
    assert not [path for path in Path("run").iterdir() if path.name.startswith(".")]


# --- what goes wrong in an experiment ------------------------------------------------------------


def test_a_refusal_leaves_nothing(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start("model=refuse", "out=a/b") == 2
    assert capfd.readouterr().err == "find_sinks: no ordinary tokens left to draw\n"
    assert list(here.iterdir()) == []


def test_a_refusal_does_not_cost_the_run_it_was_to_replace(here: Path) -> None:
    assert start("out=run") == 0
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert start("out=run", "overwrite=true", "model=refuse") == 2
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


def test_interrupted(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start("model=interrupt", "out=run") == 130
    assert capfd.readouterr().err == "find_sinks: interrupted\n"
    assert list(here.iterdir()) == []
    assert start("model=interrupt_late", "out=run") == 130
    assert capfd.readouterr().err == "find_sinks: interrupted; what was finished is in run\n"
    manifest = run_folder.json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    assert manifest["status"] == "failed"
    assert "table.csv" in manifest["files"]


def test_full_disk(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert start("model=fill_disk", "out=run") == 2
    err = capfd.readouterr().err
    assert err.startswith("find_sinks: the disk is full ([Errno 28] No space left on device")
    assert err.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_bug_is_said_and_its_traceback_kept(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert start("model=bug", "out=run") == 1
    log = Path("run/log.txt")
    err = capfd.readouterr().err
    assert err == f"find_sinks: internal error, please report it with {log}: KeyError: 'a bug'\n"
    assert "Traceback" in log.read_text(encoding="utf-8")


def test_a_bug_before_there_is_a_run(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(here))
    monkeypatch.setattr(door, "_options", lambda *_: 1 / 0)
    assert start() == 1
    (report,) = here.iterdir()
    assert str(report) in capfd.readouterr().err
    assert "ZeroDivisionError" in report.read_text(encoding="utf-8")


# --- as a process --------------------------------------------------------------------------------


def test_help_is_quick_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # whatever the terminal of the tests is
    code = (
        "import sys, example_experiment as e; from experiments.command_line.launch import launch\n"
        "code = launch('find_sinks', ['--help'], e)\n"
        "sys.exit(code or bool({'torch', 'transformers', 'pandas', 'hydra'} & {*sys.modules}))"
    )
    before = os.times()
    done = python("-c", code)
    after = os.times()  # its work, not the clock's time: other tests may run beside this one
    used = after.children_user - before.children_user
    assert used + after.children_system - before.children_system < 2
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("An experiment for the tests of the front door.")
    for line in (
        "python -m experiments.find_sinks [--config FILE.yaml] [--multirun] [key=value ...]",
        "first_k=4                 integer > 0. Positions that the role sink_first_k takes",
        "with prompts=text (the default): Windows of plain text",
        "prompts.texts=            needed; list of texts.",
        "dtype=float32             one of float32, bfloat16, float16. Number type of the weights.",
        "model=gpt2",
    ):
        assert line in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_every_experiment_has_light_help() -> None:
    code = (
        "import sys; from experiments.command_line.launch import launch\n"
        "codes = [launch(name, ['--help']) for name in sys.argv[1:]]\n"
        "sys.exit(any(codes) or bool({'torch', 'transformers', 'pandas'} & {*sys.modules}))"
    )
    names = [name for name in experiments() if (CONFIGS / f"{name}.yaml").exists()]
    done = python("-c", code, *names)
    assert (done.returncode, done.stderr) == (0, "")
    for name in names:
        assert f"python -m experiments.{name} [--config FILE.yaml]" in done.stdout


def test_the_example_that_help_gives_of_reproduce_is_no_run_of_its_own(capfd) -> None:
    assert launch("reproduce", ["--help"]) == 0
    line = next(line for line in capfd.readouterr().out.splitlines() if "e.g. python" in line)
    assert line.endswith(" run=runs/first out=runs/first_again")


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("patch_heads", "task=indirect_objects model=gpt2"),
        ("ablate_heads", "ablate_heads model=gpt2"),
        ("resolve_pronoun", "sentences=frames model=gpt2"),
    ],
)
def test_the_example_that_help_gives_asks_no_other_model_about_the_little_world(
    name, example, capfd
) -> None:
    assert launch(name, ["--help"]) == 0
    line = next(line for line in capfd.readouterr().out.splitlines() if "e.g. python" in line)
    assert line.endswith(example)


def test_one_value_stands_by_itself_where_one_is_taken(capfd) -> None:
    assert launch("reproduce", ["a", "it's"]) == 2
    assert "one run is expected, and 2 are given: a, it's" in capfd.readouterr().err


def test_a_list_without_its_wrong_items_is_no_second_mistake(capfd) -> None:
    assert launch("check_circuit", ["shares=[0]"]) == 2
    assert "(and " not in capfd.readouterr().err
    assert launch("check_circuit", ["shares=[0]", "top=0", "seed=-1"]) == 2
    assert capfd.readouterr().err.endswith("(and 2 more)\n")


def test_as_a_process_nothing_heavy_is_loaded_for_bad_input(here: Path) -> None:
    done = python(str(EXAMPLE), "treshold=1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_console_that_lacks_a_sign_is_no_error(here: Path) -> None:
    done = python(str(EXAMPLE), PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert "\\u2192" in done.stdout
    assert done.stderr.count("\n") == 1


def test_no_progress_bars_where_there_is_no_terminal() -> None:
    done = python(str(EXAMPLE), "model=chatty", "out=run")
    assert (done.returncode, done.stderr) == (0, "find_sinks: results in run\n")


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes and signals")
def test_nobody_reads_any_more() -> None:
    path = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, str(EXAMPLE), "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_killed_run_can_be_replaced(here: Path) -> None:
    code = (
        "import sys, time, example_experiment as e; from experiments.command_line.launch import launch\n"
        "def hang(folder): e.write(folder); sys.stdout.flush(); time.sleep(60)\n"
        "e.BEHAVIOURS['default'] = hang\n"
        "launch('find_sinks', ['out=run'], e)"
    )
    path = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        second = python(str(EXAMPLE), "out=run", "overwrite=true")
        assert second.returncode == 2
        assert f"run is in use by another run (process {process.pid} on" in second.stderr
        process.send_signal(signal.SIGKILL)
    assert '"status": "running"' in Path("run/manifest.json").read_text()
    assert start("out=run", "seed=1") == 2
    assert start("out=run", "overwrite=true") == 0


# --- the list ------------------------------------------------------------------------------------


def test_the_list_is_of_files_that_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = '"""Does {}?\n\nMore."""\nimport no_such_module\n'
    for name in ("ask_that", "ask_this"):
        main_block = "if __name__ == '__main__':\n    pass\n"
        (tmp_path / f"{name}.py").write_text(text.format(name) + main_block)
    (tmp_path / "helper.py").write_text(text.format("helper"))
    monkeypatch.setattr("experiments.command_line.listing.EXPERIMENTS", tmp_path)
    assert experiments() == {"ask_that": "Does ask_that?", "ask_this": "Does ask_this?"}
    assert main([]) == main(["--help"]) == 0
    out, err = capfd.readouterr()
    assert out == f"{listing()}\n" * 2
    assert "  ask_this  Does ask_this?\n" in out
    assert err == ""
    assert main(["ask_thsi"]) == 2
    expected = "interp: there is no experiment 'ask_thsi'; did you mean ask_this?\n"
    assert capfd.readouterr().err == expected
    assert main(["xyz"]) == 2
    assert main(["--version"]) == 0


def test_python_m_experiments() -> None:
    done = python("-m", "experiments")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{listing()}\n"
