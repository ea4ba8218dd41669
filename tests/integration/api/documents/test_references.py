"""References over HTTP: send a file or a text, get a job's id, and read its references."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from switchyard.api.client import Client, Conflict
from tests.integration.api.document_server import send, serving_system
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.pdfs import encrypted, pdf

BODY = "The tide rises twice a day [1]. Others disagree with this [1, 2]."
REFERENCE_SECTION = """References
[1] R. Roe and J. Doe. On tides and their causes. Journal of Physics, 12(3):33-40, 1999.
[2] A. Smith. The sea. Oxford University Press, Oxford, 2004."""
PAPER = pdf([BODY, REFERENCE_SECTION])
REFERENCE_LINES = "R. Roe. On tides. Tides 3, 1999.\nA. Smith. The sea. Oxford, 2004.\n"
STAGES = ["extract_text", "extract_references", "parse_references"]


def body_as(content: bytes, media_type: str) -> dict[str, Any]:
    """Return the arguments of a request with this body."""
    return {"content": content, "headers": {"Content-Type": media_type}}


def titles(answer: dict[str, Any]) -> list[str]:
    return [each["title"] for each in answer["references"]]


async def test_a_papers_references_are_found_cut_and_served_in_each_format(
    client: httpx.AsyncClient,
):
    answer = await send(client, PAPER, endpoint="/process/references")
    assert answer.status_code == 200, answer.text
    result = answer.json()["result"]
    assert titles(result) == ["On tides and their causes", "The sea"]
    assert [each["references"] for each in result["citations"]] == [[0], [0, 1]]
    job = (await client.get(answer.headers["location"])).json()
    assert (job["state"], titles(job["result"])) == ("succeeded", titles(result))
    assert (job["current_stage"], job["completed_stages"]) == (None, STAGES)
    address = f"/jobs/{job['job_id']}/references"
    assert (await client.get(address)).json() == result
    bibtex = await client.get(address, params={"format": "bibtex"})
    assert bibtex.text.startswith("@article{roe1999tides,")


async def test_texts_are_taken_as_json_and_as_plain_text(client: httpx.AsyncClient):
    text = f"{BODY}\n{REFERENCE_SECTION}"
    plain = {"Content-Type": "text/plain; charset=utf-8"}
    for arguments in ({"json": {"text": text}}, {"content": text.encode(), "headers": plain}):
        extracted = await client.post("/extract/references", **arguments)
        assert [each["label"] for each in extracted.json()["result"]["references"]] == ["1", "2"]
        parsed = await client.post("/process/references", **arguments)
        assert titles(parsed.json()["result"]) == ["On tides and their causes", "The sea"]
    lists: tuple[dict[str, Any], ...] = (
        {"json": {"references": REFERENCE_LINES.splitlines()}},
        {"json": {"text": REFERENCE_LINES, "lane": "maintenance"}},
        {"content": REFERENCE_LINES.encode(), "headers": plain},
    )
    for arguments in lists:
        parsed = await client.post("/parse/references", **arguments)
        assert titles(parsed.json()["result"]) == ["On tides", "The sea"], arguments
        again = await client.get(f"/jobs/{parsed.json()['job_id']}/references?format=csl")
        assert [each["title"] for each in again.json()] == ["On tides", "The sea"]


@pytest.mark.parametrize(
    ("path", "arguments", "status", "problem"),
    [
        ("/process/references", {"json": {}}, 422, "invalid"),
        ("/process/references", {"json": {"text": "x", "key": "uploads/x"}}, 422, "invalid"),
        ("/process/references", {"json": {"document_id": "../x"}}, 422, "invalid"),
        ("/parse/references", {"json": {"references": ["x"] * 201}}, 422, "invalid"),
        ("/parse/references", body_as(b"{", "application/json"), 400, "malformed-request"),
        ("/extract/references", body_as(b"x", "text/html"), 415, "unsupported-media-type"),
        ("/extract/references", body_as(b"\x00\x01", "text/plain"), 415, "unsupported-media-type"),
        ("/extract/references", {"json": {"text": "x" * 400_001}}, 422, "invalid"),
        ("/parse/references", {"json": {"text": "x" * 3_000_000}}, 413, "too-large"),
        ("/process/references", {"json": {"document_id": "unknown"}}, 422, "document-unreadable"),
    ],
)  # fmt: skip
async def test_an_invalid_request_is_refused(
    client: httpx.AsyncClient, path: str, arguments: dict[str, Any], status: int, problem: str
):
    answer = await client.post(path, **arguments)
    assert (answer.status_code, answer.json()["type"]) == (status, f"/problems/{problem}")


async def test_the_error_says_that_a_file_is_unreadable(client: httpx.AsyncClient):
    answer = await send(client, encrypted("secret"), endpoint="/process/references")
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/document-unreadable")
    job = (await client.get(f"/jobs/{answer.json()['job_id']}")).json()
    assert (job["current_stage"], job["completed_stages"]) == ("extract_text", [])
    unknown = await client.get("/jobs/unknown/references")
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/not-found")


async def test_workers_do_the_work_where_there_is_a_broker(
    broker310: TestBroker, database_url: str, tmp_path: Path
):
    async with serving_system(broker310, database_url, tmp_path / "data") as (system, http):
        client = Client(str(http.base_url))
        paper = tmp_path / "paper.pdf"
        paper.write_bytes(PAPER)
        ordered = await asyncio.to_thread(client.process_references, paper)
        assert ordered.result is None
        with pytest.raises(Conflict):
            await asyncio.to_thread(client.job_references, ordered.job_id)
        waiting = await asyncio.to_thread(client.job_status, ordered.job_id)
        assert (waiting.current_stage, waiting.completed_stages) == (None, [])
        await system.start_worker("link")

        async def is_done() -> bool:
            status = await asyncio.to_thread(client.job_status, ordered.job_id)
            return status.completed_stages == STAGES and status.state == "succeeded"

        await eventually(is_done, 60, "the references")
        references = await asyncio.to_thread(client.job_references, ordered.job_id)
        assert titles(references) == ["On tides and their causes", "The sea"]
        text = await asyncio.to_thread(client.job_bibliography, ordered.job_id, "tei")
        assert '<title level="a">On tides and their causes</title>' in text
        parsed = await asyncio.to_thread(client.parse_references, ["A. Smith. The sea. 2004."])
        await asyncio.to_thread(client.wait, parsed.job_id, timeout=60)
        assert titles(await asyncio.to_thread(client.job_references, parsed.job_id)) == ["The sea"]
