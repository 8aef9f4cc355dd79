"""The notebooks: they run without a word on standard error, and are stored as text and code alone."""

import ast
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ABSOLUTE = re.compile(r"(?<![\w./])(?:/\w+/|~/|[A-Za-z]:\\\w)|file:")


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_of(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_readme_names_each():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {*re.findall(r"notebooks/(\w+)\.ipynb", readme)} == {path.stem for path in PATHS}
    assert PATHS


@EACH
def test_stored_as_text_and_code_alone(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata == METADATA
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    for cell in notebook.cells:
        assert cell.metadata == {}, cell.id
        assert not ABSOLUTE.search(cell.source), cell.source
    for cell in code_of(notebook):
        assert (cell.outputs, cell.execution_count) == ([], None), cell.source


@EACH
def test_calls_the_library_and_defines_nothing(path):
    tree = ast.parse("\n".join(cell.source for cell in code_of(read(path))))
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    assert not [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, definitions)]
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert "interp" in imported


@pytest.mark.parametrize(
    "text", ["/home/ann/x", "open('/tmp/x')", "~/runs", r"C:\runs", "file:///x", "`/etc/x`"]
)
def test_absolute_paths_are_seen(text):
    assert ABSOLUTE.search(text)


@pytest.mark.slow
@EACH
def test_runs_in_a_folder_beside_the_results(path, tmp_path):
    """No error, no warning, nothing on standard error; and a reader sees tables and pictures."""
    notebook = read(path)
    shutil.copytree(ROOT / "results", tmp_path / "results")
    (tmp_path / "notebooks").mkdir()
    where = {"metadata": {"path": tmp_path / "notebooks"}}
    NotebookClient(notebook, resources=where, timeout=500).execute()
    outputs = [output for cell in code_of(notebook) for output in cell.outputs]
    said = [output.text for output in outputs if output.get("name") == "stderr"]
    assert not said
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= shown
