"""The commands and programs of README.md and docs/testing.md work as printed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import JOBCTL, ROOT, clean_environment
from tests.support.brokers import TestBroker

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
SCRIPT_TIMEOUT = 90.0
"""Seconds that a script or a test run may take on a busy machine."""


def blocks_of(page: str, heading: str) -> list[str]:
    """Return the code blocks below a heading, up to the next heading of its level."""
    text = (ROOT / page).read_text()
    section = re.split(rf"^{heading}$", text, flags=re.MULTILINE)[1]
    section = re.split(r"^## ", section, flags=re.MULTILINE)[0]
    return re.findall(r"^```[a-z]*\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(broker310: TestBroker, tmp_path: Path) -> dict[str, str]:
    """Variables of a shell with the virtual environment, beside the README's my_jobs.py."""
    (tmp_path / "my_jobs.py").write_text(blocks_of("README.md", "## Your own jobs")[0])
    environment = clean_environment(
        amqp_url=broker310.amqp_url, management_url=broker310.management_url
    )
    return environment | {"PATH": f"{JOBCTL.parent}:{os.environ['PATH']}"}


@pytest.fixture
def up(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run what `make up` runs after installing."""
    yield from run_up("", environment, tmp_path)


def run_up(
    options: str, environment: dict[str, str], directory: Path
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        f"exec jobctl up --api-port 0 {options}",
        shell=True,
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            assert any("Ctrl-C stops everything" in line for line in lines), "it has ended"
            yield process
        finally:
            process.terminate()


def run_script(script: str, environment: dict[str, str], directory: Path) -> str:
    """Run a script, each line of which must succeed, end its background jobs, return its output."""
    completed = subprocess.run(
        [
            "bash",
            "-euo",
            "pipefail",
            "-c",
            f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{script}",
        ],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SCRIPT_TIMEOUT,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    return completed.stdout


def test_every_code_block_of_the_readme_is_tested_here() -> None:
    blocks = re.findall(
        r"^```[a-z]*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    tested = [blocks_of("README.md", "## Try it"), blocks_of("README.md", "## Your own jobs")]
    assert blocks == [block for section in tested for block in section]
    assert [len(section) for section in tested] == [1, 3]


def test_the_two_commands_run_what_the_tests_of_demo_and_up_run() -> None:
    (block,) = blocks_of("README.md", "## Try it")
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert commands == ["make demo", "make up"]
    # Without the variables of the `make` that runs the tests.
    make_variables = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "FILES")
    environment = {name: value for name, value in os.environ.items() if name not in make_variables}
    for command in [*commands, "make demo ARGS=--keep", 'make demo FILES="a.pdf b.pdf"']:
        assert command.removeprefix("make ") in (ROOT / "README.md").read_text()
        arguments = shlex.split(command)
        # `--assume-old` skips the installation.
        completed = subprocess.run(
            [*arguments, "--dry-run", "--assume-old=.venv/.libraries"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        make_arguments = " ".join(arguments[2:]).partition("=")[2]
        last_line = completed.stdout.strip().splitlines()[-1]
        assert last_line.split() == [".venv/bin/jobctl", arguments[1], *make_arguments.split()]


def test_your_own_jobs_run_beside_make_up_as_written(
    environment: dict[str, str], tmp_path: Path, up: subprocess.Popen[str]
) -> None:
    commands = blocks_of("README.md", "## Your own jobs")[1]
    output = run_script(f"source .switchyard/env\n{commands}", environment, tmp_path)
    assert '"Good day"' in output
    assert '"words": 3' in output
    listing = run_script(
        "source .switchyard/env; jobctl jobs list --state succeeded --json", environment, tmp_path
    )
    assert listing.count('"translate"') == 2


def test_up_with_your_module_runs_your_jobs(environment: dict[str, str], tmp_path: Path) -> None:
    assert "`jobctl up --include my_jobs`" in (ROOT / "README.md").read_text()
    for _ in run_up("--include my_jobs", environment, tmp_path):
        output = run_script(
            "source .switchyard/env\n"
            """jobctl publish hot.translate_abstract --payload '{"text": "Guten Tag"}' --wait\n"""
            """curl -sf $JOBS_API_URL/jobs -H 'Content-Type: application/json' """
            """-d '{"routing_key": "hot.count_words", "payload": {"text": "a b"}}'""",
            environment,
            tmp_path,
        )
        assert '"Good day"' in output
        assert '"job_id"' in output


def test_the_tests_of_the_docs_pass(environment: dict[str, str], tmp_path: Path) -> None:
    handler_test = blocks_of("README.md", "## Your own jobs")[2]
    brokerless_test = blocks_of("docs/testing.md", "## Without a broker")[0]
    worker_test = blocks_of("docs/testing.md", "## With a worker")[0]
    (tmp_path / "test_readme_example.py").write_text(handler_test)
    (tmp_path / "test_my_jobs.py").write_text(brokerless_test)
    (tmp_path / "test_with_worker.py").write_text(worker_test)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    assert "5 passed" in completed.stdout
