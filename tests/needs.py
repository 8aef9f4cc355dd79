"""What a test needs and a machine may not have: skipped there, but in CI (variable `CI`) it fails."""

import os
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """End the test for this reason."""
    if os.environ.get("CI"):
        pytest.fail(f"needed in CI: {reason}")
    pytest.skip(reason)
