"""The API's own descriptions (OpenAPI, AsyncAPI, problems, health), and that it keeps to them."""

import asyncio
import json
import re
import subprocess
import sys
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from switchyard.api.app import ROUTERS
from switchyard.api.models.problems import KINDS
from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.api_keys import Scope, create_key
from tests.support.api_server import RunningApi, problem, serving
from tests.support.arxiv_server import ArxivServer, Paper
from tests.support.eventually import eventually
from tests.support.system import System

ROOT = Path(__file__).parents[3]
DOCUMENTATION = (ROOT / "docs" / "api.md").read_text()


async def openapi(api: RunningApi) -> dict[str, Any]:
    return (await api.client.get("/openapi.json")).json()


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_every_response_is_documented(system: System, tmp_path: Path) -> None:
    """Run Schemathesis over every operation, except the streams, which do not end, and the requests
    to models, which may wait for longer than it does."""
    key = (await create_key(system.ledger, "schemathesis", [Scope.ADMIN])).key
    options = {"api_rate_limit": 1e6, "api_rate_burst": 1_000_000, "api_heartbeat": 0.2}
    with ArxivServer([Paper("2403.00001", categories=("cs.DB",))]) as arxiv:
        source = {"arxiv_base_url": arxiv.url, "arxiv_interval": 0.001}
        settings = system.settings.model_copy(update={**options, **source})
        result = await run_schemathesis(settings, key, tmp_path)
    assert result.returncode == 0, result.stdout[-20_000:] + result.stderr


async def run_schemathesis(
    settings: Settings, key: str, directory: Path
) -> subprocess.CompletedProcess[str]:
    async with serving(settings) as api:
        checks = (
            # Without negative_data_rejection: it counts a field that a form omits as invalid.
            "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_headers_conformance,response_schema_conformance"
        )
        command = [
            str(Path(sys.executable).parent / "schemathesis"), "run", f"{api.url}/openapi.json",
            "--checks", checks, "--max-examples", "10", "--phases", "examples,coverage,fuzzing",
            "--exclude-path-regex", "/events$|^/llm/requests",
            "--header", f"Authorization: Bearer {key}",
            "--seed", "1", "--no-shrink", "--request-timeout", "30",
            "--max-time", "30", "--warnings", "off", "--no-color", "--continue-on-failure",
        ]  # fmt: skip
        return await asyncio.to_thread(
            subprocess.run, command, cwd=directory, capture_output=True, text=True, timeout=150
        )


async def test_every_operation_documents_its_responses(shared_api: RunningApi) -> None:
    document = await openapi(shared_api)
    assert document["openapi"].startswith("3.1")
    for path, item in document["paths"].items():
        for method, operation in item.items():
            endpoint = f"{method} {path}"
            assert operation["description"] or operation["summary"], endpoint
            for status, answer in operation["responses"].items():
                if int(status) >= 400 and not path.startswith("/health"):
                    is_openai = path.startswith("/v1/")
                    kind = "application/json" if is_openai else "application/problem+json"
                    assert kind in answer["content"], f"{endpoint}: {status}"
            if path.startswith(("/health", "/problems")):
                assert "security" not in operation, endpoint
            else:
                assert operation["security"], endpoint
                assert {"401", "403", "429"} <= operation["responses"].keys(), endpoint


async def test_every_problem_is_documented_and_its_type_is_a_url(
    shared_api: RunningApi,
) -> None:
    listed = (await shared_api.client.get("/problems")).json()["problems"]
    assert {each["type"] for each in listed} == {f"/problems/{name}" for name in KINDS}
    for each in listed:
        assert (await shared_api.client.get(each["type"])).json() == each
        name = each["type"].removeprefix("/problems/")
        assert re.search(rf"^\| `{name}` \| {each['status']} \|", DOCUMENTATION, re.MULTILINE), name
    problem(await shared_api.client.get("/problems/none"), 404, "not-found")


async def test_every_endpoint_is_documented(shared_api: RunningApi) -> None:
    for path, item in (await openapi(shared_api))["paths"].items():
        for method in item:
            assert f"`{method.upper()} {path}`" in DOCUMENTATION, f"{method.upper()} {path}"


async def test_job_types_have_schemas(shared_api: RunningApi) -> None:
    listed = {
        each["job_type"]: each
        for each in (await shared_api.client.get("/schemas")).json()["job_types"]
    }
    assert {"noop", "scripted", "summarize_content"} <= listed.keys()
    scripted = (await shared_api.client.get("/schemas/scripted")).json()
    assert scripted["required"] == ["steps"]
    assert scripted == listed["scripted"]["payload"]
    assert listed["noop"]["routing_keys"] == ["hot.noop", "backfill.noop"]
    problem(await shared_api.client.get("/schemas/unknown"), 404, "not-found")


