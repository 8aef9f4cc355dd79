"""Does a run come out again? Runs it once more and gives a verdict for each column of its tables.

    python -m experiments.reproduce RUN [--to DIR]

RUN is a run folder of any experiment, made here or elsewhere, or the folder of a --multirun, whose runs
are run again one by one. The second run goes to DIR/again, the verdicts to DIR/table.csv; what the two
say otherwise of packages, machine, model and prompts is printed and in the manifest. Exit code 0: all
identical or within tolerance; 3: something is different.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from experiments.command_line.launch import DIFFERENT, REFUSED, launch
from experiments.command_line.listing import experiments
from experiments.command_line.multirun import MULTIRUN
from interp.config.reruns import ReproduceConfig as Config
from interp.errors import IncompleteError, InterpError
from interp.runs.run_folder import RunFolder

POSITIONAL = "run"
AGAIN = "again"


def run(config: Config, folder: RunFolder) -> int | None:
    """Run it again, compare, say."""
    import pandas as pd

    from interp.results import tables
    from interp.runs import rerun

    whole = Path(config.run)
    tolerance = rerun.Tolerance(config.atol, config.rtol)
    found, others, second = [], {}, {}
    runs = _runs_of(whole)
    for place, (before, name) in runs.items():
        again = folder.path(f"{AGAIN}/{place}")
        if not _is_done(again):
            _run_again(name, before, again, config.threads)
        verdicts = rerun.compare(before, again, tolerance)
        found.append(verdicts.assign(table=[f"{place}{table}" for table in verdicts.table]))
        manifest = rerun.finished_run(again)
        for what, (x, y) in rerun.differences(rerun.finished_run(before), manifest).items():
            others[place + what] = {"before": x, "again": y}
        second[place + "run"] = {key: manifest[key] for key in ("command", "started", "finished")}
    verdicts = pd.concat(found, ignore_index=True)
    folder.record(differences=others, again=second)
    folder.write("table.csv", partial(tables.write, verdicts))
    counts = verdicts.verdict.value_counts()
    what = " and ".join({name: None for _, name in runs.values()})
    print(
        f"{what if len(runs) == 1 else f'{len(runs)} runs of {what}'}, run again: "
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
    for place, both in others.items():
        print(f"  {place}: {both['before']} → {both['again']}")
    return DIFFERENT if counts.get(rerun.DIFFERENT, 0) else None


def _runs_of(whole: Path) -> dict[str, tuple[Path, str]]:
    """Place of a run in the folder, "" or "0_seed=0/", → (its folder, its experiment).

    Raises:
        InterpError: no finished run, or one of no experiment here.
    """
    from interp.runs.rerun import finished_run

    name = finished_run(whole)["experiment"]
    if name.endswith(MULTIRUN):
        inner = sorted(path.parent for path in whole.glob("*/manifest.json"))
        runs = {f"{path.name}/": (path, finished_run(path)["experiment"]) for path in inner}
    else:
        runs = {"": (whole, name)}
    for before, one in runs.values():
        if one not in experiments():
            raise InterpError(f"{before}: there is no experiment {one!r} to run again")
    return runs


def _is_done(again: Path) -> bool:
    from interp.runs import rerun

    try:
        rerun.finished_run(again)
    except InterpError:
        return False
    return True


def _run_again(name: str, before: Path, again: Path, threads: int | None) -> None:
    """In a process of its own, as it was run the first time, or with so many threads."""
    command = [sys.executable, "-m", f"experiments.{name}", "--config", str(before / "config.yaml")]
    command += [f"out={again}", "overwrite=false"]
    command += [] if threads is None else [f"threads={threads}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        refused = done.returncode == REFUSED  # else its log, which the last line names, is kept
        raise (InterpError if refused else IncompleteError)(
            f"{before}: run again, it ended with code {done.returncode}: {last[0]}"
        )


if __name__ == "__main__":
    sys.exit(launch("reproduce"))
