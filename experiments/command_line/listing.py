"""Which experiments there are: the files of experiments/ that can be run, read without importing them."""

from __future__ import annotations

import ast
from pathlib import Path

EXPERIMENTS = Path(__file__).parent.parent


def experiments() -> dict[str, str]:
    """Name → first line of the docstring, by name."""
    found = {}
    for path in sorted(EXPERIMENTS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(_is_main_block(node) for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def listing() -> str:
    """What `python -m experiments` prints."""
    found = experiments()
    width = max(map(len, found), default=0)
    lines = [f"  {name:<{width}}  {line}" for name, line in found.items()]
    return "\n".join(
        [
            "Experiments, each a question about the attention heads of a language model:",
            "",
            *lines,
            "",
            "python -m experiments.NAME --help   explains one and lists its keys",
            "python -m experiments.NAME          runs it; `interp NAME` does the same anywhere",
        ]
    )


def _is_main_block(node: ast.stmt) -> bool:
    """Whether it is the `if` that runs a file."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
