"""`notify_url`: an end is told, whatever the job ends in and however the receiver behaves."""

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.broker.errors import LaneFull
from switchyard.services.common.files.safe_http import SsrfGuard
from switchyard.services.engine.alerts import notices
from switchyard.services.engine.bulk import control
from switchyard.services.engine.publishing.preparing import InvalidJob
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.records.requests import JobFilter, RedrivenCopy
from switchyard.services.engine.records.states import State
from tests.support.backfills import BackfillUser
from tests.support.brokers import TestBroker
from tests.support.chaos import outbox
from tests.support.eventually import eventually
from tests.support.receiver import SECRET, Receiver, receiving
from tests.support.redrives import redrive
from tests.support.system import System, lanes_with, open_system

MODULES = (
    "tests.support.jobs",
    "tests.support.joining",
    "switchyard.services.engine.alerts.notices",
)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture
async def system(
    broker310: TestBroker, database_url: str, tmp_path: Path, receiver: Receiver
) -> AsyncIterator[System]:
    async with open_system(
        broker310,
        database_url,
        modules=MODULES,
        data_dir=tmp_path,
        notify_secret=SecretStr(SECRET),
        notify_hosts=(receiver.place,),
    ) as opened:
        yield opened


async def notice_id(system: System, job_id: str) -> str:
    return (await system.record(job_id)).join_id or ""


async def test_the_end_of_a_job_and_of_all_that_followed_is_told_once_and_signed(
    system: System, receiver: Receiver
) -> None:
    await system.start_worker("llm", "link")
    job_id = await system.publish("hot.leaf", {"follow": 2}, notify_url=receiver.url)
    (told,) = await receiver.told()
    assert told["jobs"] == {"succeeded": 3, "dead": 0, "cancelled": 0}
    assert (told["event"], told["state"], told["job_id"]) == ("job.ended", "completed", job_id)
    delivery = await notice_id(system, job_id)
    assert told["delivery"] == delivery
    sent_at = datetime.fromisoformat(told["sent_at"])
    assert abs(datetime.now(UTC) - sent_at) < timedelta(seconds=30)
    notice = await system.wait_for_state(delivery, State.SUCCEEDED)
    assert (notice.parent_id, notice.pipeline) == (job_id, None)


async def test_a_dead_job_is_told_with_its_error(system: System, receiver: Receiver) -> None:
    await system.start_worker("llm", "link")
    await system.publish("hot.leaf", {"dies": True}, notify_url=receiver.url)
    (told,) = await receiver.told()
    assert (told["state"], told["jobs"]["dead"]) == ("dead", 1)
    (dead,) = told["dead"]
    assert (dead["reason"], dead["error_type"]) == ("permanent", "PermanentError")


async def test_what_succeeds_after_a_redrive_is_told_anew_with_another_delivery(
    system: System, receiver: Receiver
) -> None:
    await system.start_worker("llm", "link")
    job_id = await system.publish("hot.leaf", {"dies": True, "follow": 1}, notify_url=receiver.url)
    await receiver.told()
    await system.wait_for_letter(job_id)
    await redrive(system)
    before, after = await receiver.told(2)
    assert (before["state"], after["state"]) == ("dead", "completed")
    assert before["job_id"] == after["job_id"] == job_id
    assert before["delivery"] != after["delivery"]
    assert after["jobs"] == {"succeeded": 2, "dead": 0, "cancelled": 0}


async def test_a_notice_that_comes_while_it_goes_on_again_leaves_the_word_to_the_next(
    system: System, receiver: Receiver
) -> None:
    job_id = await system.publish("hot.leaf", {"dies": True}, notify_url=receiver.url)
    await system.start_worker("llm")
    await system.wait_for_state(job_id, State.DEAD)
    await system.ledger.redrives.record_redriven([RedrivenCopy(job_id, 1)], time.time())
    await system.start_worker("link")
    early = await system.wait_for_state(await notice_id(system, job_id), State.SUCCEEDED)
    assert early.result is not None
    assert early.result["told"] is False
    assert receiver.taken == []


async def test_a_backfill_that_failed_and_was_resumed_is_told_of_twice(
    system: System, receiver: Receiver
) -> None:
    await system.start_worker("llm", "link")
    user = BackfillUser(system)
    started = await user.start("numbers", {"to": 5}, notify_url=receiver.url)
    async with outbox(system):
        await system.ledger.bulk.move_bulk(started.id, BulkState.FAILED, among=list(BulkState))
        await receiver.told()
        await control.resume(system.ledger, started.id)
        await user.run(started)
        told = await receiver.told(2)
    assert [each["state"] for each in told] == [BulkState.FAILED, BulkState.COMPLETED]


