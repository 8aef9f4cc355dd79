"""When a head has formed: above a level for the first time, and above it to the end."""

import pandas as pd
import pytest

from interp.scoring.formation import formed


@pytest.mark.parametrize(
    "masses, expected",
    [
        ([0.1, 0.2], (None, None)),
        ([0.1, 0.9, 0.2, 0.8], (100, 300)),
        ([0.1, 0.6, 0.7], (100, 100)),
        ([0.9, 0.1], (0, None)),
    ],
)
def test_formed(masses, expected):
    rows = [
        {"role": "induction", "step": 100 * i, "mass": mass * share}
        for i, mass in enumerate(masses)
        for share in (1, 0.5)
    ]
    assert formed(pd.DataFrame(rows), "induction", 0.5) == expected
