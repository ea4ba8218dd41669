"""Dependencies that are missing on this machine: the test is skipped, and fails in CI."""

import os
from typing import NoReturn


class MissingError(RuntimeError):
    """Something that a test needs is not installed; the message says how to get it."""


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test, but fail it in CI, where a skipped test would go unnoticed."""
    import pytest  # the benchmarks start the same servers, and have no pytest

    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"missing in CI: {reason}", pytrace=False)
    pytest.skip(reason)
