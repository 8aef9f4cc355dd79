"""A result that is one file: proved writable first, never in the place of somebody else's."""

from pathlib import Path

import pytest

from interp.errors import InterpError
from interp.runs.single_file import open_file


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(out, *, overwrite=False):
    with open_file(out, "report", ".html", mark="ours", overwrite=overwrite) as path:
        path.write_text("<meta ours>")
    return path


def test_it_is_written_where_it_was_asked_for_and_its_folders_are_made():
    assert write("a/b/page.html") == Path("a/b/page.html")
    assert Path("a/b/page.html").read_text() == "<meta ours>"
    assert [path.name for path in Path("a/b").iterdir()] == ["page.html"]


def test_without_a_name_it_has_the_time():
    first, second = write(None), write(None)
    assert first != second
    assert first.parent == second.parent == Path("runs/report") and first.suffix == ".html"


def test_one_that_is_there_is_replaced_only_if_asked_and_ours():
    write("page.html")
    with pytest.raises(
        InterpError, match=r"page\.html is there already; overwrite=true replaces it"
    ):
        write("page.html")
    write("page.html", overwrite=True)
    Path("other.html").write_text("a diary")
    with pytest.raises(InterpError, match=r"other\.html is there and is none of ours"):
        write("other.html", overwrite=True)
    assert Path("other.html").read_text() == "a diary"


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("folder", "folder is a folder; expected a file such as folder/report.html"),
        ("page.txt", "expected a name that ends in .html"),
        ("file/page.html", "file/page.html: file is a file, not a folder"),
        ("/proc/page.html", "cannot write /proc/page.html"),
        ("a\0b.html", "null byte"),
        ("~nobody-of-this-name/page.html", "cannot write ~nobody"),
    ],
)
def test_a_place_that_can_not_be_written_is_refused_before_the_work(out, says):
    Path("folder").mkdir()
    Path("file").write_text("")
    with pytest.raises(InterpError, match=says):
        write(out, overwrite=True)
    assert {path.name for path in Path().iterdir()} == {"folder", "file"}


def test_after_an_error_nothing_is_left(here):
    with (
        pytest.raises(InterpError, match="no such run"),
        open_file("a/b/page.html", "report", ".html", mark="ours"),
    ):
        raise InterpError("no such run")
    assert not [*here.iterdir()]
