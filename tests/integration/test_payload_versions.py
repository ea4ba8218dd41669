"""Payloads of several versions: what a release has written is run by the next."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from switchyard import Done, JobContext, LocalOnly, Outcome, job
from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.message import JobMessage
from switchyard.services.engine.backfill.files import FileSource
from switchyard.services.engine.backfill.sources import Item
from switchyard.services.engine.backfill.spec import BackfillSpec, Plan
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.jobs.registered_types import job_type_from, record_of
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    JobType,
    NewerPayload,
    Registry,
    RegistryError,
    RemoteFieldForbidden,
    UpgradeFailed,
    job_type_of,
)
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.workers import outdated_types
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.redrives import indexing, redrive
from tests.support.system import open_system

PAGE = Path(__file__).parents[2] / "docs" / "payloads.md"
FINISHED = {"name": "Trees", "language": "en"}


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Modules of the two programs that the page shows."""
    names = ("report_of_release_1", "report_of_release_3")
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for name, program in zip(names, programs, strict=True):
        (tmp_path / f"{name}.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    return names


async def test_jobs_of_an_older_release_are_finished_by_the_newer_wherever_they_wait(
    broker: TestBroker, sqlite_url: str, releases: tuple[str, str]
) -> None:
    older, newer = releases
    report = {"title": "Trees", "pages": "7"}
    async with (
        open_system(broker, sqlite_url, modules=(older,), retry_delays=(1.5, 3)) as system,
        indexing(system),
    ):
        old_worker = await system.start_worker("reports")
        died = await system.publish("hot.make_report", report | {"pages": "0"})
        await system.wait_for_state(died, State.DEAD)
        retried = await system.publish("hot.make_report", report | {"pages": "many"})
        await system.wait_for_state(retried, State.RETRYING)
        await old_worker.stop()
        later = await system.publish("hot.make_report", report, delay=2)
        waiting = [
            await system.publish(f"{lane}.make_report", report) for lane in ("hot", "backfill")
        ]

        system.registry = Registry.load((newer,))
        await system.start_worker("reports")
        await redrive(system)
        for job_id in (died, retried, later, *waiting):
            record = await system.wait_for_state(job_id, State.SUCCEEDED)
            assert record.result == FINISHED
            assert record.payload["title"] == "Trees"  # as it was written
        assert await system.letters() == []


async def test_a_newer_payload_waits_for_a_newer_worker(
    broker310: TestBroker, sqlite_url: str, releases: tuple[str, str]
) -> None:
    older, newer = releases
    async with open_system(broker310, sqlite_url, modules=(newer,)) as system:
        old_worker = await system.start_worker("reports", registry=Registry.load((older,)))
        job_id = await system.publish("hot.make_report", FINISHED)
        record = await system.wait_for_state(job_id, State.RETRYING)
        assert (record.error_type, record.attempts) == ("NewerPayload", 0)
        assert "is of version 3" in (record.error_message or "")
        assert "knows version 1" in (record.error_message or "")
        context = DoctorContext(system.settings, system.registry, ledger=system.ledger)
        (diagnostic,) = await outdated_types(context)
        assert diagnostic.finding is Finding.VERSIONS_LACKING
        assert f"{record.worker_id} knows an older version of make_report" in diagnostic.detail
        await old_worker.stop()
        await system.start_worker("reports")
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert (record.result, record.attempts) == (FINISHED, 0)
        assert await outdated_types(context) == []


async def test_an_upgrade_that_fails_ends_the_job_until_it_is_mended(
    broker310: TestBroker, sqlite_url: str, releases: tuple[str, str]
) -> None:
    older, newer = releases
    async with open_system(broker310, sqlite_url, modules=(older,)) as system, indexing(system):
        job_id = await system.publish("hot.make_report", {"title": "Trees", "pages": "7"})
        declared = Registry.load((newer,)).get("make_report")
        broken = replace(declared, upgrades=(declared.upgrades[0], (2, return_nothing)))
        worker = await system.start_worker("reports", registry=Registry([broken]))
        letter = await system.wait_for_letter(job_id)
        assert letter.info.reason is Reason.INVALID_PAYLOAD
        assert letter.info.error_type == "UpgradeFailed"
        assert "from version 2" in (letter.info.message or "")
        await worker.stop()
        system.registry = Registry([declared])
        await system.wait_for_state(job_id, State.DEAD)
        await system.start_worker("reports")
        await redrive(system)
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert record.result == FINISHED


def return_nothing(payload: dict[str, Any]) -> Any:
    """Return nothing, as a step does that forgets its `return`."""


class ReadPayload(BaseModel, extra="forbid"):
    """The payload, in version 3."""

    file: Annotated[str | None, LocalOnly()] = None
    text: str


def upgrade_to_text(payload: dict[str, Any]) -> dict[str, Any]:
    return {"path": payload.get("path"), "text": payload["words"]["first"]}


def upgrade_to_file(payload: dict[str, Any]) -> dict[str, Any]:
    return {"file": payload.pop("path")} | payload


@job(
    "read",
    worker="reader",
    lanes=("hot",),
    version=3,
    upgrade={1: upgrade_to_text, 2: upgrade_to_file},
)
async def read(payload: ReadPayload, ctx: JobContext) -> Outcome:
    return Done({"text": payload.text})


READ_TYPE = job_type_of(read)
FIRST_PAYLOAD = {"path": None, "words": {"first": "hello"}}
"""A payload of version 1."""


def test_each_upgrade_is_made_in_turn_and_the_given_payload_stays() -> None:
    payload = {"path": "/a", "words": {"first": "hello"}}
    assert READ_TYPE.read(payload, 1) == ReadPayload(file="/a", text="hello")
    assert payload == {"path": "/a", "words": {"first": "hello"}}
    assert READ_TYPE.read({"path": "/a", "text": "b"}, 2) == ReadPayload(file="/a", text="b")
    assert READ_TYPE.read({"text": "b"}, 3) == ReadPayload(text="b")
    with pytest.raises(NewerPayload, match=r"version 4.*knows version 3"):
        READ_TYPE.read({"text": "b"}, 4)
    with pytest.raises(UpgradeFailed, match="from version 1: KeyError: 'words'"):
        READ_TYPE.read({}, 1)
    with pytest.raises(UpgradeFailed, match="no upgrade from there"):
        replace(READ_TYPE, upgrades=READ_TYPE.upgrades[1:]).read(FIRST_PAYLOAD, 1)
    with pytest.raises(InvalidPayload, match="text"):
        READ_TYPE.read({"path": None}, 2)


def test_a_remote_request_sets_no_local_field_by_its_older_name() -> None:
    READ_TYPE.validate_remote(FIRST_PAYLOAD, version=1)
    hostile = FIRST_PAYLOAD | {"path": "/etc/passwd"}
    with pytest.raises(RemoteFieldForbidden, match="file"):
        READ_TYPE.validate_remote(hostile, version=1)
    READ_TYPE.validate_remote(hostile, hostile, version=1)  # the value is the same as before
    with pytest.raises(RemoteFieldForbidden, match="file"):
        READ_TYPE.validate_remote(hostile, FIRST_PAYLOAD, version=1)
    registered_type = job_type_from(record_of(READ_TYPE, "a worker"))
    with pytest.raises(InvalidPayload, match="only a process that has loaded"):
        registered_type.validate_remote(FIRST_PAYLOAD, version=1)


def test_a_publisher_without_the_module_uses_the_registered_version() -> None:
    registered_type = job_type_from(record_of(READ_TYPE, "a worker"))
    assert registered_type.version == 3

    class RegisteredOnly(Registry):
        def get_publishable(self, name: str) -> JobType:
            return registered_type

    prepared = prepare(RegisteredOnly(), JobRequest("hot.read", {"text": "b"}))
    assert prepared.message.metadata.payload_version == 3
    old = prepare(RegisteredOnly(), JobRequest("hot.read", FIRST_PAYLOAD, payload_version=1))
    assert (old.message.payload, old.message.metadata.payload_version) == (FIRST_PAYLOAD, 1)


def test_a_message_that_says_nothing_of_its_version_is_of_the_first() -> None:
    body = b'{"job_type": "read", "payload": {}}'
    assert JobMessage.decode(body).metadata.payload_version == 1


@pytest.mark.parametrize(
    "declaration",
    [
        {"version": 0},
        {"version": 2_000_000},
        {"version": 1, "upgrade": upgrade_to_text},
        {"version": 4, "upgrade": {1: upgrade_to_text, 3: upgrade_to_file}},
        {"version": 3, "upgrade": {1: upgrade_to_text}},
        {"version": 2, "upgrade": {1: upgrade_to_text, 2: upgrade_to_file}},
        {"version": 2, "upgrade": {1: "text"}},
        {"version": 2, "upgrade": read},
    ],
)
def test_inconsistent_versions_are_refused_at_their_declaration(
    declaration: dict[str, Any],
) -> None:
    with pytest.raises(RegistryError, match=r"version|upgrade"):
        job("read", worker="reader", lanes=("hot",), **declaration)(read)


@pytest.mark.parametrize(
    ("recorded_fields", "payload", "version"),
    [
        # Recorded by an older release, and by this one.
        ({}, {"words": {"first": "{word}"}}, 1),
        ({"payload_versions": {"read": 3}}, {"text": "{word}"}, 3),
    ],
)
def test_a_backfill_goes_on_with_the_payloads_that_it_was_started_with(
    recorded_fields: dict[str, Any], payload: dict[str, Any], version: int
) -> None:
    fields = {"source": "file", "job_type": "read", "lane": "hot", "payload": payload}
    spec = BackfillSpec.from_record(fields | {"remote": True} | recorded_fields)
    plan = Plan("backfill-1", spec, READ_TYPE, Registry([READ_TYPE]), PUBLIC_IDS, FileSource)
    prepared = plan.job(Item("1", {"word": "hi"}, {}))
    assert prepared.message.metadata.payload_version == version
    assert READ_TYPE.read(prepared.message.payload, version) == ReadPayload(text="hi")
    if version == READ_TYPE.version:
        started = BackfillSpec.model_validate(fields).as_record(Registry([READ_TYPE]), READ_TYPE)
        assert started["payload_versions"] == recorded_fields["payload_versions"]
    first_type = replace(READ_TYPE, version=1, upgrades=())
    assert "payload_versions" not in spec.as_record(Registry([first_type]), first_type)


def make_redrive(payload: dict[str, Any]) -> Callable[[Change, bool], JobMessage]:
    """Return a function that redrives a letter with this payload of version 1, with a change."""
    from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo
    from switchyard.services.engine.dead.changes import make_copy

    message = JobMessage(job_id="job-1", job_type="read", payload=payload)

    class Letter:
        id, redrives, body = "job-1", 0, message.encode()
        info = DeadLetterInfo(Reason.EXHAUSTED, "hot.read")

    Letter.message = message  # type: ignore[attr-defined]

    def redrive_with(change: Change, remote: bool) -> JobMessage:
        return make_copy(Letter, change, Registry([READ_TYPE]), remote=remote)[0]  # type: ignore[arg-type]

    return redrive_with


@pytest.mark.parametrize("remote", [True, False])
def test_a_change_in_a_redrive_is_read_in_the_version_that_it_is_written_in(remote: bool) -> None:
    redrive_with = make_redrive(FIRST_PAYLOAD)
    unchanged = redrive_with(Change(), remote)
    assert (unchanged.payload, unchanged.metadata.payload_version) == (FIRST_PAYLOAD, 1)
    old = redrive_with(Change(merge={"words": {"first": "bye"}}), remote)
    assert (READ_TYPE.read(old.payload, 1), old.metadata.payload_version) == (
        ReadPayload(text="bye"),
        1,
    )
    new = redrive_with(Change(payload={"text": "new"}), remote)
    assert (new.payload, new.metadata.payload_version) == ({"text": "new"}, 3)
    with pytest.raises(ValueError, match="read"):
        redrive_with(Change(payload={"neither": 1}), remote)
    if remote:
        with pytest.raises(ValueError, match="file"):
            redrive_with(Change(merge={"path": "/etc/passwd"}), remote)
