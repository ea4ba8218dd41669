"""A model server in a process of its own, which can be killed: `answering(port, log)` starts one.

Each question that it has answered is a line of its log: the time, and the question.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.commands import ROOT, Running, commands
from tests.support.llm_server import FakeLlmServer, answers
from tests.support.site import Exchange, Request

CALL_TIME = 0.1
"""Seconds that an answer takes, so that calls are under way when a process is killed."""


def answer_to(question: str) -> str:
    """Return what it answers."""
    return f"The answer to {question}."


class _AnsweringServer(FakeLlmServer):
    def __init__(self, port: int, log: Path) -> None:
        super().__init__(port)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def answer(self, exchange: Exchange, request: Request) -> None:
        question = request.json["messages"][-1]["content"]
        time.sleep(CALL_TIME)  # in a thread of its own
        answers(answer_to(question))(exchange, request)
        os.write(self._log, f"{time.time()} {question}\n".encode())


@contextmanager
def start_model_process(port: int, log: Path) -> Iterator[Running]:
    """Run the process; it is killed at the end."""
    with log.with_suffix(".out").open("ab") as output:
        process = commands().start(
            [str(port), str(log)],
            env=dict(os.environ),
            cwd=ROOT,
            output=output.fileno(),
            module=__name__,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)


def answer_times(log: Path) -> dict[str, list[float]]:
    """Return when each question was answered, as often as it was."""
    times: dict[str, list[float]] = defaultdict(list)
    for line in log.read_text().splitlines() if log.exists() else ():
        at, _, question = line.partition(" ")
        times[question].append(float(at))
    return times


def main() -> None:
    with _AnsweringServer(int(sys.argv[1]), Path(sys.argv[2])):
        threading.Event().wait()
