"""A process that asks the LLM servers of its settings: `asking(…)` starts one, `asking_directly(…)`
one that does it with an LLMQueue.

It is a fork (commands.py). It prints a line when it is ready, asks when it reads a line, and prints
the results as JSON: of each question the first word of the answer, or the class of the error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

from switchyard import LLMQueue
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.model_client import ModelClient
from tests.support.commands import Running, commands

ROOT = Path(__file__).parents[2]


async def ask_all(questions: list[str]) -> list[str]:
    """Ask all at once, each until it is answered or refused for good."""
    settings = Settings()

    async def ask(client: ModelClient, question: str) -> str:
        chat = {"messages": [{"role": "user", "content": question}], "max_tokens": 100}
        try:
            answer, _ = await client.answer(chat, urgency=Urgency(), timeout=60)
        except Exception as error:
            return type(error).__name__
        return answer.text.split()[0]

    async with (
        await Ledger.open(settings.ledger_url) as ledger,
        ModelClient.open(settings, ledger) as client,
    ):
        return await asyncio.gather(*(ask(client, each) for each in questions))


async def call_all(questions: list[str]) -> list[str]:
    """Ask by an LLMQueue; return the status of each question."""
    async with LLMQueue.open() as queue:

        async def call(question: str) -> str:
            chat = {"messages": [{"role": "user", "content": question}]}
            return (await queue.call("chat_completion", chat, timeout=60)).status

        return await asyncio.gather(*(call(each) for each in questions))


class AskingProcess:
    """A process that asks questions after `go`."""

    def __init__(self, process: Running, commands_file: IO[str], output_file: IO[str]) -> None:
        self._process = process
        self._commands = commands_file
        self._output = output_file

    def go(self) -> None:
        """Let the process ask its questions."""
        print("go", file=self._commands, flush=True)

    async def answers(self) -> list[str]:
        """Wait for the result of each question, and return them."""
        answers: list[str] = json.loads(await asyncio.to_thread(self._output.readline))
        return answers

    def kill(self) -> None:
        """Kill it at once; return when it has ended."""
        self._process.kill()
        self._process.wait(10)


def asking(
    environment: dict[str, str], questions: list[str]
) -> AbstractContextManager[AskingProcess]:
    """Return the process, ready to begin; it is killed at the end."""
    return _start_process(environment, questions)


def asking_directly(
    environment: dict[str, str], questions: list[str]
) -> AbstractContextManager[AskingProcess]:
    """Return the same with `call_all`."""
    return _start_process(environment, questions, "queue")


@contextmanager
def _start_process(
    environment: dict[str, str], questions: list[str], *modes: str
) -> Iterator[AskingProcess]:
    stdin_fd, commands_fd = os.pipe()
    output_fd, stdout_fd = os.pipe()
    with os.fdopen(commands_fd, "w") as commands_file, os.fdopen(output_fd) as output_file:
        with os.fdopen(stdin_fd) as stdin, os.fdopen(stdout_fd, "w") as output:
            process = commands().start(
                [json.dumps(questions), *modes],
                env={**os.environ, **environment},
                cwd=ROOT,
                stdin=stdin.fileno(),
                output=output.fileno(),
                errors=sys.__stderr__.fileno() if sys.__stderr__ else None,
                module=__name__,
            )
        with process:
            asking_process = AskingProcess(process, commands_file, output_file)
            try:
                assert output_file.readline() == "ready\n"
                yield asking_process
            finally:
                asking_process.kill()


def main() -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    ask = call_all if sys.argv[2:] else ask_all
    print(json.dumps(asyncio.run(ask(json.loads(sys.argv[1])))), flush=True)
