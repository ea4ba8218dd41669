"""`make join-run`: exits with 1 where a join was not as it must be."""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import structlog

from tests.support.join_run.run import Plan, run_all


def main() -> None:
    parser = argparse.ArgumentParser(prog="make join-run", description=__doc__)
    parser.add_argument("--runs", type=int, default=Plan.runs, help="for each ledger")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="of the first run")
    parser.add_argument("--jobs", type=int, default=Plan.jobs, help="that are joined")
    parser.add_argument("--profile", choices=("classic", "quorum"), default=Plan.profile)
    parser.add_argument("--ledger", choices=("sqlite", "postgresql", "both"), default=Plan.ledger)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="switchyard-join-run-"))
    # What this process itself has to say of those that are killed, beside the runs' lines.
    with (directory / "driver.log").open("w") as log:
        logging.basicConfig(stream=log)
        logging.captureWarnings(True)
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
        sys.exit(0 if asyncio.run(run_all(Plan(**vars(given)), directory)) else 1)


if __name__ == "__main__":
    main()
