"""One trace from the request over every stage, retry and redrive; and none if tracing is off."""

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

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def spans_named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def parent_name_of(exporter: InMemorySpanExporter, span: ReadableSpan) -> str | None:
    for candidate in exporter.get_finished_spans():
        if span.parent is not None and candidate.context.span_id == span.parent.span_id:
            return candidate.name
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
            answer = await client.post("/jobs", json=job, headers={"Traceparent": TRACEPARENT})
            fan_id = answer.json()["job_id"]
            fan = await system.wait_for_state(fan_id, State.SUCCEEDED)
            job_view = (await client.get(f"/jobs/{fan_id}")).json()
            assert job_view["trace_id"] == fan.trace_id == TRACE_ID
            leaf = await system.stage_id(fan_id, "leaf", 0)
            await system.wait_for_state(leaf, State.DEAD)
            await system.wait_for_letter(leaf)
            await redrive(system, LetterFilter(ids=frozenset({leaf})))
            await system.wait_for_state(leaf, State.SUCCEEDED)
            retried = await system.publish(
                "hot.scripted", {"steps": ["retry", "done"]}, traceparent=TRACEPARENT
            )
            await system.wait_for_state(retried, State.SUCCEEDED)
            await system.stop_workers()
    spans = exporter.get_finished_spans()
    trace_spans = [span for span in spans if f"{span.context.trace_id:032x}" == TRACE_ID]
    names = [span.name for span in trace_spans]
    assert {"POST /jobs", "publish hot.fan", "wait hot.llm", "run fan"} <= set(names)
    assert names.count("run leaf") == 3  # one dies, and runs again when it was redriven
    assert names.count("run scripted") == 2
    (request_span,) = spans_named(exporter, "POST /jobs")
    assert (request_span.attributes or {})["http.response.status_code"] == 202
    (publish_span,) = spans_named(exporter, "publish hot.fan")
    assert parent_name_of(exporter, publish_span) == "POST /jobs"
    (run_span,) = spans_named(exporter, "run fan")
    assert parent_name_of(exporter, run_span) == "publish hot.fan"
    assert {parent_name_of(exporter, span) for span in spans_named(exporter, "run leaf")} == {
        "run fan"
    }
    outcomes = [
        (span.attributes or {})["switchyard.outcome"] for span in spans_named(exporter, "run leaf")
    ]
    assert sorted(map(str, outcomes)) == ["dead", "succeeded", "succeeded"]
    assert all(len(str(v)) <= 200 for span in trace_spans for v in (span.attributes or {}).values())
    assert not any(span.events for span in trace_spans)  # no text of an error, and no payload
    assert {span.resource.attributes["service.name"] for span in trace_spans} == {"switchyard-test"}


@pytest.mark.parametrize(
    "traceparent",
    ["", "00-1-2-01", TRACEPARENT.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01", "x" * 100_000],
    ids=["empty", "short", "upper", "zero", "endless"],
)
async def test_an_invalid_traceparent_of_a_foreign_publisher_begins_a_new_trace(
    broker310: TestBroker, sqlite_url: str, traceparent: str
) -> None:
    exporter = InMemorySpanExporter()
    with tracing.tracing_to(SimpleSpanProcessor(exporter), "test"):
        async with open_system(broker310, sqlite_url) as system:
            await system.start_worker("llm")
            message = await system.publish_foreign("hot.noop", {"n": 1}, traceparent=traceparent)
            await system.wait_for_state(message.job_id, State.SUCCEEDED)
            await system.stop_workers()
    (run_span,) = spans_named(exporter, "run noop")
    assert run_span.parent is None
    assert trace_id_of(traceparent) is None


def test_without_tracing_its_libraries_are_not_imported() -> None:
    program = (
        "import sys; from switchyard.services.common import tracing\n"
        "with tracing.tracing('x'), tracing.span('a') as a, tracing.span('b', parent='00') as b:\n"
        "    a.note(b=1); tracing.record('c', began=0, parent=None); tracing.begin('d').end()\n"
        "    assert a.traceparent is b.traceparent is tracing.current_traceparent() is None\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], env={}, check=False).returncode == 0


def run_traced(**environment: str) -> subprocess.CompletedProcess[str]:
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


def test_the_environment_names_the_exporter_and_an_unknown_one_is_reported() -> None:
    result = run_traced(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="mine")
    assert '"name": "seen"' in result.stdout
    assert '"service.name": "mine"' in result.stdout
    assert "nonsense" in run_traced(OTEL_TRACES_EXPORTER="nonsense").stderr
    assert run_traced(OTEL_TRACES_EXPORTER="none").stdout == "off\n"


@pytest.mark.long
def test_a_collector_that_is_away_holds_no_process_up() -> None:
    began = time.monotonic()
    result = run_traced(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert (result.returncode, result.stdout) == (0, "on\n")
    assert time.monotonic() - began < 30
