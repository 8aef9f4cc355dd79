"""Published sets of pronouns: files and data sets are read, put into words, and skipped with a reason.

All sentences are our own; none is from a published set.
"""

import csv
import json

import pytest

from interp.errors import InterpError
from interp.inputs.prompts import dataset_rows
from interp.inputs.pronoun_sets import Choice, choices_of, file_rows

GAPS = [
    {"sentence": "The cake did not go into the tin because the _ was too wide.", "answer": "1"},
    {"sentence": "The cake did not go into the tin because the _ was too narrow.", "answer": "2"},
    {"sentence": "Nobody ate the cake: the _ had been empty all week.", "answer": "2"},
]
GAPS = [row | {"option1": "cake", "option2": "tin"} for row in GAPS]


def winograd(text, pronoun="she", options=("The nurse", "The cook"), label=0, **more):
    """A row whose pronoun is the marked one: "[she]"."""
    at = text.index("[")
    text = text.replace("[", "").replace("]", "")
    row = {"text": text, "pronoun": pronoun, "pronoun_loc": at, "options": list(options)}
    return row | {"label": label} | more


PRONOUNS = [
    winograd("The nurse thanked the cook because [she] had been hungry."),
    winograd("The nurse thanked the cook because [she] had been helpful.", label=1),
]


def only(row):
    (choice,), skipped = choices_of([row], "x")
    assert not skipped
    return choice


def test_a_gap_and_its_candidates():
    found, skipped = choices_of(GAPS, "cakes")
    assert not skipped and [one.name for one in found] == ["cakes-1", "cakes-2", "cakes-3"]
    first = found[0]
    assert first == Choice(
        "cakes-1", "cakes-1", "The cake did not go into the tin because the ", " was too wide.", "cake", "tin"
    )  # fmt: skip
    assert first.begun("tin") + first.after == GAPS[0]["sentence"].replace("_", "tin")
    assert first.begun("tin", alone=True) + first.after == "Tin was too wide."
    assert (found[1].right, found[1].wrong) == ("tin", "cake")
    # Twins: the same candidates and most words. The third has the candidates only.
    assert [one.group for one in found] == ["cakes-1", "cakes-1", "cakes-3"]


def test_a_candidate_takes_the_place_of_a_pronoun():
    one = only(PRONOUNS[0])
    assert one.before + one.right + one.after == (
        "The nurse thanked the cook because the nurse had been hungry."
    )
    assert (one.right, one.wrong) == ("the nurse", "the cook")
    found, _ = choices_of(PRONOUNS, "x")
    assert found[1].right == "the cook" and found[0].group == found[1].group


