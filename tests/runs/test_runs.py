"""A run owns its folder."""

import errno
import hashlib
import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from interp.config.scoring import FindSinksConfig
from interp.errors import InterpError
from interp.runs import environment, files, lock, run_folder
from interp.runs.run_folder import open_run

CONFIG = FindSinksConfig(seed=7)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def strictly(path: Path) -> dict[str, object]:
    """Read JSON as a strict reader does: without NaN and Infinity."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    data = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert isinstance(data, dict)
    return data


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- the manifest --------------------------------------------------------------------------------


def test_manifest_from_start_to_end() -> None:
    with open_run("run", "find_sinks", CONFIG, command=["interp", "find_sinks"]) as folder:
        running = strictly(Path("run/manifest.json"))
        assert (running["status"], running["finished"]) == ("running", None)
        folder.record(model={"name": "m", "hash": "abc"}, checks=[])
        folder.write("table.csv", "a\n1\n")
        folder.path("parts/0.bin").write_bytes(b"1")
    done = strictly(Path("run/manifest.json"))
    assert done["status"] == "done"
    assert str(done["started"]) <= str(done["finished"])
    assert str(done["started"]).endswith("+00:00")
    assert done["command"] == ["interp", "find_sinks"]
    assert done["config"] == CONFIG.model_dump(mode="json")
    assert (done["seed"], done["threads"]) == (7, 2)
    assert done["model"] == {"name": "m", "hash": "abc"}
    assert done["files"].keys() == {"config.yaml", "parts/0.bin", "table.csv"}
    digest = hashlib.sha256(b"a\n1\n").hexdigest()
    assert done["files"]["table.csv"] == {"sha256": digest, "bytes": 4}
    packages = done["environment"]["packages"]
    assert packages["torch"] and packages["hydra-core"] and "transformer-lens" in packages
    assert done["environment"]["cpus"] == os.cpu_count()
    assert done["environment"]["processor"] == environment.processor()
    assert not Path("run/.lock").exists()


def test_what_is_no_number_is_null() -> None:
    """C72."""
    with open_run("run", "find_sinks", CONFIG) as folder:
        folder.record(
            check={"nan": math.nan, "inf": [math.inf, -math.inf], "one": 1.5},
            numpy={"nan": np.float32("nan"), "array": np.array([1.0, np.nan]), "n": np.int64(3)},
            path=Path("a/b"),
        )
    read = strictly(Path("run/manifest.json"))
    assert read["check"] == {"nan": None, "inf": [None, None], "one": 1.5}
    assert read["numpy"] == {"nan": None, "array": [1.0, None], "n": 3}
    assert read["path"] == str(Path("a/b"))
    with pytest.raises(TypeError, match="JSON has no form for object"):
        files.plain({"a": object()})


def test_log_is_in_the_folder_only(caplog: pytest.LogCaptureFixture) -> None:
    handlers = list(logging.getLogger().handlers)
    with open_run("run", "find_sinks", CONFIG) as folder:
        folder.log.info("a token: %s", "Ġé")
    assert "INFO a token: Ġé" in Path("run/log.txt").read_text(encoding="utf-8")
    assert caplog.records == []
    assert logging.getLogger().handlers == handlers
    assert "find_sinks" not in logging.Logger.manager.loggerDict


def test_source_is_the_commit_of_this_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))  # as in a git hook; it must not be followed
    source = environment.source_commit()
    assert source is None or source.keys() == {"commit", "dirty"}
    monkeypatch.delenv("GIT_DIR")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    installed = tmp_path / "venv" / "site-packages" / "interp" / "runs" / "environment.py"
    monkeypatch.setattr(environment, "__file__", str(installed))
    installed.parent.mkdir(parents=True)
    assert environment.source_commit() is None
    monkeypatch.setenv("PATH", "")
    assert environment.source_commit() is None


def test_peak_memory_is_in_bytes() -> None:
    peak = environment.peak_memory()
    assert peak is None or 10 * 2**20 < peak < 2**40


def test_the_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux names it, the first of several; elsewhere as Python does; where neither can, not at all."""
    told = (
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nmodel\t\t: 1\n"
    )
    monkeypatch.setattr(environment, "_text", lambda path: told)
    assert environment.processor() == "AMD EPYC, cpu family 25, model 1"
    monkeypatch.setattr(environment, "_text", lambda path: "")
    monkeypatch.setattr(environment.platform, "processor", lambda: "arm")
    assert environment.processor() == "arm"
    monkeypatch.setattr(environment.platform, "processor", lambda: "")
    assert environment.processor() is None


