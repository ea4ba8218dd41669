"""What a test needs and this machine lacks: skipped at home, failed in CI."""

import os
from typing import NoReturn


class MissingError(RuntimeError):
    """Something that a test needs is not installed; the message says how to get it."""


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test, but fail in CI: a run that skips what it is there to test would be green for
    nothing."""
    import pytest  # the benchmarks start the same servers, and have no pytest

    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"missing in CI: {reason}", pytrace=False)
    pytest.skip(reason)
