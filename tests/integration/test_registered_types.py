"""Job types of modules that only workers have: registered in the ledger, known everywhere."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel
from sqlalchemy import insert

from switchyard.services.engine.jobs import registered_types
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.local_fields import LocalOnly
from switchyard.services.engine.jobs.outcomes import Done, Job, Next, Outcome
from switchyard.services.engine.jobs.registered_types import (
    JobTypeSync,
    job_type_from,
    learn_types,
    record_of,
)
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    JobType,
    Registry,
    RegistryError,
    RemoteFieldForbidden,
    UnknownJobType,
    job,
    job_type_of,
)
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.tables import job_types
from switchyard.services.engine.monitoring import worker_status
from switchyard.services.engine.monitoring.check import Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.workers import unknown_types
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.job_types import MAX_JOB_TYPES, MAX_SCHEMA_BYTES, TYPE_TTL
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from tests.support.api_server import problem, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.system import System, open_system


class Parcel(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    weight: int = Field(ge=1)
    street: str = Field(default="", pattern=r"^(?!PO)")  # which no linear engine can match
    path: Annotated[str | None, LocalOnly("send the file"), Field(alias="filePath")] = None
    place: Annotated[
        str | None, LocalOnly(), Field(validation_alias=AliasChoices("at", "where"))
    ] = None


@job("weigh", worker="llm", lanes=("hot", "backfill"))
async def weigh(payload: Parcel, ctx: JobContext) -> Outcome:
    return Done({"weight": payload.weight})


@job("send_off", worker="llm", lanes=("hot",))
async def send_off(payload: Parcel, ctx: JobContext) -> Outcome:
    return Next([Job("weigh", {"weight": payload.weight})])


@job("scan", worker="scan", lanes=("hot",))
async def scan(payload: RootModel[dict[str, Annotated[str, LocalOnly()]]], ctx: Any) -> None:
    return None


WEIGH, SEND_OFF, SCAN = job_type_of(weigh), job_type_of(send_off), job_type_of(scan)
MODULES = (*job_modules(), __name__)


@pytest.fixture
async def system(broker310: TestBroker, sqlite_url: str) -> AsyncIterator[System]:
    async with open_system(broker310, sqlite_url, modules=MODULES) as opened:
        yield opened


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.open(database_url, check=True) as opened:
        yield opened


def make_sync(ledger: Ledger, *own_types: JobType, is_worker: bool = True) -> JobTypeSync:
    return JobTypeSync(
        Registry(own_types), ledger, own_types=own_types, holder="worker-1", is_worker=is_worker
    )


async def learn_registry(ledger: Ledger) -> Registry:
    registry = Registry()
    await learn_types(registry, ledger)
    return registry


async def test_a_type_of_a_worker_alone_is_published_and_runs(system: System) -> None:
    await system.start_worker("llm")
    jobs = JobPublisher(Registry(), system.ledger, system.wire)
    published = await jobs.publish(JobRequest("hot.weigh", {"weight": 3}))
    assert (await system.wait_for_state(published.job_id, State.SUCCEEDED)).result == {"weight": 3}
    with pytest.raises(InvalidPayload, match=r"weight: 0 is less than the minimum of 1"):
        await jobs.publish(JobRequest("hot.weigh", {"weight": 0}))
    with pytest.raises(UnknownJobType, match="this process has not loaded its module"):
        await jobs.publish(JobRequest("hot.weight", {}))


async def test_a_handler_publishes_types_that_only_another_worker_has(system: System) -> None:
    await system.start_worker("llm", registry=Registry([WEIGH]))
    sender = await system.start_worker("llm", registry=Registry([SEND_OFF]))
    job_id = await system.publish("hot.send_off", {"weight": 2})
    await system.wait_for_state(job_id, State.SUCCEEDED)
    assert sender.worker.counters.dead == 0


async def test_a_worker_learns_of_types_that_are_registered_later_by_its_beats(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_types, "LEARN_INTERVAL", 1000)
    monkeypatch.setattr(worker_status, "IDLE_BEAT_INTERVAL", 0.1)
    registry = Registry([SEND_OFF])
    await system.start_worker("llm", registry=registry)
    await system.start_worker("llm", registry=Registry([WEIGH]))
    await eventually(lambda: "weigh" in registry.registered)


async def test_the_api_takes_and_shows_types_whose_modules_it_lacks(system: System) -> None:
    await system.start_worker("llm")
    settings = system.settings.model_copy(update={"modules": []})
    async with serving(settings) as api:
        await until_connected(api)
        answer = await api.client.post(
            "/jobs", json={"routing_key": "hot.weigh", "payload": {"weight": 2}}
        )
        assert answer.status_code == 202
        await system.wait_for_state(answer.json()["job_id"], State.SUCCEEDED)
        invalid = await _publish(api.client, {"weight": "2"})
        assert "weight" in str(problem(invalid, 422, "invalid"))
        for key in ("filePath", "path", "at", "where", "place"):
            refused = await _publish(api.client, {"weight": 1, key: "/etc/passwd"})
            assert "can't be set from outside" in str(problem(refused, 422, "invalid"))
        schema = (await api.client.get("/schemas/weigh")).json()
        assert schema["properties"]["weight"]["minimum"] == 1
        listed = (await api.client.get("/schemas")).json()["job_types"]
        assert {"weigh"} <= {entry["job_type"] for entry in listed}
        unknown = await api.client.post("/jobs", json={"routing_key": "hot.nowhere", "payload": {}})
        assert "the API process has not loaded its module" in str(problem(unknown, 422, "invalid"))


async def _publish(client: httpx.AsyncClient, payload: dict[str, Any]) -> httpx.Response:
    return await client.post("/jobs", json={"routing_key": "hot.weigh", "payload": payload})


async def test_a_local_field_stays_local_under_each_of_its_names(ledger: Ledger) -> None:
    await make_sync(ledger, WEIGH, SCAN).sync()
    registry = await learn_registry(ledger)
    weighing, scanning = registry.get_publishable("weigh"), registry.get_publishable("scan")
    for key in ("filePath", "path", "at", "where", "place"):
        payload = {"weight": 1, key: "/x"}
        with pytest.raises(RemoteFieldForbidden):
            weighing.validate_remote(payload)
        weighing.validate_remote(payload, {key: "/x"})  # the value is the same as before
        with pytest.raises(RemoteFieldForbidden):
            weighing.validate_remote(payload, {key: "/y"})
        weighing.validate(payload)
    weighing.validate_remote({"weight": 1, "path": None, "filePath": None})
    with pytest.raises(RemoteFieldForbidden):
        scanning.validate_remote({"anything": "/x"})


async def test_a_loaded_module_counts_more_than_a_registered_type(
    ledger: Ledger,
) -> None:
    await make_sync(ledger, WEIGH).sync()
    registry = Registry([WEIGH])
    await learn_types(registry, ledger)
    assert registry.get_publishable("weigh") is WEIGH
    assert not registry.registered


async def test_a_registered_type_can_be_published_and_not_run(ledger: Ledger) -> None:
    await make_sync(ledger, WEIGH).sync()
    registry = await learn_registry(ledger)
    assert registry.get_publishable("weigh").lanes == ("hot", "backfill")
    assert [route.routing_key for route in registry.routes] == ["backfill.weigh", "hot.weigh"]
    assert list(registry) == []
    assert registry.lanes_of("llm") == ()
    with pytest.raises(UnknownJobType):
        registry.get("weigh")


async def test_workers_replace_types_of_others_and_nobody_replaces_those_of_workers(
    ledger: Ledger,
) -> None:
    newer = JobType(**{**_fields(WEIGH), "max_attempts": 9})
    await make_sync(ledger, WEIGH, is_worker=False).sync()
    await make_sync(ledger, newer).sync()
    await make_sync(ledger, WEIGH, is_worker=False).sync()
    assert (await learn_registry(ledger)).get_publishable("weigh").max_attempts == 9


async def test_a_registry_learns_changes_and_forgets_what_is_gone(ledger: Ledger) -> None:
    await make_sync(ledger, WEIGH).sync()
    registry = await learn_registry(ledger)
    await make_sync(ledger, JobType(**{**_fields(WEIGH), "max_attempts": 9})).sync()
    await learn_types(registry, ledger)
    assert registry.get_publishable("weigh").max_attempts == 9
    later = ledger.clock.time() + TYPE_TTL + 1
    await ledger.job_types.register([], later)
    await learn_types(registry, ledger)
    with pytest.raises(UnknownJobType):
        registry.get_publishable("weigh")


async def test_a_ledger_that_was_set_back_gets_the_types_again(ledger: Ledger) -> None:
    type_sync = make_sync(ledger, WEIGH)
    await type_sync.sync()
    await ledger.job_types.register([], ledger.clock.time() + TYPE_TTL + 1)
    assert await ledger.job_types.list_job_types() == []
    type_sync._touched_at = 0.0  # as if ten minutes had passed
    await type_sync.sync()
    assert [record.name for record in await ledger.job_types.list_job_types()] == ["weigh"]


async def test_no_schema_makes_a_process_fetch_or_fail(ledger: Ledger) -> None:
    record = record_of(WEIGH, "worker-1")
    for name, schema in {
        "far": {"$ref": "http://127.0.0.1:9/schema.json"},
        "file": {"$ref": "file:///etc/passwd"},
        "odd": {"type": 5},
        "slow": {"properties": {"a": {"pattern": "(" * 300 + ")" * 300}}},
    }.items():
        row = {**_record_fields(record), "name": name, "payload_schema": schema}
        await ledger.job_types.register([type(record)(**row)], ledger.clock.time())
    registry = await learn_registry(ledger)
    for name in ("far", "file", "odd"):
        with pytest.raises(UnknownJobType, match=rf"of {name} can't be used here .*load its mod"):
            registry.get_publishable(name).validate({})


async def test_a_pattern_that_backtracks_for_ever_is_given_up(ledger: Ledger) -> None:
    record = record_of(WEIGH, "worker-1")
    schema = {"properties": {"a": {"type": "string", "pattern": "^(a|a)*(?!b)\\1$"}}}
    evil = job_type_from(type(record)(**{**_record_fields(record), "payload_schema": schema}))
    with pytest.raises(InvalidPayload):
        evil.validate({"a": "a" * 5_000 + "!"})


async def test_damaged_rows_do_not_hide_the_others(ledger: Ledger) -> None:
    await make_sync(ledger, WEIGH).sync()
    good = _record_fields((await ledger.job_types.list_job_types())[0])
    row = {**good, "lanes": '["hot"]', "payload_schema": "{}", "local_keys": "{}"}
    changes: dict[str, dict[str, Any]] = {
        "broken": {"payload_schema": "{"},
        "listed": {"payload_schema": "[]"},
        "nowhere": {"lanes": '["moon"]'},
        "Bad.Name": {},
        "endless": {"timeout": -1},
    }
    rows = [{**row, "name": name, "digest": name, **changes[name]} for name in changes]
    await ledger.core.database.write(lambda connection: connection.execute(insert(job_types), rows))
    registry = await learn_registry(ledger)
    assert [job_type.name for job_type in registry.publishable_types] == ["weigh"]
    assert set(registry.unusable) == {"broken", "listed", "nowhere", "Bad.Name", "endless"}


async def test_types_and_schemas_are_bounded(ledger: Ledger) -> None:
    record = record_of(WEIGH, "worker-1")
    fields = _record_fields(record)
    records = [type(record)(**{**fields, "name": f"t{n}"}) for n in range(MAX_JOB_TYPES + 20)]
    await ledger.job_types.register(records[:-1], ledger.clock.time())
    await ledger.job_types.register(records[-1:], ledger.clock.time() + 1)
    names = set(await ledger.job_types.digests())
    assert len(names) == MAX_JOB_TYPES
    assert records[-1].name in names

    class Huge(BaseModel):
        text: str = Field(description="x" * MAX_SCHEMA_BYTES)

    async def huge(payload: Huge, ctx: JobContext) -> None:
        return None

    declared = job("huge", worker="llm", lanes=("hot",))(huge)
    with pytest.raises(RegistryError, match="only processes with its module can publish it"):
        record_of(job_type_of(declared), "worker-1")


async def test_a_type_that_no_living_worker_knows_is_found_with_its_module(
    system: System,
) -> None:
    old = await system.start_worker("llm")
    await old.stop()
    job_id = await system.publish("hot.weigh", {"weight": 1})
    doctor = DoctorContext(system.settings, Registry())
    doctor.ledger = system.ledger
    assert (
        await unknown_types(doctor) == []
    )  # there is no worker of that kind, which another finding reports
    await system.ledger.workers.register_worker(
        "other", kinds=["llm"], lanes=["hot"], host="h", pid=1, concurrency=1, job_types=["noop"]
    )
    [diagnostic] = await unknown_types(doctor)
    assert diagnostic.finding is Finding.TYPES_UNWORKED
    assert "1 job waits of weigh, which no worker of llm that lives can run" in diagnostic.detail
    assert __name__ in diagnostic.remedy
    await system.start_worker("llm")
    await system.wait_for_state(job_id, State.SUCCEEDED)
    assert await unknown_types(doctor) == []


def _fields(job_type: JobType) -> dict[str, Any]:
    return {name: getattr(job_type, name) for name in JobType.__dataclass_fields__}


def _record_fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}