async def test_a_receiver_that_misbehaves_is_told_again_until_it_has_taken_it(
    system: System, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SEND_TIMEOUT", 1.0)
    receiver.tricks = ["500", "slow", "cut", "404", "endless"]
    await system.start_worker("llm", "link")
    job_id = await system.publish("hot.noop", {"n": 1}, notify_url=receiver.url)
    await receiver.told()
    notice = await system.wait_for_state(await notice_id(system, job_id), State.SUCCEEDED)
    # More where the machine was slow: who hears no answer in time tells it once more.
    assert notice.attempts >= 4
    assert len(receiver.refused) == 4
    told = receiver.refused + receiver.taken
    assert {each["delivery"] for each in told} == {notice.id}
    assert {each["state"] for each in told} == {"completed"}


@pytest.mark.parametrize("case", ["redirect", "loopback", "gone"])
async def test_what_leads_elsewhere_is_never_followed_and_the_notice_is_dead_with_the_reason(
    system: System, receiver: Receiver, case: str
) -> None:
    hosts = () if case == "loopback" else (receiver.place,)
    receiver.tricks = [f"to:http://{receiver.place}/secret" if case == "redirect" else "410"]
    await system.start_worker("llm", "link", notify_hosts=hosts)
    job_id = await system.publish("hot.noop", {"n": 1}, notify_url=receiver.url)
    await system.wait_for_state(job_id, State.SUCCEEDED)
    notice = await system.wait_for_state(await notice_id(system, job_id), State.DEAD)
    assert notice.reason == "permanent"
    said = {"redirect": "redirects", "loopback": "open internet", "gone": "410"}[case]
    assert said in (notice.error_message or "")
    assert receiver.paths == ([] if case == "loopback" else ["/told"])


async def test_ends_without_a_worker_are_told_by_whoever_comes_later(
    system: System, receiver: Receiver
) -> None:
    cancelled = await system.publish("hot.noop", {"n": 1}, delay=3600, notify_url=receiver.url)
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = await system.publish("hot.noop", {"n": 2}, expires_at=past, notify_url=receiver.url)
    # Nobody is there who could publish what this end lets go: as when a worker is killed then.
    await system.ledger.jobs.cancel(cancelled, 0)
    assert await system.state(await notice_id(system, cancelled)) is State.PENDING
    await system.start_worker("llm", "link")
    async with outbox(system):
        told = await receiver.told(2)
    states = {each["job_id"]: each["state"] for each in told}
    assert states == {cancelled: "cancelled", expired: "expired"}


async def test_of_a_refused_job_nobody_is_told_and_nothing_is_kept(
    broker310: TestBroker, database_url: str, receiver: Receiver
) -> None:
    lanes = lanes_with(max_length={"backfill": 1})
    async with open_system(broker310, database_url, modules=MODULES, lanes=lanes) as system:
        await system.publish("backfill.noop", {"n": 1})
        refused = 0
        for number in range(4):
            try:
                await system.publish("backfill.noop", {"n": number}, notify_url=receiver.url)
            except LaneFull:
                refused += 1
        assert refused
        kept = (await system.ledger.job_reads.list_jobs(JobFilter(), limit=10)).items
        taken = [each for each in kept if each.job_type == "noop"]
        waiting = [each for each in kept if each.job_type == "send_notice"]
        assert len(waiting) == len([each for each in taken if each.join_id])
        for each in waiting:
            assert each.state is State.JOINING
            join = await system.ledger.joins.join(each.id)
            assert join is not None
            assert (join.total, join.open) == (1, 1)


async def test_the_same_key_again_is_told_once(system: System, receiver: Receiver) -> None:
    for _ in range(2):
        await system.publish("hot.noop", {"n": 1}, idempotency_key="once", notify_url=receiver.url)
    await system.start_worker("llm", "link")
    (told,) = await receiver.told()
    await system.wait_for_state(told["delivery"], State.SUCCEEDED)
    kept = (
        await system.ledger.job_reads.list_jobs(JobFilter(job_type="send_notice"), limit=10)
    ).items
    assert len(kept) == len(receiver.taken) == 1


async def test_a_backfill_is_told_when_it_is_completed_and_when_it_is_called_off(
    system: System, receiver: Receiver
) -> None:
    user = BackfillUser(system)
    await system.start_worker("llm", "link")
    done = await user.start("numbers", {"to": 5}, notify_url=receiver.url)
    given_up = await user.start("numbers", {"to": 5}, notify_url=receiver.url)
    async with outbox(system):
        await user.run(done)
        await user.backfills.cancel(given_up.id, jobs=True)
        told = {each["backfill_id"]: each for each in await receiver.told(2)}
    assert told[done.id]["state"] == BulkState.COMPLETED
    assert told[done.id]["jobs"] == {"succeeded": 5, "dead": 0, "cancelled": 0}
    assert told[given_up.id]["state"] == BulkState.CANCELLED
    assert (told[done.id]["event"], told[done.id]["title"]) == ("backfill.ended", done.title)


@pytest.mark.parametrize(
    "url",
    ["ftp://here/x", "http://user:word@here/x", "/told", "https://", "https://x/" + "a" * 2000],
    ids=["scheme", "user", "path", "host", "long"],
)
async def test_what_is_no_address_is_refused_before_anything_is_recorded(
    system: System, url: str
) -> None:
    with pytest.raises(InvalidJob, match="notify_url"):
        await system.publish("hot.noop", {"n": 1}, notify_url=url)
    assert not (await system.ledger.job_reads.list_jobs(JobFilter(), limit=10)).items


async def test_without_a_secret_the_notice_is_dead_until_there_is_one(
    system: System, receiver: Receiver
) -> None:
    await system.start_worker("llm", "link", notify_secret=None)
    job_id = await system.publish("hot.noop", {"n": 1}, notify_url=receiver.url)
    await system.wait_for_state(job_id, State.SUCCEEDED)
    notice = await system.wait_for_state(await notice_id(system, job_id), State.DEAD)
    assert "JOBS_NOTIFY_SECRET" in (notice.error_message or "")
    assert json.dumps(receiver.paths) == "[]"


async def test_a_receiver_that_never_answers_holds_up_no_other(
    broker310: TestBroker,
    sqlite_url: str,
    tmp_path: Path,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        receiving("127.0.0.2") as tarpit,
        open_system(
            broker310,
            sqlite_url,
            modules=MODULES,
            data_dir=tmp_path,
            notify_secret=SecretStr(SECRET),
            notify_hosts=(receiver.place, tarpit.place),
        ) as system,
    ):
        monkeypatch.setattr(notices, "SEND_TIMEOUT", 50.0)
        tarpit.tricks = ["slow"] * 100
        for _ in range(8):
            await system.publish("hot.leaf", {}, notify_url=tarpit.url)
        await system.start_worker("llm", "link")
        await eventually(lambda: len(tarpit.refused) >= 2, what="the tarpit has been asked")
        await system.publish("hot.leaf", {}, notify_url=receiver.url)
        began = time.monotonic()
        await receiver.told()
        assert time.monotonic() - began < notices.SEND_TIMEOUT / 2
        assert len(tarpit.refused) == notices.MAX_CONCURRENT


async def test_many_names_of_one_receiver_that_never_answers_hold_up_no_other(
    broker310: TestBroker,
    sqlite_url: str,
    tmp_path: Path,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def resolved(host: str, port: int) -> list[str]:
        return ["127.0.0.2" if host.endswith(".test") else "127.0.0.1"]

    guard = SsrfGuard(resolve=resolved, is_allowed=lambda address: True)
    monkeypatch.setattr(notices, "_guard", lambda settings: guard)
    async with (
        receiving("127.0.0.2") as tarpit,
        open_system(
            broker310,
            sqlite_url,
            modules=MODULES,
            data_dir=tmp_path,
            notify_secret=SecretStr(SECRET),
        ) as system,
    ):
        monkeypatch.setattr(notices, "SEND_TIMEOUT", 50.0)
        tarpit.tricks = ["slow"] * 100
        for number in range(12):
            slow = tarpit.url.replace("127.0.0.2", f"hook.owner-{number}.test")
            await system.publish("hot.leaf", {}, notify_url=slow)
        await system.start_worker("llm", "link")
        await eventually(lambda: len(tarpit.refused) >= 2, what="the tarpit has been asked")
        await system.publish("hot.leaf", {}, notify_url=receiver.url)
        began = time.monotonic()
        await receiver.told()
        assert time.monotonic() - began < notices.SEND_TIMEOUT / 2
        assert len(tarpit.refused) == notices.MAX_CONCURRENT
