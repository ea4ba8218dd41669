"""Helpers that read the doctor's findings and the commands of its remedies."""

import json
import re
import shlex
import time

from tests.acceptance.conftest import CommandLine

MAX_WAIT = 60.0
"""Seconds within which a finding must appear or go."""
PAUSE = 0.5
"""Seconds between runs of the doctor, which take processor time from the test."""


def findings(jobctl: CommandLine) -> dict[str, dict[str, str]]:
    """Run the doctor; return its checks with a finding, by the finding. Its exit code must fit."""
    completed = jobctl.run("doctor", "--json")
    checks = json.loads(completed.stdout)
    is_any_wrong = any(check["status"] == "wrong" for check in checks)
    assert completed.returncode == (1 if is_any_wrong else 0), completed.stderr
    assert all(check["remedy"] for check in checks if check["finding"]), checks
    return {check["finding"]: check for check in checks if check["finding"]}


def until_found(jobctl: CommandLine, *names: str) -> dict[str, dict[str, str]]:
    """Wait until these findings are there, as the broker's figures lag by seconds; return all."""
    deadline = time.monotonic() + MAX_WAIT
    while not set(names) <= (current := findings(jobctl)).keys():
        assert time.monotonic() < deadline, current
        time.sleep(PAUSE)
    return current


def until_gone(jobctl: CommandLine, *names: str) -> None:
    """Wait until none of these findings is there."""
    deadline = time.monotonic() + MAX_WAIT
    while remaining := {name: check for name, check in findings(jobctl).items() if name in names}:
        assert time.monotonic() < deadline, remaining
        time.sleep(PAUSE)


def commands(check: dict[str, str], program: str) -> list[list[str]]:
    """Return the commands of a remedy that run the program, as printed, split into words."""
    printed = [shlex.split(command) for command in re.findall(r"`([^`]+)`", check["remedy"])]
    return [command for command in printed if command[0] == program]
