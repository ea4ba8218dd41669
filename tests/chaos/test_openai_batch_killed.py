"""All processes are killed during a batch of `/v1/batches`: each of its lines is answered once."""

import asyncio
import json
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from switchyard.services.engine.wings import job_modules
from tests.support.api_server import ApiProcess, api_process
from tests.support.brokers import TestBroker
from tests.support.commands import ROOT, Running, commands
from tests.support.eventually import eventually
from tests.support.llm_server import MODEL, FakeLlmServer
from tests.support.site import Exchange, Request
from tests.support.system import open_system
from tests.support.worker_process import environment_of

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(600)]

LINES = 120
KILL_AFTER = 30
"""Calls of the model server after which all processes are killed."""
SLOTS = 8
CALL_TIME = 0.1
"""Seconds that the model server takes, so that calls are under way when the worker is killed."""
PROGRESS_TIMEOUT = 150.0
"""Seconds within which another request must come: jobs of a killed worker run again in processes
of their own, a few at a time, which a busy machine starts slowly."""
ENDPOINT: Any = "/v1/chat/completions"


def make_line(number: int) -> dict[str, Any]:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": f"line {number}"}]}
    return {"custom_id": f"line {number}", "method": "POST", "url": ENDPOINT, "body": chat}


def answer_slowly(exchange: Exchange, request: Request) -> None:
    time.sleep(CALL_TIME)  # in a thread of the server's own
    exchange.server.owner.answer(exchange, request)


def open_client(api: ApiProcess) -> openai.AsyncOpenAI:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", http_client=http_client)


async def test_a_batch_whose_processes_are_killed_in_the_middle_answers_each_line_once(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    with FakeLlmServer() as llm:
        llm.always(answer_slowly)
        overrides: dict[str, Any] = {
            "llm_base_url": llm.url,
            "llm_model": MODEL,
            "llm_pacing": "fixed",
            "llm_concurrency": SLOTS,
            "takeover_after": 0.8,
        }
        async with (
            open_system(
                broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path, **overrides
            ) as system,
        ):

            async def start(stack: AsyncExitStack) -> tuple[ApiProcess, list[Running]]:
                environment = environment_of(system.settings)
                log = stack.enter_context((tmp_path / "others.log").open("ab"))
                processes = [
                    commands().start(arguments, env=environment, cwd=ROOT, output=log.fileno())
                    for arguments in (["worker", "llm", "--concurrency", str(SLOTS)], ["scheduler"])
                ]
                for process in processes:
                    stack.enter_context(process)
                    stack.callback(process.kill)
                starting = api_process(system.settings, tmp_path / "api.log", **environment)
                return await stack.enter_async_context(starting), processes

            async with AsyncExitStack() as stack:
                api, processes = await start(stack)
                content = "\n".join(json.dumps(make_line(number)) for number in range(LINES))
                async with open_client(api) as client:
                    file = await client.files.create(
                        file=("in.jsonl", content.encode()), purpose="batch"
                    )
                    batch = await client.batches.create(
                        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
                    )
                await eventually(lambda: len(llm.requests) >= KILL_AFTER, PROGRESS_TIMEOUT)
                api.kill()
                for process in processes:
                    process.kill()
                for process in processes:
                    await asyncio.to_thread(process.wait, 10)
            assert len(llm.requests) < LINES, "the batch ended before the kill"
            async with AsyncExitStack() as stack:
                api, _ = await start(stack)
                client = await stack.enter_async_context(open_client(api))

                async def retrieve_if_completed() -> Any:
                    retrieved = await client.batches.retrieve(batch.id)
                    assert retrieved.status in ("in_progress", "finalizing", "completed"), retrieved
                    return retrieved if retrieved.status == "completed" else None

                ended_batch = await eventually(
                    retrieve_if_completed,
                    PROGRESS_TIMEOUT,
                    "the end of the batch",
                    progress=lambda: len(llm.requests),
                )
                counts = ended_batch.request_counts
                assert (counts.completed, counts.failed) == (LINES, 0)
                assert ended_batch.error_file_id is None
                content = (await client.files.content(ended_batch.output_file_id)).text
        answered = Counter(json.loads(line)["custom_id"] for line in content.splitlines())
        assert answered == Counter(f"line {number}" for number in range(LINES))
        question_counts = Counter(
            request.json["messages"][-1]["content"] for request in llm.requests
        )
        assert question_counts.keys() == answered.keys()
        # Only questions under way when the worker was killed are asked a second time.
        assert question_counts.total() <= LINES + SLOTS
