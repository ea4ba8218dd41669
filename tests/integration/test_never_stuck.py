"""Nothing is ever stuck: whatever is raised, at whatever step of an attempt, ends the job in its
attempts, and leaves the worker, its slots and other jobs unharmed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.wire.envelope import Envelope
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.jobs.retry import MAX_UNENDED_RUNS
from switchyard.services.engine.records.requests import ClaimRequest, FinishRequest
from switchyard.services.engine.records.results import Claimed, JobRecord
from switchyard.services.engine.records.states import AttemptOutcome, State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.raising import HOSTILE, IN_OWN_PROCESS, ISOLATIONS, STEPS, classes, exception
from tests.support.system import JOB_MODULES, RunningWorker, System, open_system
from tests.support.workers import FaultyLedger

MODULES = (*JOB_MODULES, "tests.support.raising")
RETRY_LEVELS = (0.05, 0.1)
"""Seconds."""
SLOTS = 4
MAX_ATTEMPTS = 2
"""The attempts of the job types that raise."""
UNCOUNTED = ("LedgerUnavailable", "TransactionConflict", "LedgerFull", "LedgerConnectionLimit",
             "LedgerLocked", "LedgerReadOnly", "LedgerAuthError",
             "DependencyUnavailable")  # fmt: skip
"""Errors that use up no attempt: what is needed is away. Jobs that meet them end by their age."""
LANGUAGE = ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "MemoryError",
            "StopAsyncIteration", "RecursionError", "UnicodeEncodeError", "OSError")  # fmt: skip
"""Python's exceptions that libraries treat in ways of their own."""
NAMESAKES = ("switchyard.broker.errors.ForeignCopy", "switchyard.broker.errors.MalformedMessage")
"""Errors of messages that are no jobs: raised by a handler, they are errors like others."""
FEW_ERRORS = (*HOSTILE, *LANGUAGE, *NAMESAKES)
HANDED_OVER = ("a lone surrogate", "nul", "huge", "unpicklable", "not made again", "panic",
               "base group", "KeyboardInterrupt", "SystemExit", "MemoryError")  # fmt: skip
"""Those of FEW_ERRORS that are hardest to hand over to another process, or to survive. Each takes
two processes: `make test-long` has all of them."""
STRANGE = ("KeyboardInterrupt", "a lone surrogate", "panic", "unsayable", "cancelled")
"""Those that are raised at every step outside of the handler."""
ENDS_WITHIN = 300.0
"""Seconds: two attempts that take their time limit of 60 s, and what lies between them."""


class PoisonedLedger(FaultyLedger):
    """A ledger in which some calls about one job raise what the test says."""

    def __init__(self, system: System, job_id: str, calls: Mapping[str, str]) -> None:
        super().__init__(system.ledger)
        self._job_id = job_id
        self._calls = calls

    async def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        error_name = self._calls.get(method.__name__)
        if error_name is not None and any(self._job_id in repr(argument) for argument in arguments):
            raise exception(error_name)
        return await super().call(method, *arguments, **options)


async def assert_unharmed(system: System, worker: RunningWorker) -> None:
    """Check that the worker works on, with all of its slots at once."""
    await eventually(lambda: worker.worker.running == 0, what="free slots")
    gated = [await system.publish("hot.gated") for _ in range(SLOTS)]
    await journal.started(*gated)
    journal.release(*gated)
    await system.wait_until_all(gated, State.SUCCEEDED)
    assert not worker.task.done()


async def wait_until_dead(
    system: System, worker: RunningWorker, jobs: Mapping[str, str]
) -> dict[str, JobRecord]:
    """Wait until these jobs (what they raise, by id) are dead, each with its letter, while an
    innocent job runs beside them. Returns their records by id."""
    innocent = await system.publish("hot.gated")
    await system.wait_until_all(jobs, State.DEAD, timeout=ENDS_WITHIN)
    journal.release(innocent)
    await system.wait_for_state(innocent, State.SUCCEEDED)
    letters = {letter.id for letter in await system.letters()}
    assert [name for job_id, name in jobs.items() if job_id not in letters] == []
    records = {job_id: await system.record(job_id) for job_id in jobs}
    assert {job_id for job_id, record in records.items() if record.attempts > MAX_ATTEMPTS} == set()
    await assert_unharmed(system, worker)
    return records


async def publish_jobs(
    system: System, routes: Sequence[str], names: Sequence[str], **options: Any
) -> dict[str, str]:
    """Publish a job of each route for each error. Returns what they raise, by id."""
    return {
        await system.publish(f"hot.{route}", {"name": name}, **options): f"{name} in {route}"
        for name in names
        for route in routes
    }


