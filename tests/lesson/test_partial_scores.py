"""Partial scores: by plain passes, on choices a model must get right, and what it can't be asked."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.command_line.launch import launch
from interp.errors import InterpError
from interp.inputs.pronoun_sets import Choice, choices_of, file_rows
from interp.inputs.tasks import little_world
from interp.lesson.partial_scores import (
    filled,
    partial_preferences,
    partial_scores,
    preference_rows,
    readable,
)
from interp.lesson.pronouns import gaps, summarise_preferences, with_places
from interp.models.model import load_model
from interp.results import tables
from tests.families import tiny_model


@pytest.fixture(scope="module")
def choices(model):
    return gaps(model, with_places(model, little_world(model, kind="pronoun", n_prompts=8)))


def test_by_plain_passes(model, choices):
    """Token by token, one plain pass each: log P of what follows, a candidate in the gap."""
    one = choices[3]
    _, wrong = filled(model, one)
    assert wrong.prompt.text == f"{one.before}{one.wrong}{one.after}"
    assert model.tokenizer.decode(wrong.prompt.ids[wrong.first :]) == one.after
    total = 0.0
    for at in range(wrong.first, len(wrong.prompt.ids)):
        with torch.no_grad():
            logits = model.hf_model(torch.tensor([wrong.prompt.ids[:at]])).logits[0, -1]
        total += logits.log_softmax(-1)[wrong.prompt.ids[at]].item()
    assert partial_scores(model, choices)[3, 1] == pytest.approx(total, abs=1e-3)


def test_the_control_has_no_text_before(model, choices):
    right, _ = filled(model, choices[3], alone=True)
    assert right.prompt.text == choices[3].right.replace("the ", "The ") + choices[3].after
    assert model.tokenizer.decode(right.prompt.ids[right.first :]) == choices[3].after
    done = []
    found = partial_preferences(model, choices, progress=done.append)
    assert sum(done) == 4 * len(choices)
    added = found["partial"] - found["partial alone"]
    np.testing.assert_allclose(found["partial less alone"], added, atol=1e-9)


def test_what_a_model_can_not_be_asked(model, choices):
    one = choices[0]
    texts = {"before": one.before, "after": one.after, "right": one.right, "wrong": one.wrong}
    odd = [
        Choice("long", "b", **texts | {"before": one.before * 200}),
    ]
    found, skipped = readable(model, [one, *odd])
    assert found == [one] and skipped == {
        "texts of more than 512 tokens, the model's context": 1,
    }
    with pytest.raises(InterpError, match=r"long, .*: texts of more than 512 tokens"):
        partial_scores(model, odd)


def test_words_that_are_not_these_tokens_are_not_scored(tokenizer):
    """A tokenizer of words has one token for all that it does not know: it would be the same text."""
    tiny = load_model((tiny_model("llama", vocab_size=len(tokenizer)), tokenizer))
    one = Choice("known", "a", "t3 t4 ", " t5", "t6", "t7")
    right, wrong = filled(tiny, one)
    assert (right.prompt.ids, right.first) == ((3, 4, 6, 5), 3)
    assert (wrong.prompt.ids, wrong.first) == ((3, 4, 7, 5), 3)
    unknown = filled(tiny, replace(one, wrong="zebra"))
    assert unknown == "words that the tokenizer does not know"
    for after in ("5", " "):  # "t65", and nothing
        assert filled(tiny, replace(one, after=after)) == "tokens that run across the gap's end"


def test_rows_know_their_twins(model, choices):
    rows = preference_rows(model, "set", choices, partial_preferences(model, choices))
    assert rows.groupby("reading").template.nunique().eq(4).all() and len(rows) == 24
    assert summarise_preferences(rows).n_frames.tolist() == [4, 4, 4]


# ------------------------------------------------------------------------ from the command line


def written(tmp_path, choices, name="little"):
    """The little world's sentences as if they were a published set, with one row that is none."""
    rows = [
        {
            "sentence": f"{one.before}_{one.after}",
            "option1": one.wrong,
            "option2": one.right,
            "answer": "2",
        }
        for one in choices
    ]
    path = tmp_path / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, rows[0] | {"answer": ""}])))
    return path


def run(tmp_path, *arguments):
    """Of a run in its folder: (exit code, the folder)."""
    folder = tmp_path / "run"
    all_of_them = ["sentences=published", "threads=1", f"out={folder}", *arguments]
    return launch("resolve_pronoun", all_of_them), folder


