"""An experiment for the tests of the front door.

What it does is chosen by `model`: it writes a table, or goes wrong in a given way.
"""

import errno
import os
import sys
from collections.abc import Callable

from experiments.command_line.launch import launch, progress
from interp.config.scoring import FindSinksConfig
from interp.errors import InterpError
from interp.runs.run_folder import RunFolder

Config = FindSinksConfig


def run(config: FindSinksConfig, folder: RunFolder) -> None:
    BEHAVIOURS[config.model](folder)


def write(folder: RunFolder) -> None:
    with progress(2, "prompts") as advance:
        advance(2)
    folder.record(model={"name": "none", "score": float("nan")})
    folder.write("table.csv", "layer,head\n0,1\n")
    folder.write("figures/map.png", lambda path: path.write_bytes(b"picture"))
    folder.log.info("wrote a table")
    print("layer head\n0     1\u2192")


def chat(folder: RunFolder) -> None:
    from tqdm import tqdm  # as another library shows its own bar

    for _ in tqdm(range(2)):
        write(folder)


def refuse(folder: RunFolder) -> None:
    write(folder)
    raise InterpError("no ordinary tokens\nleft to draw")


def interrupt(folder: RunFolder) -> None:
    raise KeyboardInterrupt


def interrupt_late(folder: RunFolder) -> None:
    write(folder)
    raise KeyboardInterrupt


def fill_disk(folder: RunFolder) -> None:
    def to_full_device(path: os.PathLike[str]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    folder.write("table.csv", to_full_device)


def bug(folder: RunFolder) -> None:
    write(folder)
    raise KeyError("a bug")


BEHAVIOURS: dict[str, Callable[[RunFolder], None]] = {
    "default": write,
    "chatty": chat,
    "refuse": refuse,
    "interrupt": interrupt,
    "interrupt_late": interrupt_late,
    "fill_disk": fill_disk,
    "bug": bug,
}

if __name__ == "__main__":
    sys.exit(launch("find_sinks", module=sys.modules[__name__]))
