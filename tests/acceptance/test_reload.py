"""`--reload` of a worker and of `jobctl up`: they restart when the user's modules change."""

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
def words_module(jobctl: CommandLine, tmp_path: Path) -> Path:
    """The path of `words_of_mine`, which a module with a job type imports."""
    (tmp_path / "jobs_of_mine.py").write_text(MODULE)
    words_module = tmp_path / "words_of_mine.py"
    words_module.write_text("WORD = 'one'")
    jobctl.environment |= {"PYTHONPATH": str(tmp_path), "JOBS_MODULES": "jobs_of_mine"}
    assert run_alone(jobctl, "topology", "apply").returncode == 0
    return words_module


def run_alone(jobctl: CommandLine, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that has this test's modules on its path from its start."""
    return subprocess.run(
        [str(JOBCTL), *arguments],
        env=jobctl.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def wait_for_log(
    jobctl: CommandLine, text: str, times: int = 1, *, command: str = "worker"
) -> None:
    deadline = time.monotonic() + TIMEOUT
    while jobctl.log_of(command).count(text) < times:
        assert time.monotonic() < deadline, jobctl.log_of(command)


def run_say_job(jobctl: CommandLine) -> str:
    """Run a `say` job; return the word that it says."""
    completed = run_alone(jobctl, "publish", "hot.say", "--payload", "{}", "--wait", "--json")
    assert completed.returncode == 0, completed.stderr
    return str(json.loads(completed.stdout)["result"]["word"])


@pytest.mark.long
def test_a_change_restarts_the_worker_and_a_syntax_error_does_not(
    jobctl: CommandLine, words_module: Path
) -> None:
    with jobctl.launched("worker", "llm", "--reload") as process:
        assert run_say_job(jobctl) == "one"
        words_module.write_text("WORD = 'two")  # a syntax error: the quote is not closed
        wait_for_log(jobctl, "unterminated string literal")
        assert "SyntaxError" in jobctl.log_of("worker")
        assert "the worker runs on as it was" in jobctl.log_of("worker")
        assert "Traceback" not in jobctl.log_of("worker")
        assert process.poll() is None
        assert jobctl.log_of("worker").count("worker started") == 1
        words_module.write_text("WORD = 'three'")
        wait_for_log(jobctl, "words_of_mine.py changed; the worker starts again")
        wait_for_log(jobctl, "worker started", times=2)
        assert run_say_job(jobctl) == "three"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert jobctl.log_of("worker").count("worker stopped") == 2


def test_an_error_in_a_module_is_reported_in_one_line(
    jobctl: CommandLine, words_module: Path, tmp_path: Path
) -> None:
    words_module.write_text("WORD = 1 / 0")
    completed = run_alone(jobctl, "worker", "llm")
    error_text = completed.stderr
    assert (completed.returncode, len(error_text.splitlines())) == (1, 1)
    assert "ZeroDivisionError: division by zero" in error_text
    assert "words_of_mine.py, line 1)" in error_text


NEW_TYPE = """

@job("shout", worker="megaphone", lanes=("hot",), timeout=20)
async def shout(payload: Nothing, ctx: JobContext) -> Outcome:
    return Done({"word": WORD.upper()})
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_up_reloads_modules_with_a_new_job_type_that_needs_a_queue(
    jobctl: CommandLine, words_module: Path, tmp_path: Path
) -> None:
    no_other_workers = [
        f"--scale={kind}=0" for kind in ("ingest", "embed", "ocr", "link", "reindex")
    ]
    with jobctl.launched("up", "--reload", "--api-port=0", *no_other_workers) as process:
        wait_for_log(jobctl, "Ctrl-C stops everything", command="up")
        assert run_say_job(jobctl) == "one"
        words_module.write_text("WORD = 'two")  # a syntax error: the quote is not closed
        wait_for_log(jobctl, "unterminated string literal", command="up")
        assert "everything runs on as it was" in jobctl.log_of("up")
        with (tmp_path / "jobs_of_mine.py").open("a") as module:
            module.write(NEW_TYPE)
        words_module.write_text("WORD = 'three'")
        wait_for_log(jobctl, "changed; the processes start again", command="up")
        assert wait_for_word(jobctl, "three") == "three"
        # A job of the new type waits in its queue, as no worker of its kind runs.
        assert run_alone(jobctl, "publish", "hot.shout", "--payload", "{}").returncode == 0
        assert "ended (" not in jobctl.log_of("up")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def wait_for_word(jobctl: CommandLine, word: str) -> str:
    """Run `say` jobs until one says the word: the old process may take one more. Return it."""
    deadline = time.monotonic() + TIMEOUT
    while (last_word := run_say_job(jobctl)) != word and time.monotonic() < deadline:
        pass
    return last_word
