"""`--reload` of a worker and of `jobctl up`: they follow the user's modules."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.conftest import JOBCTL, TIMEOUT, CommandLine

MODULE = """
from pydantic import BaseModel
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import job
from words_of_mine import WORD

class Nothing(BaseModel):
    pass

@job("say", worker="llm", lanes=("hot",), timeout=20)
async def say(payload: Nothing, ctx: JobContext) -> Outcome:
    return Done({"word": WORD})
"""


@pytest.fixture
def mine(jobctl: CommandLine, tmp_path: Path) -> Path:
    """A module with a job type, and one that it imports, which is given."""
    (tmp_path / "jobs_of_mine.py").write_text(MODULE)
    words = tmp_path / "words_of_mine.py"
    words.write_text("WORD = 'one'")
    jobctl.environment |= {"PYTHONPATH": str(tmp_path), "JOBS_MODULES": "jobs_of_mine"}
    assert run(jobctl, "topology", "apply").returncode == 0
    return words


def run(jobctl: CommandLine, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that has this test's modules on its path from its start."""
    return subprocess.run(
        [str(JOBCTL), *arguments],
        env=jobctl.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def until_logged(jobctl: CommandLine, text: str, times: int = 1, *, of: str = "worker") -> None:
    deadline = time.monotonic() + TIMEOUT
    while jobctl.log_of(of).count(text) < times:
        assert time.monotonic() < deadline, jobctl.log_of(of)


def said(jobctl: CommandLine) -> str:
    done = run(jobctl, "publish", "hot.say", "--payload", "{}", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["result"]["word"])


@pytest.mark.long
def test_a_change_starts_it_again_and_an_error_leaves_it_as_it_is(
    jobctl: CommandLine, mine: Path
) -> None:
    with jobctl.launched("worker", "llm", "--reload") as process:
        assert said(jobctl) == "one"
        mine.write_text("WORD = 'two")  # nobody closes the quote
        until_logged(jobctl, "unterminated string literal")
        assert "SyntaxError" in jobctl.log_of("worker")
        assert "the worker runs on as it was" in jobctl.log_of("worker")
        assert "Traceback" not in jobctl.log_of("worker")
        assert process.poll() is None
        assert jobctl.log_of("worker").count("worker started") == 1
        mine.write_text("WORD = 'three'")
        until_logged(jobctl, "words_of_mine.py changed; the worker starts again")
        until_logged(jobctl, "worker started", times=2)
        assert said(jobctl) == "three"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert jobctl.log_of("worker").count("worker stopped") == 2


def test_a_module_with_an_error_is_told_in_one_line(
    jobctl: CommandLine, mine: Path, tmp_path: Path
) -> None:
    mine.write_text("WORD = 1 / 0")
    done = run(jobctl, "worker", "llm")
    told = done.stderr
    assert (done.returncode, len(told.splitlines())) == (1, 1)
    assert "ZeroDivisionError: division by zero" in told
    assert "words_of_mine.py, line 1)" in told


NEW_TYPE = """

@job("shout", worker="megaphone", lanes=("hot",), timeout=20)
async def shout(payload: Nothing, ctx: JobContext) -> Outcome:
    return Done({"word": WORD.upper()})
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_up_follows_the_modules_also_to_a_type_that_needs_a_queue(
    jobctl: CommandLine, mine: Path, tmp_path: Path
) -> None:
    nobody = [f"--scale={kind}=0" for kind in ("ingest", "embed", "ocr", "link", "reindex")]
    with jobctl.launched("up", "--reload", "--api-port=0", *nobody) as process:
        until_logged(jobctl, "Ctrl-C stops everything", of="up")
        assert said(jobctl) == "one"
        mine.write_text("WORD = 'two")  # nobody closes the quote
        until_logged(jobctl, "unterminated string literal", of="up")
        assert "everything runs on as it was" in jobctl.log_of("up")
        with (tmp_path / "jobs_of_mine.py").open("a") as module:
            module.write(NEW_TYPE)
        mine.write_text("WORD = 'three'")
        until_logged(jobctl, "changed; the processes start again", of="up")
        assert said_at_last(jobctl, "three") == "three"
        # What is published by a process that knows it waits in its queue for a worker.
        assert run(jobctl, "publish", "hot.shout", "--payload", "{}").returncode == 0
        assert "ended (" not in jobctl.log_of("up")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def said_at_last(jobctl: CommandLine, word: str) -> str:
    """What a job says, once it says the word: the old process may have one more job."""
    deadline = time.monotonic() + TIMEOUT
    while (last := said(jobctl)) != word and time.monotonic() < deadline:
        pass
    return last
