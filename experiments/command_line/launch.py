"""The front door of every experiment: from the command line to an exit code.

    python -m experiments.find_sinks model=gpt2 prompts.length=512
    interp find_sinks --config my.yaml seed=1
    interp find_heads --multirun model=default,gpt2 seed=0,1,2

An experiment is a module with a docstring, `Config` (a model of interp.config) and `run(config, folder)`,
which is given the same folder again when a run that was stopped goes on; `POSITIONAL = "key"` lets that
key's value stand by itself. One that writes a file and no run has `WRITES`, the file's ending, and `MARK`,
the text by which it knows its own, and is given the file's path in place of the folder. The last line is
`sys.exit(launch("NAME"))`. Results go to standard output, everything else to standard error or to log.txt
in the run folder.

Exit codes: 0 done; 1 a bug of ours (the traceback is in a file, which is named); 2 something the
user can put right, said in one line; 3 a run that was run again came out different; 130 interrupted;
141 nobody reads the output any more.
"""

from __future__ import annotations

import importlib
import io
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from experiments.command_line.explain import nearest
from experiments.command_line.listing import experiments, listing
from interp.errors import InterpError

if TYPE_CHECKING:
    from tqdm import tqdm

DONE, BUG, REFUSED, DIFFERENT, INTERRUPTED, UNREAD = 0, 1, 2, 3, 130, 141


