"""`notify_url`: an end is posted, whatever the job ends in and however the receiver behaves."""

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
from tests.support.receiver import SECRET, Receiver, serve_receiver
from tests.support.redrives import redrive
from tests.support.system import System, lanes_with, open_system

MODULES = (
    "tests.support.jobs",
    "tests.support.joining",
    "switchyard.services.engine.alerts.notices",
)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with serve_receiver() as server:
        yield server


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


async def read_notice_id(system: System, job_id: str) -> str:
    return (await system.record(job_id)).join_id or ""


async def test_the_end_of_a_job_and_of_its_followers_is_posted_once_and_signed(
    system: System, receiver: Receiver
) -> None:
    await system.start_worker("llm", "link")
    job_id = await system.publish("hot.leaf", {"follow": 2}, notify_url=receiver.url)
    (body,) = await receiver.told()
    assert body["jobs"] == {"succeeded": 3, "dead": 0, "cancelled": 0}
    assert (body["event"], body["state"], body["job_id"]) == ("job.ended", "completed", job_id)
    delivery = await read_notice_id(system, job_id)
    assert body["delivery"] == delivery
    sent_at = datetime.fromisoformat(body["sent_at"])
    assert abs(datetime.now(UTC) - sent_at) < timedelta(seconds=30)
    notice = await system.wait_for_state(delivery, State.SUCCEEDED)
    assert (notice.parent_id, notice.pipeline) == (job_id, None)


async def test_a_dead_job_is_posted_with_its_error(system: System, receiver: Receiver) -> None:
    await system.start_worker("llm", "link")
    await system.publish("hot.leaf", {"dies": True}, notify_url=receiver.url)
    (body,) = await receiver.told()
    assert (body["state"], body["jobs"]["dead"]) == ("dead", 1)
    (dead,) = body["dead"]
    assert (dead["reason"], dead["error_type"]) == ("permanent", "PermanentError")