async def test_the_asyncapi_document_has_a_channel_for_each_routing_key(
    system: System, api: RunningApi
) -> None:
    document = (await api.client.get("/asyncapi.json")).json()
    assert document["asyncapi"] == "3.0.0"
    addresses = {channel["address"] for channel in document["channels"].values()}
    assert {route.routing_key for route in system.registry.routes} <= addresses
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
        referenced: Any = document
        for step in reference.split("/"):
            referenced = referenced[step]
        assert referenced
    payload = document["components"]["messages"]["scripted"]["payload"]["schema"]
    assert payload["properties"]["payload"]["required"] == ["steps"]
    assert payload["properties"]["job_type"] == {"const": "scripted"}


@pytest.mark.parametrize("path", ["/schemas", "/asyncapi.json"])
async def test_schemas_are_not_made_on_the_event_loop(
    shared_api: RunningApi, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Making all of them takes 0.1 s, for which heartbeats and streams would wait."""
    was_on_loop: list[bool] = []
    schema_of = vars(BaseModel)["model_json_schema"].__func__

    def record_loop(model: type[BaseModel], *arguments: Any, **named: Any) -> dict[str, Any]:
        try:
            was_on_loop.append(asyncio.get_running_loop().is_running())
        except RuntimeError:  # a thread without a loop
            was_on_loop.append(False)
        return schema_of(model, *arguments, **named)

    monkeypatch.setattr(BaseModel, "model_json_schema", classmethod(record_loop))
    assert (await shared_api.client.get(path)).status_code == 200
    assert set(was_on_loop) == {False}


async def test_health_shows_each_component_with_its_latency(shared_api: RunningApi) -> None:
    await eventually(shared_api.state.broker.feed.is_listening.is_set)
    assert (await shared_api.client.get("/health/live")).json() == {"status": "ok"}
    for path in ("/health", "/health/ready"):
        answer = await shared_api.client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        components = answer.json()["components"]
        assert components.keys() == {"broker", "events", "ledger", "storage"}
        assert all(part["state"] == "ok" for part in components.values())
        assert all(0 <= part["latency_ms"] < 2000 for part in components.values())


async def test_a_storage_that_can_not_be_written_is_away(system: System, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way of a directory")
    url = (tmp_path / "file").as_uri()
    async with serving(system.settings, storage_url=url) as api:
        await eventually(api.state.broker.feed.is_listening.is_set)
        answer = await api.client.get("/health/ready")
        assert answer.status_code == 503
        states = {name: each["state"] for name, each in answer.json()["components"].items()}
        assert states == {"broker": "ok", "events": "ok", "ledger": "ok", "storage": "away"}


async def test_operators_see_lanes_workers_and_dead_letters(
    system: System, api: RunningApi
) -> None:
    worker = await system.start_worker("llm")
    job_id = await system.publish("hot.scripted", {"steps": ["permanent"]})
    await system.wait_for_letter(job_id)
    indexed = await index(system)
    assert indexed == 1

    workers = (await api.client.get("/admin/workers")).json()["workers"]
    assert [(each["worker_id"], each["status"]) for each in workers] == [
        (worker.worker_id, "alive")
    ]

    async def dead_in_hot() -> bool:
        lanes = (await api.client.get("/admin/lanes")).json()["lanes"]
        hot = next(lane for lane in lanes if lane["lane"] == "hot")
        return hot["jobs"] == {"dead": 1} and any(each["consumers"] for each in hot["queues"])

    await eventually(dead_in_hot)
    page = (await api.client.get("/admin/dead", params={"reason": "permanent"})).json()
    assert [letter["job_id"] for letter in page["dead_letters"]] == [job_id]
    assert (await api.client.get("/admin/dead", params={"reason": "expired"})).json() == {
        "dead_letters": [],
        "next_cursor": None,
    }
    letter = (await api.client.get(f"/admin/dead/{job_id}")).json()
    assert letter["error_type"] == "PermanentError"
    assert json.loads(letter["body"])["job_id"] == job_id
    problem(await api.client.get("/admin/dead/none"), 404, "not-found")


async def index(system: System) -> int:
    """Index the dead letters; return how many."""
    from switchyard.services.engine.dead.indexing import index_waiting

    return await index_waiting(system.settings, system.ledger, system.registry)


async def test_without_a_broker_jobs_are_refused_and_the_rest_works(system: System) -> None:
    async with serving(system.settings, amqp_url=None) as api:
        answer = await api.client.post("/jobs", json={"routing_key": "hot.noop"})
        problem(answer, 503, "no-broker")
        assert (await api.client.get("/jobs")).is_success
        ready = (await api.client.get("/health/ready")).json()
        assert ready["components"].keys() == {"ledger", "storage"}


def test_every_handler_and_dependency_is_async() -> None:
    """FastAPI runs those that are not async in threads, which takes longer than they do."""
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            waiting = [route.dependant]
            while waiting:
                each = waiting.pop()
                waiting += each.dependencies
                call = each.call
                inner = getattr(call, "__call__", None)  # noqa: B004 - of a security scheme
                assert iscoroutinefunction(call) or iscoroutinefunction(inner), (route.path, call)
