"""One trace from the request over every stage, retry and redrive; and nothing of it when off."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from switchyard.services.common import tracing
from switchyard.services.common.traceparent import trace_id_of
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.records.states import State
from tests.integration.api.document_server import serving
from tests.support.brokers import TestBroker
from tests.support.chaos import outbox
from tests.support.joining import JOINING_MODULES
from tests.support.redrives import redrive
from tests.support.system import JOB_MODULES, open_system

TRACE = "0af7651916cd43dd8448eb211c80319c"
GIVEN = f"00-{TRACE}-b7ad6b7169203331-01"


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [each for each in exporter.get_finished_spans() if each.name == name]


def parent_of(exporter: InMemorySpanExporter, one: ReadableSpan) -> str | None:
    for each in exporter.get_finished_spans():
        if one.parent is not None and each.context.span_id == one.parent.span_id:
            return each.name
    return None


async def test_one_trace_goes_from_the_request_over_stages_retries_and_redrives(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    exporter = InMemorySpanExporter()
    with tracing.tracing_to(SimpleSpanProcessor(exporter), "test"):
        async with (
            open_system(
                broker310,
                sqlite_url,
                modules=(*JOINING_MODULES, *JOB_MODULES),
                data_dir=tmp_path,
            ) as system,
            outbox(system),
            serving(
                system.settings.model_copy(update={"modules": (*JOINING_MODULES, *JOB_MODULES)})
            ) as client,
        ):
            await system.start_worker("llm")
            job = {"routing_key": "hot.fan", "payload": {"leaves": 2, "dead": 1}}
            answer = await client.post("/jobs", json=job, headers={"Traceparent": GIVEN})
            fan_id = answer.json()["job_id"]
            fan = await system.wait_for_state(fan_id, State.SUCCEEDED)
            shown = (await client.get(f"/jobs/{fan_id}")).json()
            assert shown["trace_id"] == fan.trace_id == TRACE
            leaf = await system.stage_id(fan_id, "leaf", 0)
            await system.wait_for_state(leaf, State.DEAD)
            await system.wait_for_letter(leaf)
            await redrive(system, LetterFilter(ids=frozenset({leaf})))
            await system.wait_for_state(leaf, State.SUCCEEDED)
            retried = await system.publish(
                "hot.scripted", {"steps": ["retry", "done"]}, traceparent=GIVEN
            )
            await system.wait_for_state(retried, State.SUCCEEDED)
            await system.stop_workers()
    spans = exporter.get_finished_spans()
    ours = [each for each in spans if f"{each.context.trace_id:032x}" == TRACE]
    names = [each.name for each in ours]
    assert {"POST /jobs", "publish hot.fan", "wait hot.llm", "run fan"} <= set(names)
    assert names.count("run leaf") == 3  # one dies, and runs again when it was redriven
    assert names.count("run scripted") == 2
    (request,) = named(exporter, "POST /jobs")
    assert (request.attributes or {})["http.response.status_code"] == 202
    (published,) = named(exporter, "publish hot.fan")
    assert parent_of(exporter, published) == "POST /jobs"
    (ran,) = named(exporter, "run fan")
    assert parent_of(exporter, ran) == "publish hot.fan"
    assert {parent_of(exporter, each) for each in named(exporter, "run leaf")} == {"run fan"}
    outcomes = [
        (each.attributes or {})["switchyard.outcome"] for each in named(exporter, "run leaf")
    ]
    assert sorted(map(str, outcomes)) == ["dead", "succeeded", "succeeded"]
    assert all(len(str(v)) <= 200 for each in ours for v in (each.attributes or {}).values())
    assert not any(each.events for each in ours)  # no text of an error, and no payload
    assert {each.resource.attributes["service.name"] for each in ours} == {"switchyard-test"}


@pytest.mark.parametrize(
    "given",
    ["", "00-1-2-01", GIVEN.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01", "x" * 100_000],
    ids=["empty", "short", "upper", "zero", "endless"],
)
async def test_a_foreign_traceparent_that_is_none_begins_a_trace_of_its_own(
    broker310: TestBroker, sqlite_url: str, given: str
) -> None:
    exporter = InMemorySpanExporter()
    with tracing.tracing_to(SimpleSpanProcessor(exporter), "test"):
        async with open_system(broker310, sqlite_url) as system:
            await system.start_worker("llm")
            message = await system.publish_foreign("hot.noop", {"n": 1}, traceparent=given)
            await system.wait_for_state(message.job_id, State.SUCCEEDED)
            await system.stop_workers()
    (ran,) = named(exporter, "run noop")
    assert ran.parent is None
    assert trace_id_of(given) is None


def test_who_does_not_ask_for_traces_imports_nothing_for_them() -> None:
    program = (
        "import sys; from switchyard.services.common import tracing\n"
        "with tracing.tracing('x'), tracing.span('a') as a, tracing.span('b', parent='00') as b:\n"
        "    a.note(b=1); tracing.record('c', began=0, parent=None); tracing.begin('d').end()\n"
        "    assert a.traceparent is b.traceparent is tracing.current_traceparent() is None\n"
        "sys.exit(any(each.startswith('opentelemetry') for each in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], env={}, check=False).returncode == 0


def traced_by(**environment: str) -> subprocess.CompletedProcess[str]:
    program = (
        "from switchyard.services.common import tracing\n"
        "with tracing.tracing('test'), tracing.span('seen') as seen:\n"
        "    print('on' if seen.traceparent else 'off')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


def test_the_environment_names_the_exporter_and_what_is_not_there_is_said() -> None:
    done = traced_by(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine")
    assert '"name": "seen"' in done.stdout
    assert '"service.name": "mine"' in done.stdout
    assert "nonsense" in traced_by(OTEL_TRACES_EXPORTER="nonsense").stderr
    assert traced_by(OTEL_TRACES_EXPORTER="none").stdout == "off\n"


@pytest.mark.long
def test_a_collector_that_is_away_holds_no_process_up() -> None:
    began = time.monotonic()
    done = traced_by(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert time.monotonic() - began < 30
