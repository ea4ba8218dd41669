"""`jobctl … --json` prints the same values as the HTTP API answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

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


def select_all(answer: Answer) -> Any:
    return answer


def select_field(name: str) -> Select:
    return lambda answer: answer[name]


class ReadCommand(NamedTuple):
    """A command, and the request whose answer it prints."""

    command: str
    path: str
    select: Select
    """Returns the part of the answer that the command prints."""
    added_keys: AbstractSet[str] = frozenset()
    """Keys that only the command prints."""


class WriteCommand(NamedTuple):
    """A command, and the request that does the same."""

    command: str
    request: str
    body: dict[str, Any] | None = None


READ_COMMANDS: dict[str, ReadCommand] = {
    "jobs": ReadCommand("jobs list", "/jobs", select_field("jobs")),
    "job": ReadCommand("jobs show {job}", "/jobs/{job}", select_all),
    "job that joins": ReadCommand("jobs show {join}", "/jobs/{join}", select_all),
    "job without room": ReadCommand("jobs show {waits}", "/jobs/{waits}", select_all),
    "dead letters": ReadCommand("dead list", "/admin/dead", select_field("dead_letters")),
    "dead letter": ReadCommand("dead show {letter}", "/admin/dead/{letter}", select_all),
    "groups": ReadCommand("dead groups", "/admin/dead/groups", select_field("groups")),
    "redrive": ReadCommand(
        "dead redrives show {redrive}", "/admin/dead/redrives/{redrive}", select_all
    ),
    "backfill": ReadCommand("backfill show {backfill}", "/backfills/{backfill}", select_all),
    "schedules": ReadCommand("schedules list", "/schedules", select_field("schedules")),
    "firings": ReadCommand(
        "schedules history {schedule}", "/schedules/{schedule}/history", select_field("firings")
    ),
    "workers": ReadCommand("workers --all", "/admin/workers", select_field("workers")),
    "lanes": ReadCommand(
        "lanes",
        "/admin/lanes",
        select_field("lanes"),
        {"priority", "queues.unacked", "queues.ttl_seconds", "queues.oldest_seconds"},
    ),
    "limits": ReadCommand("limits", "/limits", select_field("limits")),
    "spending": ReadCommand("llm spend --by model", "/llm/spend?by=model", select_all),
    "request": ReadCommand("llm show {request}", "/llm/requests/{request}", select_all),
    "crawl": ReadCommand("crawl show {crawl}", "/crawl/{crawl}", select_all, {"last_pages"}),
    "index": ReadCommand("index show", "/admin/index", select_all),
    "document": ReadCommand("documents show {document}", "/documents/{document}", select_all),
    "node": ReadCommand("graph show {node}", "/graph/node?node={node}", select_all),
}
WRITE_COMMANDS: dict[str, WriteCommand] = {
    "publish": WriteCommand(
        "publish hot.noop --payload {{}}", "POST /jobs", {"routing_key": "hot.noop"}
    ),
    "cancel": WriteCommand("jobs cancel {first}", "DELETE /jobs/{second}"),
    "fire": WriteCommand("schedules run {schedule}", "POST /schedules/{schedule}/run"),
    "pause": WriteCommand("schedules pause {schedule}", "POST /schedules/{schedule}/pause"),
    "pause of a redrive": WriteCommand(
        "dead redrives pause {redrive}", "POST /admin/dead/redrives/{redrive}/pause"
    ),
    "rate of a redrive": WriteCommand(
        "dead redrives set {redrive} --rate 5", "PATCH /admin/dead/redrives/{redrive}", {"rate": 5}
    ),
    "plan": WriteCommand(
        "dead redrive --all --dry-run", "POST /admin/dead/redrives", {"all": True, "dry_run": True}
    ),
    "limits of a backfill": WriteCommand(
        "backfill set {backfill} --max-open 5", "PATCH /backfills/{backfill}", {"max_open": 5}
    ),
    "cancelled backfill": WriteCommand(
        "backfill cancel {backfill}", "POST /backfills/{backfill}/cancel"
    ),
    "crawl": WriteCommand(
        "crawl start http://127.0.0.1:9/", "POST /crawl", {"start": ["http://127.0.0.1:9/"]}
    ),
    "cancelled crawl": WriteCommand("crawl cancel {crawl}", "DELETE /crawl/{crawl}"),
}


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
    # Paused: who runs it, or since when nobody does, would change between the two answers.
    await bulk_control.pause(ledger, backfill.id)
    message = JobMessage(job_id="6eed1ee8-0000-4000-8000-000000000000", job_type="noop", payload={})
    joining = NewJob(message, "hot", "llm", "hot.noop", joins=Joining(held=True))
    await ledger.jobs.record(joining)
    entry = {"name": "papers", "cron": "0 6 * * *", "job": "hot.noop", "payload": {"n": 4}}
    schedules = Schedules(ledger, system.registry)
    await schedules.add(ScheduleEntry.from_fields(entry), remote=False, created_by="me")
    await schedules.run("papers", "me")
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


def find_additions(printed: Any, answered: Any, path: str = "") -> set[str]:
    """Return the keys that are only printed; assert that all else is printed as it is answered."""
    if isinstance(answered, list):
        assert len(printed) == len(answered), path
        pairs = zip(printed, answered, strict=True)
        return set().union(*(find_additions(*pair, path) for pair in pairs))
    if not isinstance(answered, dict):
        assert printed == answered, path
        return set()
    assert answered.keys() <= printed.keys(), path
    below = (find_additions(printed[key], answered[key], f"{path}{key}.") for key in answered)
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
            jobctl(*read.command.format(**object_ids).split(), "--json", **environment)
            for read in READ_COMMANDS.values()
        )
    )
    for result, (name, read) in zip(results, READ_COMMANDS.items(), strict=True):
        answer = await api.client.get(read.path.format(**object_ids))
        assert answer.is_success, (name, answer.text)
        assert result.stdout, (name, result.stderr)
        printed, answered = json.loads(result.stdout), read.select(answer.json())
        assert answered, f"there is no {name} to compare"
        if name == "lanes":  # the dead letters come last; numbers are a few seconds old
            printed, answered = keys_of(printed[: len(answered)]), keys_of(answered)
        assert find_additions(printed, answered) == read.added_keys, name


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
