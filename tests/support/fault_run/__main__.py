"""`make fault-run`: exits with 1 where something was not as it must be."""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
from pathlib import Path

import structlog

from tests.support.fault_run.run import Plan, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="make fault-run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=Plan.minutes)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--profile", choices=("classic", "quorum"), default=Plan.profile)
    parser.add_argument("--ledger", choices=("sqlite", "postgresql"), default=Plan.ledger)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="switchyard-fault-run-"))
    # What this process itself has to say of connections that are cut, beside those of the others.
    with (directory / "driver.log").open("w") as log:
        logging.basicConfig(stream=log)
        logging.captureWarnings(True)
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
        sys.exit(0 if asyncio.run(run(Plan(**vars(given)), directory)) else 1)


if __name__ == "__main__":
    main()
