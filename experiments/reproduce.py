"""Does a run come out again? Runs it once more and gives a verdict for each column of its tables.

    python -m experiments.reproduce RUN [--to DIR]

RUN is a run folder of any experiment, made here or elsewhere. The second run goes to DIR/again, the
verdicts to DIR/table.csv; what the two say otherwise of packages, machine, model and prompts is printed
and in the manifest. Exit code 0: all identical or within tolerance; 3: something is different.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from experiments.command_line.launch import DIFFERENT, launch
from experiments.command_line.listing import experiments
from interp.config.reruns import ReproduceConfig as Config
from interp.errors import InterpError
from interp.runs.run_folder import RunFolder

POSITIONAL = "run"
RESUMES = True
AGAIN = "again"


def run(config: Config, folder: RunFolder) -> int | None:
    """Run it again, compare, say."""
    from interp.results import tables
    from interp.runs import rerun

    before = Path(config.run)
    manifest = rerun.finished_run(before)
    name = manifest["experiment"]
    if name not in experiments():
        raise InterpError(f"{before}: there is no experiment {name!r} to run again")
    again = folder.path(AGAIN)
    if not _is_done(again):
        _run_again(name, before, again)
    verdicts = rerun.compare(before, again, rerun.Tolerance(config.atol, config.rtol))
    second = rerun.finished_run(again)
    others = rerun.differences(manifest, second)
    folder.record(
        differences={place: {"before": x, "again": y} for place, (x, y) in others.items()},
        again={key: second[key] for key in ("command", "started", "finished")},
    )
    folder.write("table.csv", partial(tables.write, verdicts))
    counts = verdicts.verdict.value_counts()
    print(
        f"{name}, run again: "
        + ", ".join(
            f"{counts.get(verdict, 0)} columns {verdict}"
            for verdict in (rerun.IDENTICAL, rerun.WITHIN, rerun.DIFFERENT)
        )
        + f" (tolerance {config.atol:g} + {config.rtol:g} × the value)"
    )
    unlike = verdicts[verdicts.verdict != rerun.IDENTICAL]
    if len(unlike):
        print(tables.as_text(unlike))
    if others:
        print("not the same in the manifests:")
    for place, (x, y) in others.items():
        print(f"  {place}: {x} → {y}")
    return DIFFERENT if counts.get(rerun.DIFFERENT, 0) else None


def _is_done(again: Path) -> bool:
    from interp.runs import rerun

    try:
        rerun.finished_run(again)
    except InterpError:
        return False
    return True


def _run_again(name: str, before: Path, again: Path) -> None:
    """In a process of its own, as it was run the first time."""
    command = [sys.executable, "-m", f"experiments.{name}", "--config", str(before / "config.yaml")]
    done = subprocess.run(
        [*command, f"out={again}", "overwrite=false"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise InterpError(f"{before}: run again, it ended with code {done.returncode}: {last[0]}")


if __name__ == "__main__":
    sys.exit(launch("reproduce"))
