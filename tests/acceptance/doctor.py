"""What the doctor finds, and the commands of its remedies."""

import json
import re
import shlex
import time

from tests.acceptance.conftest import CommandLine

MAX_WAIT = 60.0
PAUSE = 0.5
"""Seconds between looks: one takes the processor from those who are to mend it."""


def findings(jobctl: CommandLine) -> dict[str, dict[str, str]]:
    """What the doctor finds, by the finding's name; and it exits as it says."""
    done = jobctl.run("doctor", "--json")
    checks = json.loads(done.stdout)
    wrong = any(check["status"] == "wrong" for check in checks)
    assert done.returncode == (1 if wrong else 0), done.stderr
    assert all(check["remedy"] for check in checks if check["finding"]), checks
    return {check["finding"]: check for check in checks if check["finding"]}


def until_found(jobctl: CommandLine, *names: str) -> dict[str, dict[str, str]]:
    """All findings, as soon as these are among them: the broker's figures are seconds old."""
    deadline = time.monotonic() + MAX_WAIT
    while not set(names) <= (found := findings(jobctl)).keys():
        assert time.monotonic() < deadline, found
        time.sleep(PAUSE)
    return found


def until_gone(jobctl: CommandLine, *names: str) -> None:
    deadline = time.monotonic() + MAX_WAIT
    while left := {name: each for name, each in findings(jobctl).items() if name in names}:
        assert time.monotonic() < deadline, left
        time.sleep(PAUSE)


def commands(check: dict[str, str], program: str) -> list[list[str]]:
    """The commands of a remedy, as printed."""
    printed = [shlex.split(each) for each in re.findall(r"`([^`]+)`", check["remedy"])]
    return [each for each in printed if each[0] == program]
