"""Pieces of a measurement: read back to the bit, or not at all, and never into another one."""

import os

import numpy as np
import pytest

from interp.errors import InterpError
from interp.runs.parts import Parts

VALUES = np.array([[[0.1, -2.5, np.nan], [3.0, 1e-300, -0.0]]])


@pytest.fixture
def parts(tmp_path):
    return Parts(tmp_path / "parts", ["patch", "weights abc"])


def test_what_is_saved_is_read_back(parts):
    """To the bit, NaN and −0 included; nothing is there before, and nothing but pieces after."""
    assert parts.load("0-1", VALUES.shape) is None and not parts.folder.exists()
    parts.save("0-1", VALUES)
    again = Parts(parts.folder, ["patch", "weights abc"])
    found = again.load("0-1", VALUES.shape)
    assert found.dtype == float and found.tobytes() == VALUES.tobytes()
    assert again.load("0-2", VALUES.shape) is None
    assert (again.n_loaded, parts.n_loaded) == (1, 0)
    assert [path.name for path in parts.folder.iterdir()] == ["0-1.npz"]
    parts.save("0-1", 2 * VALUES)
    assert np.array_equal(parts.load("0-1", VALUES.shape), 2 * VALUES, equal_nan=True)


@pytest.mark.parametrize(
    "of",
    [["patch", "weights abd"], ["patch"], ["patch\nweights abc"], ["patchweights abc", ""], []],
)
def test_the_piece_of_another_measurement_is_refused(parts, of):
    """By the texts one by one, not by what they are when joined; and the file stays."""
    parts.save("0", VALUES)
    with pytest.raises(InterpError, match=r"is of another measurement .*overwrite=true") as error:
        Parts(parts.folder, of).load("0", VALUES.shape)
    assert str(parts.folder / "0.npz") in str(error.value) and "\n" not in str(error.value)
    assert parts.load("0", VALUES.shape) is not None


@pytest.mark.parametrize("shape", [(1, 3, 2), (2, 3), (1, 2, 3, 1), (6,)])
def test_a_piece_of_another_shape_is_refused(parts, shape):
    parts.save("0", VALUES)
    with pytest.raises(InterpError, match="of another measurement"):
        parts.load("0", shape)


def test_a_damaged_piece_is_measured_again(parts):
    """Whichever bit of the file has changed, wherever it was cut: never a wrong number, never a crash."""
    parts.save("0", VALUES)
    path = parts.folder / "0.npz"
    whole = path.read_bytes()
    unharmed = 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        found = parts.load("0", VALUES.shape)
        assert found is None or found.tobytes() == VALUES.tobytes(), place
        unharmed += found is not None
    assert 0 < unharmed < len(whole) / 4  # dates and the like
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert parts.load("0", VALUES.shape) is None, length
    for place in range(
        whole.index(b"PK\1\2"), len(whole)
    ):  # one bit makes it look encrypted, or newer
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            found = parts.load("0", VALUES.shape)
            assert found is None or found.tobytes() == VALUES.tobytes(), (place, bit)
    path.write_bytes(b"")
    assert parts.load("0", VALUES.shape) is None
    parts.save("0", VALUES)
    assert parts.load("0", VALUES.shape) is not None


def test_a_file_of_ones_own_is_no_piece(parts):
    """A pickle is not opened, nor is an archive without our names."""
    parts.folder.mkdir(parents=True)
    path = parts.folder / "0.npz"
    np.savez(path, values=VALUES)
    assert parts.load("0", VALUES.shape) is None
    np.savez(path, key=np.array({"a": 1}, dtype=object), values=VALUES)
    assert parts.load("0", VALUES.shape) is None
    path.unlink()
    path.mkdir()
    assert parts.load("0", VALUES.shape) is None


def test_pieces_of_several_measurements_lie_side_by_side(parts):
    """In a folder each, under one key; what is found anywhere is counted in one place."""
    first, second = parts.under("0"), parts.under("1")
    first.save("3", VALUES)
    second.save("3", 2 * VALUES)
    assert {os.path.relpath(p, parts.folder) for p in parts.folder.rglob("*.npz")} == {
        os.path.join("0", "3.npz"), os.path.join("1", "3.npz"),
    }  # fmt: skip
    assert parts.load("3", VALUES.shape) is None
    again = Parts(parts.folder, ["patch", "weights abc"])
    assert np.array_equal(again.under("0").load("3", VALUES.shape), VALUES, equal_nan=True)
    assert np.array_equal(again.under("1").load("3", VALUES.shape), 2 * VALUES, equal_nan=True)
    assert again.n_loaded == 2
    with pytest.raises(InterpError, match="of another measurement"):
        Parts(parts.folder, ["other"]).under("1").load("3", VALUES.shape)
