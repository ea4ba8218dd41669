"""`make fault-run`: exits with 1 if the run found something wrong."""

import argparse
import random

from tests.support.fault_run.run import Plan, run
from tests.support.long_run import exit_with


def main() -> None:
    parser = argparse.ArgumentParser(prog="make fault-run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=Plan.minutes)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--profile", choices=("classic", "quorum"), default=Plan.profile)
    parser.add_argument("--ledger", choices=("sqlite", "postgresql"), default=Plan.ledger)
    plan = Plan(**vars(parser.parse_args()))
    exit_with("fault-run", lambda directory: run(plan, directory))


if __name__ == "__main__":
    main()
