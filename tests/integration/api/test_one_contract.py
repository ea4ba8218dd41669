"""`jobctl … --json` prints the same values as the HTTP API answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from switchyard.broker.message import JobMessage
from switchyard.services.engine.bulk import control as bulk_control
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.records.joins import Joining
from switchyard.services.engine.records.limits import LimitSize, PermitDemand, PermitRequest
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.states import State
from switchyard.services.engine.redrive.spec import RedriveSpec, start_redrive
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.service import Schedules
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.records.llm_spend import CallState, LlmCall, Requester
from switchyard.services.pipeline.graph.upserts import upsert_document
from tests.support.api_server import RunningApi, environment_of
from tests.support.commands import jobctl
from tests.support.redrives import bury
from tests.support.system import System

Answer = Any
Select = Callable[[Answer], Any]


def whole(answer: Answer) -> Any:
    return answer


def part(name: str) -> Select:
    return lambda answer: answer[name]


READ_COMMANDS: dict[str, tuple[str, str, Select, set[str]]] = {
    # name: command, path, the part of the answer that the command prints, keys that it adds
    "jobs": ("jobs list", "/jobs", part("jobs"), set()),
    "job": ("jobs show {job}", "/jobs/{job}", whole, set()),
    "job that joins": ("jobs show {join}", "/jobs/{join}", whole, set()),
    "job without room": ("jobs show {waits}", "/jobs/{waits}", whole, set()),
    "dead letters": ("dead list", "/admin/dead", part("dead_letters"), set()),
    "dead letter": ("dead show {letter}", "/admin/dead/{letter}", whole, set()),
    "groups": ("dead groups", "/admin/dead/groups", part("groups"), set()),
    "redrive": ("dead redrives show {redrive}", "/admin/dead/redrives/{redrive}", whole, set()),
    "backfill": ("backfill show {backfill}", "/backfills/{backfill}", whole, set()),
    "schedules": ("schedules list", "/schedules", part("schedules"), set()),
    "firings": ("schedules history {schedule}", "/schedules/{schedule}/history", part("firings"),
                set()),
    "workers": ("workers --all", "/admin/workers", part("workers"), set()),
    "lanes": ("lanes", "/admin/lanes", part("lanes"),
              {"priority", "queues.unacked", "queues.ttl_seconds", "queues.oldest_seconds"}),
    "limits": ("limits", "/limits", part("limits"), set()),
    "spending": ("llm spend --by model", "/llm/spend?by=model", whole, set()),
    "request": ("llm show {request}", "/llm/requests/{request}", whole, set()),
    "crawl": ("crawl show {crawl}", "/crawl/{crawl}", whole, {"last_pages"}),
    "index": ("index show", "/admin/index", whole, set()),
    "document": ("documents show {document}", "/documents/{document}", whole, set()),
    "node": ("graph show {node}", "/graph/node?node={node}", whole, set()),
}  # fmt: skip
WRITE_COMMANDS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    # name: command, request, its body
    "publish": ("publish hot.noop --payload {{}}", "POST /jobs", {"routing_key": "hot.noop"}),
    "cancel": ("jobs cancel {first}", "DELETE /jobs/{second}", None),
    "fire": ("schedules run {schedule}", "POST /schedules/{schedule}/run", None),
    "pause": ("schedules pause {schedule}", "POST /schedules/{schedule}/pause", None),
    "pause of a redrive": ("dead redrives pause {redrive}",
                           "POST /admin/dead/redrives/{redrive}/pause", None),
    "rate of a redrive": ("dead redrives set {redrive} --rate 5",
                          "PATCH /admin/dead/redrives/{redrive}", {"rate": 5}),
    "plan": ("dead redrive --all --dry-run", "POST /admin/dead/redrives",
             {"all": True, "dry_run": True}),
    "limits of a backfill": ("backfill set {backfill} --max-open 5",
                             "PATCH /backfills/{backfill}", {"max_open": 5}),
    "cancelled backfill": ("backfill cancel {backfill}", "POST /backfills/{backfill}/cancel", None),
    "crawl": ("crawl start http://127.0.0.1:9/", "POST /crawl",
              {"start": ["http://127.0.0.1:9/"]}),
    "cancelled crawl": ("crawl cancel {crawl}", "DELETE /crawl/{crawl}", None),
}  # fmt: skip


@pytest.fixture
async def object_ids(system: System, api: RunningApi) -> dict[str, str]:
    """Make one object of each kind; return their ids by name."""
    ledger = system.ledger
    await system.start_worker()
    job = await system.publish("hot.noop", {"n": 1})
    await system.wait_for_state(job, State.SUCCEEDED)
    await system.stop_workers()
    first = await system.publish("hot.noop", {"n": 2})
    second = await system.publish("hot.noop", {"n": 3})
    letter = await bury(system, "5eed1ee8-0000-4000-8000-000000000000")
    for hold in ("one", "two"):
        demand = PermitDemand("openai", "acme", LimitSize(concurrency=1, per_minute=10))
        await ledger.limits.take_permits(
            PermitRequest(
                hold=hold,
                holder="worker",
                needs=(demand,),
                job_id=first,
                redrives=0,
                attempts=0,
                queue="hot.llm",
                rank=0,
                body=b"{}",
                levels=(300.0,),
                expires_at=4_000_000_000.0,
                life=600.0,
                claimed=hold == "one",
            )
        )
    spec = RedriveSpec(LetterFilter(ids=frozenset([letter])))
    redrive = await start_redrive(ledger, spec, created_by="me")
    plan = {"source": "documents", "options": {}, "job_type": "noop", "lane": "backfill"}
    backfill = await ledger.bulk.create_bulk(
        "backfill-3fa9c01b22", kind="backfill", title="all", created_by="me", spec=plan
    )
    # Paused: who runs it, and since when nobody does, would change from one moment to the next.
    await bulk_control.pause(ledger, backfill.id)
    message = JobMessage(job_id="6eed1ee8-0000-4000-8000-000000000000", job_type="noop", payload={})
    joining = NewJob(message, "hot", "llm", "hot.noop", joins=Joining(held=True))
    await ledger.jobs.record(joining)
    entry = {"name": "papers", "cron": "0 6 * * *", "job": "hot.noop", "payload": {"n": 4}}
    book = Schedules(ledger, system.registry)
    await book.add(ScheduleEntry.from_fields(entry), remote=False, created_by="me")
    await book.run("papers", "me")
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    call = LlmCall("call", CallState.PAID, Requester(job_id=job), "own", "m", usage, 1.5)
    await LlmLedger(ledger).spending.settle_llm_call(call)
    await upsert_document(ledger, "a", {}, "On a", references={"references": [{"doi": "10.1/b"}]})
    crawl = await api.client.post("/crawl", json={"start": ["http://127.0.0.1:9/"]})
    sent = await api.client.post("/documents", files={"file": ("a.txt", b"A text of words.")})
    assert (crawl.status_code, sent.status_code) == (202, 202)
    return {
        "job": job,
        "first": first,
        "second": second,
        "waits": first,
        "join": message.job_id,
        "letter": letter,
        "redrive": redrive.id,
        "backfill": backfill.id,
        "schedule": "papers",
        "request": job,
        "crawl": crawl.json()["id"],
        "document": sent.json()["document_id"],
        "node": "a",
    }


def additions(printed: Any, answered: Any, path: str = "") -> set[str]:
    """Return the keys that are only printed; assert that all else is printed as it is answered."""
    if isinstance(answered, list):
        assert len(printed) == len(answered), path
        pairs = zip(printed, answered, strict=True)
        return set().union(*(additions(one, other, path) for one, other in pairs))
    if not isinstance(answered, dict):
        assert printed == answered, path
        return set()
    assert answered.keys() <= printed.keys(), path
    below = (additions(printed[key], answered[key], f"{path}{key}.") for key in answered)
    return {f"{path}{key}" for key in printed.keys() - answered.keys()}.union(*below)


def keys_of(value: Any) -> Any:
    """Return the value with nothing but its keys."""
    if isinstance(value, list):
        return [keys_of(each) for each in value]
    return {key: keys_of(each) for key, each in value.items()} if isinstance(value, dict) else None


async def test_a_command_prints_what_the_api_answers(
    system: System, api: RunningApi, object_ids: dict[str, str]
) -> None:
    environment = environment_of(system.settings) | {"JOBS_API_URL": api.url}
    results = await asyncio.gather(
        *(
            jobctl(*command.format(**object_ids).split(), "--json", **environment)
            for command, *_ in READ_COMMANDS.values()
        )
    )
    for result, (name, (_, path, select, added_keys)) in zip(
        results, READ_COMMANDS.items(), strict=True
    ):
        answer = await api.client.get(path.format(**object_ids))
        assert answer.is_success, (name, answer.text)
        assert result.stdout, (name, result.stderr)
        printed, answered = json.loads(result.stdout), select(answer.json())
        assert answered, f"there is no {name} to compare"
        if name == "lanes":  # the dead letters come last; numbers are a few seconds old
            printed, answered = keys_of(printed[: len(answered)]), keys_of(answered)
        assert additions(printed, answered) == added_keys, name


async def test_a_command_that_changes_something_prints_what_the_api_answers(
    system: System, api: RunningApi, object_ids: dict[str, str]
) -> None:
    environment = environment_of(system.settings) | {"JOBS_API_URL": api.url}
    for name, (command, request, body) in WRITE_COMMANDS.items():
        result = await jobctl(*command.format(**object_ids).split(), "--json", **environment)
        verb, path = request.format(**object_ids).split()
        answer = await api.client.request(verb, path, json=body)
        assert answer.is_success, (name, answer.text)
        assert result.stdout, (name, result.stderr)
        assert json.loads(result.stdout).keys() == answer.json().keys(), name
