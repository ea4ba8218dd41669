"""What `jobctl llm status` and `jobctl doctor` report of model servers."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.check import Diagnostic, Finding
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.metric_names import LLM_SERVER_PAUSED
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.operations import (
    LONG_PAUSE_SECONDS,
    REPORTED_AFTER_FAILURES,
    check_model_servers,
    samples,
)
from switchyard.services.llm.records.llm_servers import TRIAL_AFTER_FAILURES
from tests.support.commands import jobctl
from tests.support.llm_server import FakeLlmServer, answers, fails
from tests.support.site import Exchange, Request

SERVERS = [
    {"name": "own", "base_url": "http://127.0.0.1:9/v1", "model": "m"},
    {
        "name": "spare",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m",
        "order": 1,
        "max_calls": 4,
    },
]


EMBEDDER = "http://127.0.0.1:9/v1"


async def test_status_shows_a_server_on_trial_and_one_that_was_never_called(
    sqlite_url: str, plain_ledger: Ledger
) -> None:
    await LlmLedger(plain_ledger).slots.take_llm_slot(
        "own", "a", "me", ttl=60, is_hot=True, first_limit=16, max_limit=50
    )
    await LlmLedger(plain_ledger).slots.end_llm_slot(
        "own",
        "a",
        lambda state, *_: replace(
            state, failures=TRIAL_AFTER_FAILURES, pause_reason="it is broken"
        ),
    )
    environment = {"JOBS_DATABASE_URL": sqlite_url, "JOBS_LLM_PROVIDERS": json.dumps(SERVERS)}
    status = json.loads((await jobctl("llm", "status", "--json", **environment)).stdout)["servers"]
    assert [(each["name"], each["limit"], each["on_trial"]) for each in status] == [
        ("own", 1, True),
        ("spare", 2, False),
    ]
    output = (await jobctl("llm", "status", **environment)).stdout
    assert "one call at a time until it answers: it is broken" in " ".join(output.split())
    environment["JOBS_LLM_PROVIDERS"] = json.dumps(SERVERS[1:])
    output = (await jobctl("llm", "status", **environment)).stdout
    assert "not in these settings: it is not called" in " ".join(output.split())


async def test_status_shows_time_limits_and_caps_calls_by_the_current_settings(
    sqlite_url: str, plain_ledger: Ledger
) -> None:
    await LlmLedger(plain_ledger).slots.take_llm_slot(
        "own", "a", "me", ttl=60, is_hot=True, first_limit=40, max_limit=50
    )
    environment = {
        "JOBS_DATABASE_URL": sqlite_url,
        "JOBS_LLM_PROVIDERS": json.dumps(SERVERS),
        "JOBS_LLM_TIMEOUT": "900",
        "JOBS_LLM_CONCURRENCY_MAX": "20",
        "JOBS_VISION_MODEL": "sees",
        "JOBS_VISION_BASE_URL": "http://127.0.0.1:9/v1",
    }
    status = json.loads((await jobctl("llm", "status", "--json", **environment)).stdout)
    limits = {each["name"]: each["limit"] for each in status["servers"]}
    assert limits == {"own": 20, "spare": 2, "vision": 2}
    by_type = {each["job_type"]: (each["attempt"], each["call"]) for each in status["time_limits"]}
    assert by_type.keys() == {
        "chat_completion",
        "classify",
        "extract_entities",
        "extract_facts",
        "extract_field_group",
        "summarize_content",
    }
    assert by_type["chat_completion"] == (1200, 900)
    assert by_type["classify"] == (300, 270)
    output = (await jobctl("llm", "status", **environment)).stdout
    assert "classify 5 min 4 min 30 s" in " ".join(output.split())


def doctor_context(url: str, ledger: Ledger) -> DoctorContext:
    """Return what the doctor examines: a system with these servers, and its ledger."""
    values = {"database_url": url, "llm_providers": SERVERS, "embed_base_url": EMBEDDER}
    settings = Settings.model_validate(values)
    system = DoctorContext(settings, Registry([]))
    system.ledger = ledger
    return system


async def test_the_doctor_reports_a_server_that_keeps_failing(
    sqlite_url: str, plain_ledger: Ledger
) -> None:
    system = doctor_context(sqlite_url, plain_ledger)
    assert await check_model_servers(system) == [], "no server was called yet"

    async def statuses_after_failures(server: str, failures: int) -> list[str]:
        await LlmLedger(plain_ledger).slots.take_llm_slot(
            server, "a", "me", ttl=60, is_hot=True, first_limit=1, max_limit=1
        )
        await LlmLedger(plain_ledger).slots.end_llm_slot(
            server, "a", lambda state, *_: replace(state, failures=failures, pause_reason="401")
        )
        return [each.status for each in await check_model_servers(system)]

    assert await statuses_after_failures("embeddings", REPORTED_AFTER_FAILURES) == ["warning"]
    measured = await samples(system.settings, plain_ledger)
    (paused,) = (each for metric, each in measured if metric == LLM_SERVER_PAUSED)
    assert paused.keys() == {("embeddings",)}
    assert await statuses_after_failures("embeddings", 0) == ["ok"]
    assert await statuses_after_failures("own", REPORTED_AFTER_FAILURES - 1) == ["ok"]
    assert await statuses_after_failures("removed-server", REPORTED_AFTER_FAILURES) == ["ok"]
    assert await statuses_after_failures("own", REPORTED_AFTER_FAILURES) == ["warning"]
    assert await statuses_after_failures("spare", REPORTED_AFTER_FAILURES) == ["wrong", "wrong"]
    (own, _) = await check_model_servers(system)
    assert f"own has failed {REPORTED_AFTER_FAILURES} times in a row: 401" in own.detail


async def test_the_doctor_reports_a_server_that_is_paused_for_an_hour(
    sqlite_url: str, plain_ledger: Ledger
) -> None:
    system = doctor_context(sqlite_url, plain_ledger)

    async def check_while_paused(seconds: float) -> list[Diagnostic]:
        paused_until = plain_ledger.clock.time() + seconds
        await LlmLedger(plain_ledger).slots.take_llm_slot(
            "own", "a", "me", ttl=60, is_hot=True, first_limit=1, max_limit=1
        )
        await LlmLedger(plain_ledger).slots.end_llm_slot(
            "own",
            "a",
            lambda state, *_: replace(state, paused_until=paused_until, pause_reason="429"),
        )
        return await check_model_servers(system)

    (brief,) = await check_while_paused(LONG_PAUSE_SECONDS / 2)
    assert brief.status == "ok"
    (long,) = await check_while_paused(3600)
    assert (long.status, long.finding) == ("warning", Finding.MODEL_SERVER_PAUSED)
    assert re.search(r"own is paused for (1 h|59 min \d+ s) more: 429", long.detail)
    assert "at once, as when its limit was raised: `jobctl llm resume own`" in long.remedy
    ended = await LlmLedger(plain_ledger).slots.end_llm_pause("own")
    assert ended is not None
    assert 3500 < ended.paused_for <= 3600
    assert [each.status for each in await check_model_servers(system)] == ["ok"]


async def test_check_finds_the_options_that_a_server_needs(llm: FakeLlmServer) -> None:
    """A small server fails at schemas, and answers a question about a picture whatever it shows."""

    def behave(exchange: Exchange, request: Request) -> None:
        form = request.json.get("response_format", {}).get("type")
        if form == "json_schema":
            fails(500, "failed to parse grammar")(exchange, request)
        elif "max_tokens" in request.json:
            fails(400, "max_tokens is not supported: max_completion_tokens instead")(
                exchange, request
            )
        elif form == "json_object":
            answers('{"sea": true, "salt": 35}')(exchange, request)
        else:
            answers("A chart with data.")(exchange, request)

    llm.always(behave)
    providers = [{"name": "own", "base_url": llm.url, "model": "/models/tiny.gguf"}]
    environment = {"JOBS_LLM_PROVIDERS": json.dumps(providers)}
    checked = json.loads((await jobctl("llm", "check", "own", "--json", **environment)).stdout)
    assert checked["settings"] == {
        "max_tokens_name": "max_completion_tokens",
        "sends_temperature": True,
        "stream": False,
        "schema": "json_object",
    }
    assert "500" in checked["findings"]["schema as json_schema"]
    assert "A chart with data." in checked["findings"]["pictures"]
    assert checked["model"] == "/models/tiny.gguf"
    checked = await jobctl("llm", "check", "own", **environment)
    assert '"schema": "json_object"' in checked.stdout
    assert "answer: tiny.gguf, in " in checked.stdout
    unknown = await jobctl("llm", "check", "another", **environment)
    assert unknown.returncode == 1
    assert "they have: own" in " ".join(unknown.stderr.split())
    environment["JOBS_EMBED_BASE_URL"] = llm.url
    no_chats = await jobctl("llm", "check", "embeddings", **environment)
    assert "answers no chats" in " ".join(no_chats.stderr.split())
