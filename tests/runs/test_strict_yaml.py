"""YAML that reads as it is written, and refuses what it can't read."""

from pathlib import Path

import pytest
import yaml

from interp.errors import InterpError
from interp.runs import strict_yaml

TEXTS = [
    *["NA", "null", "None", "nan", "", " the", ",", "\n", '"', "1e5", "on", "yes", "No", "10:30"],
    *["010", "0x1f", "1_000", "2020-01-01", "=", "<<", "~", ".5", "1.", "${x}", "-", "é ġ", "#a"],
    *[
        ": b",
        "true",
        "+3",
        ".inf",
        "a\\b",
        "\x1b[0m",
        "\u2028",
        "🙂",
        "0o7",
        "1e-4",
        "&a",
        "*a",
        "!x",
    ],
]


def read(tmp_path: Path, text: str) -> dict[str, object]:
    file = tmp_path / "x.yaml"
    file.write_text(text, encoding="utf-8")
    return strict_yaml.load(file)[0]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    data = {"texts": TEXTS, "b": {"c": 1e-5, "d": True, "e": None, "f": 10**20, "g": 1e22, "h": {}}}
    text = strict_yaml.dump(data)
    assert read(tmp_path, text) == data
    assert yaml.safe_load(text)["texts"] == TEXTS  # other readers see the same


def test_plain_scalars(tmp_path: Path) -> None:
    text = "a: on\nb: no\nc: 010\nd: 10:30\ne: 1e-4\nf: 0,3\ng: TRUE\nh: ~\ni:\nj: -3\nk: .5\n"
    assert list(read(tmp_path, text).values()) == [
        *["on", "no", 10, "10:30", 1e-4, "0,3", True, None, None, -3, 0.5]
    ]


def test_lines_are_known(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(b"\xef\xbb\xbf# as Windows writes it\r\na: 1\r\nb:\r\n  c: {d: 2}\r\n")
    assert strict_yaml.load(file) == (
        {"a": 1, "b": {"c": {"d": 2}}},
        {"a": 2, "b": 3, "b.c": 4, "b.c.d": 4},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is there twice"),
        ("a:\n  b: 1\n  b: 1", "line 3: the key 'b' is there twice"),
        ("- 1", "expected lines of `key: value`, found list"),
        ("word", "expected lines of `key: value`, found str"),
        ("a: [1", "line 1: expected ',' or ']'"),
        ("1: 2", "line 1: the key 1 is no word"),
        ("? [1]\n: 2", "line 1: the key [1] is no word"),
        ("a: 1\n---\nb: 1", "line 2"),
        ("a:\n\tb: 1", "line 2"),
        ("a: !!python/object:os.system x", "line 1: could not determine a constructor"),
        ("a: &a\n  b: *a", "line 2: aliases"),
        ("a: \x00", "no YAML"),
    ],
)
def test_refusals_are_one_line_with_its_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InterpError) as refusal:
        read(tmp_path, text)
    assert message in str(refusal.value)
    assert "x.yaml" in str(refusal.value)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("a: é".encode("latin-1"))
    for name, message in [
        ("none.yaml", "No such file"),
        (".", "directory"),
        ("latin.yaml", "UTF-8"),
    ]:
        with pytest.raises(InterpError, match=message):
            strict_yaml.load(tmp_path / name)
    assert read(tmp_path, "") == {}
