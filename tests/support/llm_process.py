"""A process that asks the LLM servers of its settings: `asking(…)` starts one, `asking_directly(…)`
one that does it with an LLMQueue.

It prints one line when it is ready, asks when it reads one, and prints what became of each question
as JSON: the answers' first words, or the errors' class.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from switchyard import LLMQueue
from switchyard.services.ledger import Ledger
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.lane import LlmLane
from switchyard.services.settings import Settings


async def ask_all(questions: list[str]) -> list[str]:
    """Ask all at once, each until it is answered or refused for good."""
    settings = Settings()

    async def ask(lane: LlmLane, question: str) -> str:
        asked = {"messages": [{"role": "user", "content": question}], "max_tokens": 100}
        try:
            answer, _ = await lane.answer(asked, urgency=Urgency(), within=60)
        except Exception as error:
            return type(error).__name__
        return answer.text.split()[0]

    async with (
        await Ledger.open(settings.ledger_url) as ledger,
        LlmLane.open(settings, ledger) as lane,
    ):
        return await asyncio.gather(*(ask(lane, each) for each in questions))


async def call_all(questions: list[str]) -> list[str]:
    """The same by an LLMQueue, which says how each ended."""
    async with LLMQueue.opened() as queue:

        async def call(question: str) -> str:
            asked = {"messages": [{"role": "user", "content": question}]}
            return (await queue.call("chat_completion", asked, timeout=60)).status

        return await asyncio.gather(*(call(each) for each in questions))


def asking(
    environment: dict[str, str], questions: list[str]
) -> AbstractContextManager[subprocess.Popen[str]]:
    """The process, ready to begin; it is killed at the end."""
    return _started(environment, questions)


def asking_directly(
    environment: dict[str, str], questions: list[str]
) -> AbstractContextManager[subprocess.Popen[str]]:
    """The same with `call_all`."""
    return _started(environment, questions, "queue")


@contextmanager
def _started(
    environment: dict[str, str], questions: list[str], *how: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.llm_process", json.dumps(questions), *how],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    ask = call_all if sys.argv[2:] else ask_all
    print(json.dumps(asyncio.run(ask(json.loads(sys.argv[1])))), flush=True)