@pytest.mark.parametrize(
    ("text", "pronoun", "options", "right"),
    [
        ("Ann met Bea. [She] was late.", "She", ("Ann", "Bea"), "Ann"),
        ("The bus met the car. [It] was late.", "It", ("the bus", "the car"), "The bus"),
        ("[It] was late, said the bus to the car.", "it", ("the bus", "the car"), "The bus"),
        ("The bus hit the car, and [its] door broke.", "its", ("The bus", "The car"), "the bus's"),
        ("Ann left Bea [her] coat.", "her", ("Ann", "Bea"), "Ann's"),
        ("Ann asked Bea to warm [her] up.", "her", ("Ann", "Bea"), "Ann"),
        ("Ann told Bea to wait for [her].", "her", ("Ann", "Bea"), "Ann"),
        ("Tom says Bob knows it was [his].", "his", ("Tom", "Bob"), "Tom's"),
        ("Theo said A is B, which  [he] knew.", "he", ("Theo", "Bo"), "Theo"),
    ],
)
def test_as_it_would_stand_there(text, pronoun, options, right):
    one = only(winograd(text, pronoun, options))
    assert one.right == right
    assert "  " not in one.begun(one.right) + one.after


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (GAPS[0] | {"sentence": "No gap."}, "sentence without exactly one gap '_'"),
        (GAPS[0] | {"sentence": "A _ and a _."}, "sentence without exactly one gap '_'"),
        (GAPS[0] | {"sentence": None}, "sentence without exactly one gap '_'"),
        (GAPS[0] | {"sentence": "It is the _"}, "nothing after the gap, so nothing to score"),
        (GAPS[0] | {"answer": ""}, "row whose answer is neither 1 nor 2"),
        (GAPS[0] | {"answer": 0}, "row whose answer is neither 1 nor 2"),
        (GAPS[0] | {"answer": True}, "row whose answer is neither 1 nor 2"),
        (GAPS[0] | {"option2": " "}, "row without two candidates"),
        (GAPS[0] | {"option2": 7}, "row without two candidates"),
        (GAPS[0] | {"option2": "Cake "}, "two candidates that are the same"),
        (PRONOUNS[0] | {"label": 2}, "row whose answer is neither 0 nor 1"),
        (PRONOUNS[0] | {"label": -1}, "row whose answer is neither 0 nor 1"),
        (PRONOUNS[0] | {"options": ["Ann"]}, "row without two candidates"),
        (PRONOUNS[0] | {"options": ["Ann", None]}, "row without two candidates"),
        (PRONOUNS[0] | {"options": "Ann, Bea"}, "options that are no list"),
        (PRONOUNS[0] | {"pronoun_loc": 3}, "pronoun that is not where pronoun_loc says"),
        (PRONOUNS[0] | {"pronoun_loc": 999}, "pronoun that is not where pronoun_loc says"),
        (PRONOUNS[0] | {"pronoun": ""}, "pronoun that is not where pronoun_loc says"),
        (PRONOUNS[0] | {"pronoun_loc": None}, "row without text, pronoun and its place"),
    ],
)
def test_what_is_skipped_is_counted(row, reason):
    good = GAPS[1] if "sentence" in row else PRONOUNS[1]
    found, skipped = choices_of([good, row, row], "x")
    assert [one.name for one in found] == ["x-1"] and skipped == {reason: 2}


@pytest.mark.parametrize("rows", [GAPS, PRONOUNS])
def test_files_of_three_kinds_hold_the_same(tmp_path, rows):
    expected = choices_of(rows, "x")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))
    flat = [
        {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows
    ]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)
    for ending in ("json", "jsonl", "csv"):
        assert choices_of(file_rows(str(tmp_path / f"a.{ending}")), "x") == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "x", r"a.txt: expected a .jsonl, .json or .csv file"),
        ("a.json", "{}", "a.json: holds one dict; expected a list of objects"),
        ("a.json", "[1]", r"a.json, item 0: expected an object with columns, got 1"),
        ("a.json", "[", "a.json: is no JSON"),
        ("a.jsonl", '{"a": 1}\n{', "a.jsonl, line 2: is no JSON"),
        ("a.csv", 'a,b\n"x', "a.csv: is no CSV file"),
        ("a.jsonl", "  ", "is empty: expected text"),
    ],
)
def test_files_that_are_no_sets(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InterpError, match=message):
        file_rows(str(tmp_path / name))
    with pytest.raises(InterpError, match="no text file"):
        file_rows(str(tmp_path / "none.csv"))


def test_columns_of_neither_set():
    with pytest.raises(
        InterpError, match=r"x: has the columns a, b; expected sentence, .* or text"
    ):
        choices_of([{"a": 1, "b": 2}], "x")
    with pytest.raises(InterpError, match="x: holds no rows"):
        choices_of([], "x")


def test_a_folder_of_files_is_a_data_set(tmp_path):
    (tmp_path / "validation.jsonl").write_text("\n".join(json.dumps(row) for row in GAPS))
    name = str(tmp_path)
    assert dataset_rows(name, "validation") == GAPS == dataset_rows(name, "validation", first=9)
    assert dataset_rows(name, "validation", first=1) == GAPS[:1]
    with pytest.raises(InterpError, match=r'split test: cannot be loaded: Unknown split "test"'):
        dataset_rows(name, "test")
    with pytest.raises(InterpError, match=r"cannot be loaded: BuilderConfig 'big' not found"):
        dataset_rows(name, "validation", subset="big")
    (tmp_path / "validation.jsonl").write_text("{")
    with pytest.raises(InterpError, match="split validation: cannot be loaded: "):
        dataset_rows(name, "validation")


def test_without_a_network_a_set_of_the_hub_is_one_line():
    with pytest.raises(InterpError, match="cannot be loaded: ") as error:
        dataset_rows("some-one/pronouns", "validation", subset="large")
    assert "\n" not in str(error.value)