async def test_whatever_a_handler_raises_ends_its_attempt_in_every_isolation(
    broker310: TestBroker, database_url: str
) -> None:
    classes()  # loads libraries, for seconds in which no connection would have its heartbeats
    async with open_system(
        broker310, database_url, modules=MODULES, retry_delays=RETRY_LEVELS
    ) as system:
        worker = await system.start_worker("llm", slots=SLOTS)
        jobs = await publish_jobs(
            system, [route for route in ISOLATIONS if route not in IN_OWN_PROCESS], FEW_ERRORS
        )
        jobs |= await publish_jobs(system, IN_OWN_PROCESS, HANDED_OVER)
        jobs |= await publish_jobs(system, ["cancel_itself"], ["x"])
        records = await wait_until_dead(system, worker, jobs)
        errors = {
            jobs[record.id]: (record.error_type, record.error_message)
            for record in records.values()
        }
        for route in ISOLATIONS:
            assert errors[f"a lone surrogate in {route}"] == ("ValueError", "bad \\ud800")
            assert errors[f"nul in {route}"] == ("ValueError", "a\\x00b")
            assert errors[f"unpicklable in {route}"] == ("Unpicklable", "it stays here")
            assert errors[f"panic in {route}"][0] == "PanicException"
            assert errors[f"not made again in {route}"] == ("NotMadeAgain", "one")
            assert errors[f"KeyboardInterrupt in {route}"][0] == "KeyboardInterrupt"
        letter = await system.wait_for_letter(
            next(job_id for job_id, name in jobs.items() if name == "unpicklable in raise_in_part")
        )
        assert "in fail" in letter.info.traceback


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("route", ISOLATIONS)
async def test_every_exception_of_the_language_and_of_the_libraries_ends_its_attempt(
    broker310: TestBroker, sqlite_url: str, route: str
) -> None:
    async with open_system(
        broker310, sqlite_url, modules=MODULES, retry_delays=RETRY_LEVELS
    ) as system:
        worker = await system.start_worker("llm", slots=SLOTS)
        names = [name for name in classes() if name.rpartition(".")[2] not in UNCOUNTED]
        assert len(names) > 300
        if route in IN_OWN_PROCESS:
            names = [*FEW_ERRORS, *names[::3]]  # each takes a process twice
        for start in range(0, len(names), 100):
            await wait_until_dead(
                system, worker, await publish_jobs(system, [route], names[start : start + 100])
            )


async def test_whatever_is_raised_before_and_after_the_handler_ends_the_job(
    broker310: TestBroker, database_url: str
) -> None:
    """Raised while its payload is read, its limits are looked up, or its answer is examined."""
    async with open_system(
        broker310, database_url, modules=MODULES, retry_delays=RETRY_LEVELS
    ) as system:
        worker = await system.start_worker("llm", slots=SLOTS)
        jobs = await publish_jobs(system, STEPS[1:], STRANGE)
        await wait_until_dead(system, worker, jobs)
        # A job whose payload can't be validated does not run: it has a letter alone.
        for name in STRANGE:
            await system.publish_foreign("hot.refuse_payload", {"name": name}, source=name[:4])
        refused_count = len(STRANGE)

        async def are_buried() -> bool:
            reasons = [letter.info.reason for letter in await system.letters()]
            return reasons.count(Reason.INVALID_PAYLOAD) == refused_count

        await eventually(are_buried, what="letters of what can't be read")
        await assert_unharmed(system, worker)