async def test_a_success_after_a_redrive_is_posted_as_another_delivery(
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


async def test_a_notice_that_comes_while_its_job_runs_again_posts_nothing(
    system: System, receiver: Receiver
) -> None:
    job_id = await system.publish("hot.leaf", {"dies": True}, notify_url=receiver.url)
    await system.start_worker("llm")
    await system.wait_for_state(job_id, State.DEAD)
    await system.ledger.redrives.record_redriven([RedrivenCopy(job_id, 1)], time.time())
    await system.start_worker("link")
    early = await system.wait_for_state(await read_notice_id(system, job_id), State.SUCCEEDED)
    assert early.result is not None
    assert early.result["told"] is False
    assert receiver.taken == []


async def test_a_backfill_that_failed_and_was_resumed_is_posted_twice(
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
        bodies = await receiver.told(2)
    assert [body["state"] for body in bodies] == [BulkState.FAILED, BulkState.COMPLETED]


async def test_a_notice_is_posted_again_until_a_misbehaving_receiver_has_taken_it(
    system: System, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SEND_TIMEOUT", 1.0)
    receiver.tricks = ["500", "slow", "cut", "404", "endless"]
    await system.start_worker("llm", "link")
    job_id = await system.publish("hot.noop", {"n": 1}, notify_url=receiver.url)
    await receiver.told()
    notice = await system.wait_for_state(await read_notice_id(system, job_id), State.SUCCEEDED)
    # More on a slow machine: without an answer in time, the notice is posted once more.
    assert notice.attempts >= 4
    assert len(receiver.refused) == 4
    bodies = receiver.refused + receiver.taken
    assert {body["delivery"] for body in bodies} == {notice.id}
    assert {body["state"] for body in bodies} == {"completed"}


@pytest.mark.parametrize("case", ["redirect", "loopback", "gone"])
async def test_a_redirecting_local_or_gone_receiver_makes_the_notice_dead(
    system: System, receiver: Receiver, case: str
) -> None:
    hosts = () if case == "loopback" else (receiver.place,)
    receiver.tricks = [f"to:http://{receiver.place}/secret" if case == "redirect" else "410"]
    await system.start_worker("llm", "link", notify_hosts=hosts)
    job_id = await system.publish("hot.noop", {"n": 1}, notify_url=receiver.url)
    await system.wait_for_state(job_id, State.SUCCEEDED)
    notice = await system.wait_for_state(await read_notice_id(system, job_id), State.DEAD)
    assert notice.reason == "permanent"
    expected_text = {"redirect": "redirects", "loopback": "open internet", "gone": "410"}[case]
    assert expected_text in (notice.error_message or "")
    assert receiver.paths == ([] if case == "loopback" else ["/told"])


async def test_ends_without_a_worker_are_posted_by_a_later_one(
    system: System, receiver: Receiver
) -> None:
    cancelled = await system.publish("hot.noop", {"n": 1}, delay=3600, notify_url=receiver.url)
    past = datetime.now(UTC) - timedelta(seconds=1)
    expired = await system.publish("hot.noop", {"n": 2}, expires_at=past, notify_url=receiver.url)
    # No worker is there to publish the notice that is due now, as when it is killed then.
    await system.ledger.jobs.cancel(cancelled, 0)
    assert await system.state(await read_notice_id(system, cancelled)) is State.PENDING
    await system.start_worker("llm", "link")
    async with outbox(system):
        bodies = await receiver.told(2)
    states = {body["job_id"]: body["state"] for body in bodies}
    assert states == {cancelled: "cancelled", expired: "expired"}


async def test_a_refused_job_posts_no_notice_and_leaves_no_record_of_one(
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
        records = (await system.ledger.job_reads.list_jobs(JobFilter(), limit=10)).items
        accepted = [record for record in records if record.job_type == "noop"]
        notice_records = [record for record in records if record.job_type == "send_notice"]
        assert len(notice_records) == len([record for record in accepted if record.join_id])
        for record in notice_records:
            assert record.state is State.JOINING
            join = await system.ledger.joins.join(record.id)
            assert join is not None
            assert (join.total, join.open) == (1, 1)


async def test_a_repeated_idempotency_key_posts_one_notice(
    system: System, receiver: Receiver
) -> None:
    for _ in range(2):
        await system.publish("hot.noop", {"n": 1}, idempotency_key="once", notify_url=receiver.url)
    await system.start_worker("llm", "link")
    (body,) = await receiver.told()
    await system.wait_for_state(body["delivery"], State.SUCCEEDED)
    records = (
        await system.ledger.job_reads.list_jobs(JobFilter(job_type="send_notice"), limit=10)
    ).items
    assert len(records) == len(receiver.taken) == 1


async def test_a_backfill_is_posted_when_it_is_completed_and_when_it_is_cancelled(
    system: System, receiver: Receiver
) -> None:
    user = BackfillUser(system)
    await system.start_worker("llm", "link")
    completed = await user.start("numbers", {"to": 5}, notify_url=receiver.url)
    cancelled = await user.start("numbers", {"to": 5}, notify_url=receiver.url)
    async with outbox(system):
        await user.run(completed)
        await user.backfills.cancel(cancelled.id, jobs=True)
        bodies = {body["backfill_id"]: body for body in await receiver.told(2)}
    assert bodies[completed.id]["state"] == BulkState.COMPLETED
    assert bodies[completed.id]["jobs"] == {"succeeded": 5, "dead": 0, "cancelled": 0}
    assert bodies[cancelled.id]["state"] == BulkState.CANCELLED
    assert (bodies[completed.id]["event"], bodies[completed.id]["title"]) == (
        "backfill.ended",
        completed.title,
    )


@pytest.mark.parametrize(
    "url",
    ["ftp://here/x", "http://user:word@here/x", "/told", "https://", "https://x/" + "a" * 2000],
    ids=["scheme", "user", "path", "host", "long"],
)
async def test_an_invalid_url_is_refused_before_anything_is_recorded(
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
    notice = await system.wait_for_state(await read_notice_id(system, job_id), State.DEAD)
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
        serve_receiver("127.0.0.2") as tarpit,
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
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.2" if host.endswith(".test") else "127.0.0.1"]

    guard = SsrfGuard(resolve=resolve, is_allowed=lambda address: True)
    monkeypatch.setattr(notices, "_guard", lambda settings: guard)
    async with (
        serve_receiver("127.0.0.2") as tarpit,
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
