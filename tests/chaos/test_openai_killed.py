"""Requests to `/v1` while API, workers and the model server are killed, one after the other: each
is answered once, or its client gets an error, and no stored answer is requested again.

The environment variable KILLED_REQUESTS sets the number of requests.
"""

import asyncio
import itertools
import json
import math
import os
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import func, select

from switchyard.cli.system.free_ports import free_port
from switchyard.services.engine.ledger.sql.tables import jobs
from switchyard.services.engine.wings import job_modules
from tests.support.api_server import ApiProcess, api_process
from tests.support.brokers import TestBroker
from tests.support.commands import ROOT, Running, commands
from tests.support.eventually import eventually
from tests.support.llm_server import MODEL
from tests.support.model_process import answer_times, answer_to, start_model_process
from tests.support.system import System, open_system
from tests.support.worker_process import environment_of

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(1500)]

REQUESTS = int(os.environ.get("KILLED_REQUESTS", "200"))
KILL_EVERY = 50
"""Answers after which the next process is killed."""
CONCURRENT_CLIENTS = 64
"""Requests whose clients wait at the same time."""
SLOTS = 8
BUSY = 503
"""Status of an answer while the ledger or the broker does not respond, as on a busy machine."""
MODEL_CALLERS = ("worker", "api")
"""Processes that call the model server; the API only where it makes direct calls."""
WORKERS = 2
ANSWER_TRANSIT_TIME = 5.0
"""Seconds before and after a kill in which an answer may have been on its way to the process. The
machine may be busy, so they are many; the slots bound the number of such answers."""
PROGRESS_TIMEOUT = 150.0
"""Seconds within which another request must be answered."""


@dataclass(frozen=True)
class Kill:
    """A process that was killed, and when."""

    role: str
    began: float
    ended: float
    stored: frozenset[str]
    """Answers that were stored when the process had ended."""

    def may_have_lost(self, question: str, answered_at: float) -> bool:
        """Return whether an answer may have been lost on its way to the killed process."""
        is_near = self.began - ANSWER_TRANSIT_TIME < answered_at < self.ended + ANSWER_TRANSIT_TIME
        return self.role in MODEL_CALLERS and is_near and answer_to(question) not in self.stored


def read_stored_answers(folder: Path) -> frozenset[str]:
    files = (folder / "files" / "llm").glob("*.json")
    return frozenset(json.loads(file.read_text())["answer"]["text"] for file in files)


@dataclass
class Fleet:
    """Processes of the test; each is started again when it was killed."""

    system: System
    folder: Path
    stack: AsyncExitStack
    model_port: int
    kills: list[Kill] = field(default_factory=list)
    api_is_up: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _api: ApiProcess | None = None
    _workers: list[Running] = field(default_factory=list)
    _model: Running | None = None

    @property
    def answers_log(self) -> Path:
        return self.folder / "answered.log"

    async def start(self) -> None:
        self._model = self.stack.enter_context(
            start_model_process(self.model_port, self.answers_log)
        )
        self._start_command("scheduler")
        for _ in range(WORKERS):
            self._start_worker()
        await self._start_api()

    async def kill_api(self) -> None:
        assert self._api is not None
        self.api_is_up.clear()
        await self._kill("api", self._api.process)
        await self._start_api()

    async def kill_worker(self) -> None:
        await self._kill("worker", self._workers.pop(0))
        self._start_worker()

    async def kill_model(self) -> None:
        assert self._model is not None
        await self._kill("model", self._model)
        self._model = self.stack.enter_context(
            start_model_process(self.model_port, self.answers_log)
        )

    async def _kill(self, role: str, process: Any) -> None:
        began = time.time()
        process.kill()
        await asyncio.to_thread(process.wait, 10)
        stored = await asyncio.to_thread(read_stored_answers, self.folder)
        self.kills.append(Kill(role, began, time.time(), stored))

    def _start_worker(self) -> None:
        self._workers.append(self._start_command("worker", "llm", "--concurrency", str(SLOTS)))

    async def _start_api(self) -> None:
        log = self.folder / f"api{len(self.kills)}.log"
        environment = environment_of(self.system.settings)
        starting = api_process(self.system.settings, log, **environment)
        self._api = await self.stack.enter_async_context(starting)
        self.url = f"{self._api.url}/v1"
        self.api_is_up.set()

    def _start_command(self, *arguments: str) -> Running:
        log = self.stack.enter_context((self.folder / "others.log").open("ab"))
        environment = environment_of(self.system.settings)
        process = commands().start(list(arguments), env=environment, cwd=ROOT, output=log.fileno())
        self.stack.enter_context(process)
        self.stack.callback(process.kill)
        return process