# --- how it ends ---------------------------------------------------------------------------------


def test_a_refusal_takes_away_only_what_the_run_wrote() -> None:
    Path("run").mkdir()
    with pytest.raises(InterpError), open_run("run", "find_sinks", CONFIG) as folder:
        folder.write("figures/a.png", b"1")
        Path("run/notes.md").write_text("put there meanwhile")
        raise InterpError("no")
    assert [path.name for path in Path("run").iterdir()] == ["notes.md"]


def test_a_failure_keeps_all_and_says_where() -> None:
    with pytest.raises(ZeroDivisionError) as failure, open_run("run", "x", CONFIG) as folder:
        folder.write("table.csv", "a\n")
        raise ZeroDivisionError("bug")
    assert failure.value.__notes__ == ["run folder: run"]
    manifest = strictly(Path("run/manifest.json"))
    assert (manifest["status"], manifest["error"]) == ("failed", "ZeroDivisionError('bug')")
    assert "table.csv" in manifest["files"]
    assert "Traceback" in Path("run/log.txt").read_text(encoding="utf-8")


def test_the_disk_fills_up_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the manifest and the log can't be written: the error still arrives, the files stay."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError) as failure, open_run("run", "x", CONFIG) as folder:
        folder.write("table.csv", "a\n")
        monkeypatch.setattr(os, "fsync", full)
        monkeypatch.setattr(folder._log_file, "emit", full)
        folder.write("table.csv", "new\n")
    assert files.is_full(failure.value)
    assert Path("run/table.csv").read_text() == "a\n"
    assert strictly(Path("run/manifest.json"))["status"] == "running"
    assert not Path("run/.lock").exists()
    assert not list(Path("run").glob(".tmp-*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_log_on_a_full_disk_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_file = run_folder._LogFile
    monkeypatch.setattr(run_folder, "_LogFile", lambda path: log_file(Path("/dev/full")))
    with pytest.raises(InterpError, match="cannot write in run: No space left on device"):
        open_run("run", "x", CONFIG)
    assert list(here.iterdir()) == []


def test_a_disk_that_is_full_from_the_start(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lock.socket, "gethostname", full)  # while the lock is written
    with pytest.raises(InterpError, match="cannot write in a/run: No space left on device"):
        open_run("a/run", "x", CONFIG)
    assert list(here.iterdir()) == []


# --- the folder ----------------------------------------------------------------------------------


def test_a_name_must_stay_in_the_folder() -> None:
    with open_run("run", "x", CONFIG) as folder:
        for name in ("../a", "/a", "b/../../a"):
            with pytest.raises(ValueError, match="leads out"):
                folder.path(name)


def test_two_runs_in_one_second_get_two_folders() -> None:
    with open_run(None, "x", CONFIG) as one, open_run(None, "x", CONFIG) as two:
        assert one.root != two.root
        assert one.root.parent == two.root.parent == Path("runs/x")


@pytest.mark.parametrize("out", ["file", "file/a"])
def test_a_file_in_the_way(out: str, here: Path) -> None:
    """C74."""
    Path("file").touch()
    with pytest.raises(InterpError, match="out: file is a file, not a folder"):
        open_run(out, "x", CONFIG)
    with pytest.raises(InterpError, match="null byte"):
        open_run("a\0b", "x", CONFIG)
    with pytest.raises(InterpError, match="cannot write in"):
        open_run("new/" + "x" * 300, "x", CONFIG)
    assert [path.name for path in here.iterdir()] == ["file"]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_that_may_not_be_written(here: Path) -> None:
    Path("locked").mkdir(mode=0o500)
    for out in ("locked", "locked/a"):
        with pytest.raises(InterpError, match="Permission denied"):
            open_run(out, "x", CONFIG)


def test_overwriting_replaces_runs_only() -> None:
    with open_run("run", "x", CONFIG) as folder:
        folder.write("old.csv", "old")
    before = content(Path("run"))
    with pytest.raises(InterpError, match="holds a finished run; overwrite=true replaces it"):
        open_run("run", "x", CONFIG)
    assert content(Path("run")) == before
    with open_run("run", "x", CONFIG, overwrite=True) as folder:
        folder.write("new.csv", "new")
    names = {path.name for path in Path("run").iterdir()}
    assert names == {"config.yaml", "log.txt", "manifest.json", "new.csv"}

    for manifest in ("{}", "[1]", "no JSON", '{"name": "an extension"}'):
        Path("run/manifest.json").write_text(manifest)
        before = content(Path("run"))
        with pytest.raises(InterpError, match="is not empty and holds no run"):
            open_run("run", "x", CONFIG, overwrite=True)
        assert content(Path("run")) == before


def test_a_run_inside_a_finished_one_is_refused() -> None:
    with open_run("run", "x", CONFIG):
        inner = open_run(
            "run/again", "x", CONFIG
        )  # as `reproduce` does, and several runs in one command
        inner._finish("done", None)
        inner._close()
    before = content(Path("run"))
    for out in ("run/deep/inner", "run/again/inner"):
        for overwrite in (False, True):
            with pytest.raises(InterpError, match=r"is inside .*, which holds a finished run"):
                open_run(out, "x", CONFIG, overwrite=overwrite)
    assert content(Path("run")) == before


def test_what_the_run_did_not_write_is_not_replaced() -> None:
    with open_run("run", "x", CONFIG) as folder:
        folder.write("sub/old.csv", "old")
    Path("run/.DS_Store").write_text("of a file manager")
    Path("run/notes.md").write_text("a month's work")
    before = content(Path("run"))
    with pytest.raises(
        InterpError, match=r"run holds notes\.md, which the run in it did not write"
    ):
        open_run("run", "x", CONFIG, overwrite=True)
    assert content(Path("run")) == before
    Path("run/notes.md").unlink()
    with open_run("run", "x", CONFIG, overwrite=True):
        pass
    assert {path.name for path in Path("run").iterdir()} == {
        "config.yaml",
        "log.txt",
        "manifest.json",
    }


def test_making_room_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_run("run", "x", CONFIG) as folder:
        folder.write("old.csv", "old")
    before = content(Path("run"))
    rename = Path.rename

    def fail_at_the_manifest(path: Path, target: Path) -> Path:
        if path.name == "manifest.json" and target.parent.name.startswith(".replaced-"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_at_the_manifest)
    with pytest.raises(InterpError, match="Permission denied"):
        open_run("run", "x", CONFIG, overwrite=True)
    assert content(Path("run")) == before


def test_a_failed_successor_gives_the_old_run_back() -> None:
    with open_run("run", "x", CONFIG) as folder:
        folder.write("old.csv", "old")
    before = content(Path("run"))
    with pytest.raises(InterpError), open_run("run", "x", CONFIG, overwrite=True) as folder:
        folder.write("old.csv", "new")
        raise InterpError("no")
    assert content(Path("run")) == before


def test_what_a_killed_successor_left_is_cleared_by_the_next() -> None:
    with open_run("run", "x", CONFIG) as folder:
        folder.write("old.csv", "old")
    killed = open_run("run", "x", CONFIG, overwrite=True)
    killed._close()  # all that is left of a process that was killed
    with pytest.raises(InterpError, match="holds an unfinished run"):
        open_run("run", "x", CONFIG)
    with open_run("run", "x", CONFIG, overwrite=True):
        pass
    assert {path.name for path in Path("run").iterdir()} == {
        "config.yaml",
        "log.txt",
        "manifest.json",
    }


# --- one run at a time ---------------------------------------------------------------------------


def test_a_folder_in_use_is_refused() -> None:
    with open_run("run", "x", CONFIG) as folder:
        before = folder.path("manifest.json").read_text()
        for overwrite in (False, True):
            with pytest.raises(InterpError, match=rf"in use .*\(process {os.getpid()} on "):
                open_run("run", "x", CONFIG, overwrite=overwrite)
        assert folder.path("manifest.json").read_text() == before


@pytest.mark.parametrize("native", [True, False])
def test_the_lock_of_a_dead_process_counts_for_nothing(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(lock, "_lock", lambda stream: None)  # as on some network file systems
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    Path("run").mkdir()
    Path("run/.lock").write_text(f"process {dead.pid} on {lock.socket.gethostname()}")
    with open_run("run", "x", CONFIG):
        if not native:
            with pytest.raises(InterpError, match="in use"):
                open_run("run", "x", CONFIG)
    Path("other").mkdir()
    Path("other/.lock").write_text("process 1 on another-machine")
    if not native:
        with pytest.raises(InterpError, match="process 1 on another-machine"):
            open_run("other", "x", CONFIG)


# --- files ---------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all() -> None:
    path = Path("a.png")
    files.atomic_write(path, "old")

    def half(temporary: Path) -> None:
        assert temporary.suffix == ".png"
        assert temporary.parent == path.parent
        temporary.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        files.atomic_write(path, half)
    assert path.read_text() == "old"
    files.atomic_write(path, b"new")
    assert path.read_text() == "new"
    assert [p.name for p in Path.cwd().iterdir()] == ["a.png"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_files_are_as_readable_as_any() -> None:
    """A temporary file of the tempfile module would stay private to its owner."""
    Path("plain").touch()
    files.atomic_write(Path("ours"), b"")
    assert Path("ours").stat().st_mode == Path("plain").stat().st_mode


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_is_recognised() -> None:
    def fill(_: Path) -> None:
        with open("/dev/full", "wb") as stream:
            stream.write(b"x" * 10**6)

    with pytest.raises(OSError) as failure:
        files.atomic_write(Path("a"), fill)
    assert files.is_full(failure.value)
    assert not files.is_full(PermissionError())
    assert list(Path.cwd().iterdir()) == []


# --- going on ------------------------------------------------------------------------------------


def _stopped_run(out: Path, config: FindSinksConfig) -> None:
    """A run that was interrupted after it had written something."""
    with pytest.raises(KeyboardInterrupt), open_run(out, "x", config) as folder:
        folder.write("part.csv", "a\n1\n")
        raise KeyboardInterrupt


def test_an_unfinished_run_goes_on_and_keeps_its_files(tmp_path: Path) -> None:
    out = tmp_path / "run"
    _stopped_run(out, FindSinksConfig(seed=1))
    with open_run(out, "x", FindSinksConfig(seed=1), resume=True) as folder:
        assert (out / "part.csv").read_text() == "a\n1\n"
        folder.write("table.csv", "b\n")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["status"] == "done" and len(manifest["resumed"]) == 1


def test_going_on_under_another_config_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    out = tmp_path / "run"
    _stopped_run(out, FindSinksConfig(seed=1))
    with pytest.raises(InterpError, match=r"another config: seed \(1 there, 2 here\)"):
        open_run(out, "x", FindSinksConfig(seed=2), resume=True)
    assert (out / "part.csv").exists() and (out / "manifest.json").exists()
    with open_run(out, "x", FindSinksConfig(seed=1), resume=True):
        pass


def test_an_error_after_going_on_keeps_what_was_there(tmp_path: Path) -> None:
    out = tmp_path / "run"
    _stopped_run(out, FindSinksConfig())
    with (
        pytest.raises(InterpError, match="no luck"),
        open_run(out, "x", FindSinksConfig(), resume=True),
    ):
        raise InterpError("no luck")
    assert (out / "part.csv").exists()


def test_a_finished_run_is_never_gone_on_with(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "x", FindSinksConfig()):
        pass
    with pytest.raises(InterpError, match="holds a finished run"):
        open_run(tmp_path / "run", "x", FindSinksConfig(), resume=True)


def test_what_a_killed_run_had_half_written_is_taken_away(tmp_path: Path) -> None:
    out = tmp_path / "run"
    _stopped_run(out, FindSinksConfig())
    (out / "parts").mkdir()
    left = [out / ".tmp-0a-map.pdf", out / "parts" / ".tmp-0b-3.npz"]
    for path in left:
        path.write_bytes(b"half")
    with open_run(out, "x", FindSinksConfig(), resume=True):
        assert not any(path.exists() for path in left)
        assert (out / "part.csv").exists()


def test_a_file_that_may_not_grow_is_a_full_disk() -> None:
    assert files.is_full(OSError(errno.EFBIG, "File too large"))