def test_a_published_set_from_a_file_and_from_a_data_set(
    tmp_path, capsys, composed_once, model, choices
):
    path = written(tmp_path, choices)
    code, folder = run(tmp_path, f"sentences.path={path}")
    assert code == 0
    said = capsys.readouterr()
    assert said.err == f"resolve_pronoun: results in {folder}\n"
    assert (
        "little: 8 of 9 sentences scored, 1 skipped; 1 × row whose answer is neither 1 nor 2"
        in said.out
    )
    names = {one.name for one in folder.iterdir()}
    assert names >= {"table.csv", "per_prompt.parquet", "preferences.png", "preferences.pdf"}
    assert not names & {"looks.csv", "heads.csv", "parts"}  # there is nothing to look at or patch
    table = tables.read(folder / "table.csv")
    groups = {one.group for one in choices_of(file_rows(str(path)), "little")[0]}
    assert 1 < len(groups) < 8 and (table.n_frames == len(groups)).all()
    assert (table.n_prompts == 8).all()
    task = json.loads((folder / "manifest.json").read_text())["task"]
    assert (task["n_rows"], task["n_examples"], task["n_templates"]) == (9, 8, len(groups))
    assert task["dropped"] == {"row whose answer is neither 1 nor 2": 1}
    scores = partial_scores(model, choices)
    found = tables.read(folder / "per_prompt.parquet").set_index(["reading", "prompt"]).preference
    np.testing.assert_allclose(found["partial"], scores[:, 0] - scores[:, 1], atol=1e-5)
    everywhere = "".join(
        one.read_text() for one in folder.iterdir() if one.suffix in (".csv", ".json", ".txt")
    )
    assert choices[0].after not in everywhere  # nothing of the set is kept

    data = tmp_path / "data"
    data.mkdir()
    path.rename(data / "validation.jsonl")
    code, _ = run(tmp_path, f"sentences.dataset={data}", "sentences.n_rows=4", "overwrite=true")
    assert code == 0 and "data: 4 of 4 sentences scored, 0 skipped\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sentences.path={path}", "n_frames=3"], "n_frames is not for published sets"),
        (["sentences.path={path}", "sentences.split=test"], "split is of a dataset"),
        ([], "published needs either path=FILE or dataset=NAME"),
        (["sentences.path={path}", "sentences.dataset=x"], "either path=FILE or dataset=NAME"),
        (["sentences.path=none.csv"], "no text file none.csv"),
        (["sentences.dataset=no-one/nothing"], "data set no-one/nothing, split validation: cannot"),
        (["sentences.path={path}", "sentences.n_rows=1"], "1 frame of sentences: expected two"),
        (["sentences.path={other}"], "nothing is left for default"),
        (["sentences.path={deep}"], "deep.json: is no JSON: maximum recursion depth"),
    ],
)
def test_refusals_are_one_line(tmp_path, capsys, composed_once, choices, arguments, message):
    path, other = written(tmp_path, choices), tmp_path / "other.jsonl"
    long = f"{'The horse is there. ' * 200}It is the _ again."
    row = {"sentence": long, "option1": "horse", "option2": "box", "answer": 1}
    other.write_text(json.dumps(row))
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    places = {"path": path, "other": other, "deep": deep}
    code, _ = run(tmp_path, *(one.format(**places) for one in arguments))
    said = capsys.readouterr()
    assert code == 2 and message in said.err and said.err.count("\n") == 1 and not said.out


# -------------------------------------------------------------------------------------- SmolLM2

KNOWN = [  # right, wrong, text: what every reader knows
    ("water", "sand", "Anna was thirsty, so she poured herself a glass of _ and drank it."),
    ("dog", "tree", "In the yard the _ barked at the postman."),
    ("doctor", "baker", "Tom broke his arm, and the _ put it in plaster."),
    ("snow", "rain", "It was so cold that all the _ on the roof stayed white and frozen."),
    ("teacher", "farmer", "At school the _ wrote the homework on the blackboard."),
    ("piano", "spoon", "She sat down at the _ and played a song by Chopin."),
    ("fish", "birds", "In the sea there are many _ that swim with their fins."),
    ("morning", "night", "Every _ the sun rises over the hills."),
]


@pytest.mark.smollm2
def test_what_everybody_knows(smollm2_model):
    """A model that has read much is right in nearly all; with the answers exchanged as often wrong."""
    choices = []
    for i, (right, wrong, text) in enumerate(KNOWN):
        before, _, after = text.partition("_")
        choices.append(Choice(f"{i}", f"{i}", before, after, right, wrong))
    assert readable(smollm2_model, choices)[1] == {}
    found = partial_preferences(smollm2_model, choices)
    table = summarise_preferences(preference_rows(smollm2_model, "known", choices, found))
    first = table.iloc[0]
    assert first.accuracy >= 7 / 8 and first.preference_low > 0.5 and first.p < 0.05
    assert np.isnan(first.both_right)  # no twins