@pytest.mark.parametrize("call", ["claim", "get", "finish", "note"])
@pytest.mark.parametrize("name", ["panic", "a lone surrogate", "KeyboardInterrupt", "cancelled"])
async def test_a_ledger_that_raises_anything_for_one_job_ends_that_job_alone(
    broker310: TestBroker, sqlite_url: str, call: str, name: str
) -> None:
    async with open_system(
        broker310, sqlite_url, modules=MODULES, retry_delays=RETRY_LEVELS
    ) as system:
        poisoned = PoisonedLedger(system, "poisoned", {call: name})
        worker = await system.start_worker("llm", slots=SLOTS, ledger=poisoned)  # type: ignore[arg-type]
        await system.publish("hot.scripted", {"steps": ["raise"]}, job_id="poisoned")
        letter = await system.wait_for_letter("poisoned")
        assert letter.info.error_type
        await index_waiting(system.settings, system.ledger, system.registry)
        assert await system.state("poisoned") is State.DEAD
        assert journal.runs("poisoned") <= MAX_UNENDED_RUNS
        await assert_unharmed(system, worker)


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("step", ["retry", "dead letter", "acknowledge"])
async def test_a_publish_or_an_acknowledgement_that_raises_costs_no_job(
    broker310: TestBroker,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    name: str,
) -> None:
    async with open_system(
        broker310, sqlite_url, modules=MODULES, retry_delays=RETRY_LEVELS
    ) as system:
        worker = await system.start_worker("llm", slots=SLOTS)
        failed: list[str] = []

        def raise_once(raise_for: Callable[[Any], bool], original: Callable[..., Any]) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if not failed and raise_for(arguments):
                    failed.append(name)
                    raise exception(name)
                return original(*arguments, **options)

            return call

        publisher = worker.worker._publisher
        if step == "acknowledge":
            from switchyard.broker.consume.delivery import Delivery

            monkeypatch.setattr(
                Delivery,
                "ack",
                raise_once(lambda arguments: b"poisoned" in arguments[0].body, Delivery.ack),
            )
        else:
            exchange = DEAD_EXCHANGE if step == "dead letter" else "jobs.retry.50ms"
            send = raise_once(lambda arguments: arguments[0] == exchange, publisher.send)
            monkeypatch.setattr(publisher, "send", send)
        await system.publish("hot.scripted", {"steps": ["raise"]}, job_id="poisoned")
        await system.wait_for_state("poisoned", State.DEAD)
        assert failed == [name]
        assert (await system.wait_for_letter("poisoned")).message is not None
        assert journal.runs("poisoned") <= 3
        await assert_unharmed(system, worker)


async def test_a_dead_letter_that_fits_into_no_frame_leaves_out_the_traceback(
    broker310: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(broker310, sqlite_url, retry_delays=RETRY_LEVELS) as system:
        worker = await system.start_worker("llm", slots=SLOTS)
        original = worker.worker._publisher.send

        async def send(exchange: str, routing_key: str, envelope: Envelope) -> None:
            if exchange == DEAD_EXCHANGE and len(envelope.properties()) > 1_000:
                raise ValueError("the headers are more than one frame can carry")
            await original(exchange, routing_key, envelope)

        monkeypatch.setattr(worker.worker._publisher, "send", send)
        job_id = await system.publish("hot.scripted", {"steps": ["huge error"]}, max_attempts=1)
        letter = await system.wait_for_letter(job_id)
        assert (letter.info.reason, letter.info.traceback) == ("exhausted", "")
        assert letter.info.message.startswith("xxx")


async def test_a_job_that_is_begun_again_and_again_without_an_end_is_dead(
    broker310: TestBroker, database_url: str
) -> None:
    """Its worker is stopped each time, so that no attempt is used up."""
    async with open_system(broker310, database_url, retry_delays=RETRY_LEVELS) as system:
        job_id = await system.publish("hot.gated")
        for run in range(1, MAX_UNENDED_RUNS + 1):
            worker = await system.start_worker("llm", slots=1, shutdown_grace=0)
            await journal.started(job_id, times=run)
            await worker.stop()
        assert await system.state(job_id) is State.QUEUED
        await system.start_worker("llm", slots=1)
        record = await system.wait_for_state(job_id, State.DEAD)
        assert (record.reason, record.error_type) == ("crashed", "RunsWithoutEnd")
        assert journal.runs(job_id) == MAX_UNENDED_RUNS
        assert (await system.wait_for_letter(job_id)).info.reason is Reason.CRASHED


async def test_an_end_resets_the_count_of_runs_without_an_end(
    system: System,
) -> None:
    message = await system.publish_foreign("hot.gated")
    unended_counts: list[int] = []
    for end in (None, None, State.RETRYING, None, None):
        claim = await system.ledger.jobs.claim(_make_claim_request(message))
        assert isinstance(claim, Claimed)
        unended_counts.append(claim.unended)
        if end is None:
            await system.ledger.jobs.release_all("ghost", 1.0)
        else:
            snoozed = FinishRequest(
                message.job_id, "ghost/1", end, attempts=0, now=1.0, outcome=AttemptOutcome.SNOOZE
            )
            assert await system.ledger.jobs.finish(snoozed) is not None
    assert unended_counts == [0, 1, 2, 0, 1]


def _make_claim_request(message: JobMessage) -> ClaimRequest:
    return ClaimRequest(
        message=message,
        lane="hot",
        worker="llm",
        routing_key="hot.gated",
        worker_id="ghost",
        claim_id="ghost/1",
        now=1.0,
    )
