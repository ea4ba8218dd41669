"""`make join-run`: exits with 1 if the run found a join that went wrong."""

import argparse

from tests.support.join_run.run import Plan, run_all
from tests.support.long_run import exit_with


def main() -> None:
    parser = argparse.ArgumentParser(prog="make join-run", description=__doc__)
    parser.add_argument("--runs", type=int, default=Plan.runs, help="runs for each ledger")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="seed of the first run")
    parser.add_argument("--jobs", type=int, default=Plan.jobs, help="jobs that are joined")
    parser.add_argument("--profile", choices=("classic", "quorum"), default=Plan.profile)
    parser.add_argument("--ledger", choices=("sqlite", "postgresql", "both"), default=Plan.ledger)
    plan = Plan(**vars(parser.parse_args()))
    exit_with("join-run", lambda directory: run_all(plan, directory))


if __name__ == "__main__":
    main()
