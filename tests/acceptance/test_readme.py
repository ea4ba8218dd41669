"""What README.md and docs/testing.md tell users to type works as it stands there."""

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
START = 90.0
"""Seconds that `jobctl up` may take on a busy machine."""


def blocks_of(page: str, heading: str) -> list[str]:
    """The code blocks below a heading, up to the next of its level."""
    text = (ROOT / page).read_text()
    part = re.split(rf"^{heading}$", text, flags=re.MULTILINE)[1]
    part = re.split(r"^## ", part, flags=re.MULTILINE)[0]
    return re.findall(r"^```[a-z]*\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(broker310: TestBroker, tmp_path: Path) -> dict[str, str]:
    """A shell with the virtual environment, in a directory with the README's my_jobs.py."""
    (tmp_path / "my_jobs.py").write_text(blocks_of("README.md", "## Your own jobs")[0])
    environment = clean_environment(
        amqp_url=broker310.amqp_url, management_url=broker310.management_url
    )
    return environment | {"PATH": f"{JOBCTL.parent}:{os.environ['PATH']}"}


@pytest.fixture
def up(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`make up`, without what it installs."""
    yield from running("", environment, tmp_path)


def running(
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


def shell(script: str, environment: dict[str, str], directory: Path) -> str:
    """What a script printed whose every line must succeed; what it leaves in the background ends
    with it."""
    done = subprocess.run(
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
        timeout=START,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_readme_has_no_block_that_is_not_tried_here() -> None:
    blocks = re.findall(
        r"^```[a-z]*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    tried = [blocks_of("README.md", "## Try it"), blocks_of("README.md", "## Your own jobs")]
    assert blocks == [block for section in tried for block in section]
    assert [len(section) for section in tried] == [1, 3]


def test_the_two_commands_run_what_the_tests_of_demo_and_up_run() -> None:
    (block,) = blocks_of("README.md", "## Try it")
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    assert commands == ["make demo", "make up"]
    # Not what the `make` was told that runs the tests.
    of_make = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "FILES")
    environment = {name: value for name, value in os.environ.items() if name not in of_make}
    for command in [*commands, "make demo ARGS=--keep", 'make demo FILES="a.pdf b.pdf"']:
        assert command.removeprefix("make ") in (ROOT / "README.md").read_text()
        arguments = shlex.split(command)
        # Without what it installs.
        done = subprocess.run(
            [*arguments, "--dry-run", "--assume-old=.venv/.libraries"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        more = " ".join(arguments[2:]).partition("=")[2]
        last = done.stdout.strip().splitlines()[-1]
        assert last.split() == [".venv/bin/jobctl", arguments[1], *more.split()]


def test_your_own_jobs_run_beside_make_up_as_written(
    environment: dict[str, str], tmp_path: Path, up: subprocess.Popen[str]
) -> None:
    commands = blocks_of("README.md", "## Your own jobs")[1]
    told = shell(f"source .switchyard/env\n{commands}", environment, tmp_path)
    assert '"Good day"' in told
    assert '"words": 3' in told
    shown = shell(
        "source .switchyard/env; jobctl jobs list --state succeeded --json", environment, tmp_path
    )
    assert shown.count('"translate"') == 2


def test_up_with_your_module_runs_your_jobs(environment: dict[str, str], tmp_path: Path) -> None:
    assert "`jobctl up --include my_jobs`" in (ROOT / "README.md").read_text()
    for _ in running("--include my_jobs", environment, tmp_path):
        told = shell(
            "source .switchyard/env\n"
            """jobctl publish hot.translate_abstract --payload '{"text": "Guten Tag"}' --wait\n"""
            """curl -sf $JOBS_API_URL/jobs -H 'Content-Type: application/json' """
            """-d '{"routing_key": "hot.count_words", "payload": {"text": "a b"}}'""",
            environment,
            tmp_path,
        )
        assert '"Good day"' in told
        assert '"job_id"' in told


def test_the_tests_of_the_docs_pass(environment: dict[str, str], tmp_path: Path) -> None:
    alone = blocks_of("README.md", "## Your own jobs")[2]
    without = blocks_of("docs/testing.md", "## Without a broker")[0]
    with_worker = blocks_of("docs/testing.md", "## With a worker")[0]
    (tmp_path / "test_readme_example.py").write_text(alone)
    (tmp_path / "test_my_jobs.py").write_text(without)
    (tmp_path / "test_with_worker.py").write_text(with_worker)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\npythonpath = .\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=START,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