def main(argv: list[str] | None = None) -> int:
    """The console script `interp`: `interp NAME key=value …`; without a name it lists them."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help"):
        return _guarded("interp", lambda: print(listing()))
    name, *rest = arguments
    if name == "--version":
        import interp

        return _guarded("interp", lambda: print(interp.__version__))
    if name in experiments():
        return launch(name, rest)
    return _refuse("interp", no_such(name))


def no_such(name: str) -> str:
    """That there is no experiment of this name, and which is nearest."""
    near = nearest(name, experiments())
    advice = f"did you mean {near}?" if near else "`interp` lists them"
    return f"there is no experiment '{name}'; {advice}"


def launch(name: str, argv: list[str] | None = None, module: ModuleType | None = None) -> int:
    """Run an experiment.

    Args:
        name: its name, which is also the name of its YAML in configs/.
        argv: the arguments; those of the command line if None.
        module: the module with `Config` and `run`; experiments.NAME if None.

    Returns:
        The exit code. Nothing is raised: whatever goes wrong is one line on standard error.
    """
    arguments = sys.argv[1:] if argv is None else argv
    return _guarded(name, lambda: _launch(name, arguments, module))


class Bar:
    """Counts what is done: `bar(3)`; `bar.expect(total)` where the total is known only later."""

    def __init__(self, bar: tqdm[Any]) -> None:
        self._bar = bar

    def __call__(self, count: int = 1) -> None:
        """So many more are done."""
        self._bar.update(count)

    def expect(self, total: int) -> None:
        """Set the total."""
        self._bar.total = total
        self._bar.refresh()


@contextmanager
def progress(total: int | None, label: str) -> Iterator[Bar]:
    """A progress bar on standard error, on a terminal only."""
    from tqdm import tqdm

    with tqdm(total=total, desc=label, disable=None, file=sys.stderr, leave=False) as bar:
        yield Bar(bar)


def _launch(name: str, arguments: Sequence[str], module: ModuleType | None) -> int | None:
    module = module or importlib.import_module(f"experiments.{name}")
    if "-h" in arguments or "--help" in arguments:
        from experiments.command_line.help import help_text

        print(help_text(name, module.__doc__ or "", module.Config))
        return None
    place, code = carry_out(name, arguments, module)
    _say(name, f"results in {place}")
    return code


def carry_out(name: str, arguments: Sequence[str], module: ModuleType) -> tuple[Path, int | None]:
    """Compose the config, open the run folder and run: (where the results are, the exit code if any).

    Raises:
        InterpError: whatever the user can put right, in one line.
    """
    from experiments.command_line.compose import compose
    from experiments.command_line.keys import default_kinds, keys_of

    positional: str | None = getattr(module, "POSITIONAL", None)
    many = [argument for argument in arguments if argument in ("-m", "--multirun")]
    key = keys_of(module.Config, default_kinds(module.Config)).get(positional or "")
    several = key is not None and key.textual == "many"
    files, assignments = _options([a for a in arguments if a not in many], positional, several)
    if many:
        if positional:
            raise InterpError(
                f"command line: --multirun is for experiments, and {name} works on folders of theirs"
            )
        from experiments.command_line.multirun import run_many

        return run_many(name, module, files, assignments), None
    config = compose(name, module.Config, assignments, files)
    if hasattr(module, "WRITES"):
        return _write_file(name, module, config), None
    _check_path(getattr(config, "model", ""))
    command = ["python", "-m", f"experiments.{name}", *arguments]
    return one_run(name, module, config, overwrite=config.overwrite, command=command)


def one_run(
    name: str, module: ModuleType, config: Any, *, overwrite: bool, command: Sequence[str]
) -> tuple[Path, int | None]:
    """Run one config in a folder of its own, and add what a paper takes from it: (folder, exit code)."""
    from experiments.steps.paper import write_for_paper
    from interp.runs.run_folder import open_run

    with open_run(
        config.out, name, config, overwrite=overwrite, resume=True, command=command
    ) as folder:
        code: int | None = module.run(config, folder)
        write_for_paper(folder, config)
    return folder.root, code


def _write_file(name: str, module: ModuleType, config: Any) -> Path:
    """Run what writes one file."""
    from interp.runs.single_file import open_file

    with open_file(
        config.out, name, module.WRITES, mark=module.MARK, overwrite=config.overwrite
    ) as path:
        module.run(config, path)
    return path


def _check_path(model: str) -> None:
    """What can only be a file or folder is looked for before torch is imported, which takes seconds."""
    is_path = model.endswith(".gguf") or model.startswith(("./", "../", "/"))
    if is_path and not Path(model).exists():
        raise InterpError(f"{model}: there is no such file or folder")


def _options(
    arguments: Sequence[str], positional: str | None, several: bool = True
) -> tuple[list[Path], list[str]]:
    """(the files of `--config FILE` or `--config=FILE`, the other arguments as key=value).

    `--to DIR` is another way to say `out=DIR`. Of several values that stand by themselves a
    list is made, if the key takes one.
    """
    files, rest, bare = [], [], []
    waiting = iter(arguments)
    for argument in waiting:
        option, equals, value = argument.partition("=")
        if option in ("--config", "--to"):
            value = value if equals else next(waiting, "")
            if not value:
                what = (
                    "file: --config my.yaml" if option == "--config" else "folder: --to runs/again"
                )
                raise InterpError(f"command line: {option} needs a {what}")
            if option == "--to":
                rest.append(f"out={value}")
            else:
                files.append(Path(value).expanduser())
        elif positional and not argument.startswith("-") and not re.match(r"\w[\w.]*=", argument):
            bare.append(argument)
        else:
            rest.append(argument)
    if len(bare) == 1:
        rest.append(f"{positional}={bare[0]}")
    elif bare and not several:
        raise InterpError(
            f"command line: one {positional} is expected, and {len(bare)} are given: {', '.join(bare)}"
        )
    elif bare:
        quoted = (value.replace("'", r"\'") for value in bare)
        rest.append(f"{positional}=[" + ",".join(f"'{value}'" for value in quoted) + "]")
    return files, rest


def _guarded(name: str, action: Callable[[], int | None]) -> int:
    """Do it; its exit code if it gives one. Whatever goes wrong becomes an exit code and one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a token that the console can't show is no error
            stream.reconfigure(errors="backslashreplace")
    if not sys.stderr.isatty():  # other libraries' progress bars; tqdm reads this when imported
        os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        code = action()
        if sys.stdout is not None:  # closed by the caller (>&-)
            sys.stdout.flush()
    except InterpError as error:
        return _refuse(name, str(error))
    except KeyboardInterrupt as error:
        _say(name, f"interrupted{_what_is_left(error)}")
        return INTERRUPTED
    except BrokenPipeError:  # `interp find_sinks | head`: Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except Exception as error:
        from interp.runs.files import is_full

        if is_full(error):
            return _refuse(name, f"the disk is full ({error}){_what_is_left(error)}")
        what = f"{type(error).__name__}: {error}"
        _say(name, f"internal error, please report it with {_report(error)}: {what}")
        return BUG
    return DONE if code is None else code


def _refuse(name: str, message: str) -> int:
    _say(name, message)
    return REFUSED


def _say(name: str, message: str) -> None:
    one_line = re.sub(r"\s*[\r\n]+\s*", " ", message)
    print(f"{name}: {one_line}", file=sys.stderr)


def _kept(error: BaseException) -> Path | None:
    """The run folder that was left behind, if any."""
    from interp.runs.run_folder import KEPT_NOTE

    notes = (note for note in getattr(error, "__notes__", ()) if note.startswith(KEPT_NOTE))
    return next((Path(note.removeprefix(KEPT_NOTE)) for note in notes), None)


def _what_is_left(error: BaseException) -> str:
    kept = _kept(error)
    return f"; what was finished is in {kept}" if kept else ""


def _report(error: Exception) -> Path:
    """The file with the traceback: the run's log, or a new one if there was no run yet."""
    kept = _kept(error)
    if kept is not None:
        return kept / "log.txt"
    with tempfile.NamedTemporaryFile(
        "w", prefix="interp-error-", suffix=".txt", encoding="utf-8", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    return Path(file.name)