@pytest.mark.parametrize(
    ("database_url", "direct_calls"),
    [
        pytest.param("sqlite", 0, marks=pytest.mark.pairs),
        pytest.param("sqlite", 4),
        pytest.param("postgresql", 0, marks=pytest.mark.postgres),
        pytest.param("postgresql", 4, marks=[pytest.mark.postgres, pytest.mark.pairs]),
    ],
    indirect=["database_url"],
)
async def test_requests_are_answered_once_while_api_workers_and_server_are_killed(
    broker310: TestBroker, database_url: str, tmp_path: Path, direct_calls: int
) -> None:
    model_port = free_port()
    overrides: dict[str, Any] = {
        "llm_base_url": f"http://127.0.0.1:{model_port}/v1",
        "llm_model": MODEL,
        "llm_pacing": "fixed",
        "llm_concurrency": SLOTS,
        "takeover_after": 0.8,
        "llm_direct_calls": direct_calls,
    }
    outcomes: dict[int, str] = {}
    connection_losses, refusals = Counter[int](), Counter[int]()
    async with (
        open_system(
            broker310, database_url, modules=job_modules(), data_dir=tmp_path, **overrides
        ) as system,
        AsyncExitStack() as stack,
    ):
        fleet = Fleet(system, tmp_path, stack, model_port)
        await fleet.start()
        http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
        client = openai.AsyncOpenAI(
            base_url=fleet.url, api_key="none", max_retries=0, http_client=http_client
        )
        await stack.enter_async_context(client)
        client_slots = asyncio.Semaphore(CONCURRENT_CLIENTS)

        async def send_until_answered(number: int) -> None:
            chat: Any = [{"role": "user", "content": f"question {number}"}]
            headers = {"Idempotency-Key": f"request-{number}"}
            async with client_slots:
                while number not in outcomes:
                    await fleet.api_is_up.wait()
                    completions = client.with_options(base_url=fleet.url).chat.completions
                    try:
                        answer = await completions.create(
                            model=MODEL, messages=chat, extra_headers=headers
                        )
                    except openai.APIConnectionError:  # by a kill: the request is sent again
                        connection_losses[number] += 1
                        assert connection_losses[number] < 100
                        await asyncio.sleep(0.1)
                    except openai.APIStatusError as error:
                        if error.status_code != BUSY:
                            outcomes[number] = f"{error.status_code} {error.code}"
                            continue
                        refusals[number] += 1  # it was asked to retry later, and does
                        assert refusals[number] < 100
                        await asyncio.sleep(float(error.response.headers["retry-after"]))
                    else:
                        outcomes[number] = str(answer.choices[0].message.content)

        async def kill_in_turn() -> None:
            kill_order = itertools.cycle((fleet.kill_api, fleet.kill_worker, fleet.kill_model))
            for answered in range(KILL_EVERY, REQUESTS, KILL_EVERY):

                def is_reached(count: int = answered) -> bool:
                    return len(outcomes) >= count

                await eventually(
                    is_reached,
                    PROGRESS_TIMEOUT,
                    f"{answered} answers",
                    progress=lambda: len(outcomes),
                )
                await next(kill_order)()

        async with asyncio.TaskGroup() as group:
            group.create_task(kill_in_turn())
            for number in range(REQUESTS):
                group.create_task(send_until_answered(number))
        count = select(func.count()).select_from(jobs)
        recorded = await system.ledger.core.database.read(lambda c: c.execute(count).scalar_one())
    answered_numbers = {
        number for number, text in outcomes.items() if text == answer_to(f"question {number}")
    }
    failures = {number: text for number, text in outcomes.items() if number not in answered_numbers}
    answered_at = answer_times(tmp_path / "answered.log")
    repeated = {question: times for question, times in answered_at.items() if len(times) > 1}
    print(
        f"{REQUESTS} requests, {len(fleet.kills)} kills: {len(answered_numbers)} answered, "
        f"{len(failures)} failed {Counter(failures.values())}, "
        f"{len(connection_losses)} clients cut off, "
        f"{len(refusals)} asked to retry later; "
        f"{len(repeated)} asked again"
    )
    caller_kills = [
        kill for kill in fleet.kills if kill.role in MODEL_CALLERS[: 2 if direct_calls else 1]
    ]
    # A question is asked again only if a killed process had no time to store its answer.
    loss_delays = [
        min(
            (
                kill.began - answered
                for kill in caller_kills
                if kill.may_have_lost(question, answered)
            ),
            default=math.nan,
        )
        for question, times in repeated.items()
        for answered in times[:-1]
    ]
    print("seconds from a lost answer to the kill:", [round(each, 2) for each in loss_delays])
    # One job for each request at most; refused ones have none, as while the ledger is away.
    assert len(outcomes) == REQUESTS
    assert len(answered_numbers) <= recorded <= REQUESTS
    assert {text.partition(" ")[0] for text in failures.values()} <= {"502", "504"}
    assert len(failures) <= len(fleet.kills)
    assert {f"question {number}" for number in answered_numbers} <= answered_at.keys()
    assert not any(math.isnan(each) for each in loss_delays), repeated
    assert len(repeated) <= SLOTS * len(caller_kills)
