"""A whole system under load, with something broken every few seconds: nothing accepted is lost."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_run.run import QUIET_TIMEOUT, START_TIMEOUT, Plan, run
from tests.support.missing import MissingError, skip_or_fail

pytestmark = [pytest.mark.chaos, pytest.mark.long]

MINUTES = 2
"""Half of the time of `make fault-run`; the seed differs each time."""
PLAN: dict[str, Any] = {
    "minutes": float(os.environ.get("FAULT_RUN_MINUTES", MINUTES)),
    "seed": int(os.environ.get("FAULT_RUN_SEED", random.randrange(1_000_000))),
    "profile": os.environ.get("FAULT_RUN_PROFILE", Plan.profile),
    "ledger": os.environ.get("FAULT_RUN_LEDGER", Plan.ledger),
}


@pytest.mark.timeout(PLAN["minutes"] * 60 + 2 * START_TIMEOUT + 3 * QUIET_TIMEOUT)
async def test_every_accepted_job_is_accounted_for_whatever_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Length, seed, profile and ledger: CONTRIBUTING.md#the-fault-run."""
    try:
        is_good = await run(Plan(**PLAN), tmp_path)
    except MissingError as error:
        skip_or_fail(str(error))
    assert is_good, capsys.readouterr().out
