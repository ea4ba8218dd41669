"""Documents in a listing: what they are called, and filters over several looks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from switchyard.services.ledger import Ledger
from switchyard.services.records.classes import DocumentClass
from switchyard.services.settings import Settings
from tests.integration.api.document_server import send, serving
from tests.support.api_server import problem
from tests.support.commands import jobctl


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, amqp_url=None)


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(settings) as opened:
        yield opened


async def test_a_document_goes_by_the_title_that_was_found_in_it_as_in_search(
    client: httpx.AsyncClient,
):
    text = "# On tides\n\nThe tide rises twice a day, and falls as often."
    sent = (await send(client, text.encode(), name="scan-0017.md")).json()
    named = (await send(client, b"Waves of the sea.", name="b.txt", title="My waves")).json()
    listed = (await client.get("/documents")).json()["documents"]
    titles = {each["document_id"]: each["title"] for each in listed}
    assert titles == {sent["document_id"]: "On tides", named["document_id"]: "My waves"}
    shown = (await client.get(f"/documents/{sent['document_id']}")).json()
    assert (shown["title"], shown["filename"]) == ("On tides", "scan-0017.md")
    hits = (await client.post("/search", json={"query": "tide"})).json()["hits"]
    assert hits[0]["title"] == "On tides"


async def test_a_class_is_asked_for_in_every_look_for_documents_of_a_state(
    client: httpx.AsyncClient, settings: Settings
):
    async with await Ledger.open(settings.ledger_url) as ledger:
        for name, state in (("wanted", "classifying"), ("newer", "linking")):
            await ledger.upsert_document(f"hash of {name}", document_id=name, state=state)
            await ledger.put_classes(name, [DocumentClass("privacy", "public", 1.0)])
    filters = {"state": "classifying", "class": "privacy:public", "limit": "1"}
    answer = await client.get("/documents", params=filters)
    assert answer.status_code == 200, answer.text
    assert [each["document_id"] for each in answer.json()["documents"]] == ["wanted"]


async def test_a_state_in_which_no_document_can_be_is_an_error_and_no_empty_list(
    client: httpx.AsyncClient,
):
    told = problem(await client.get("/documents", params={"state": "complete"}), 422, "invalid")
    assert "no document state 'complete': did you mean 'completed'?" in told["detail"]
    assert "needs_ocr" in told["detail"]
    answer = await client.get("/documents", params={"state": "needs_ocr"})
    assert answer.json()["documents"] == []


async def test_a_class_that_no_document_has_is_said_with_those_that_there_are(
    client: httpx.AsyncClient,
):
    await send(client, b"The tide table of the harbour.", name="a.txt")

    async def typed(*arguments: str) -> str:
        environment = {"JOBS_API_URL": str(client.base_url), "NO_PROXY": "*"}
        ended = await jobctl(*arguments, **environment)
        return ended.stdout + ended.stderr

    for arguments in (["documents", "list"], ["search", "tide"]):
        said = await typed(*arguments, "--class", "privacy:secrett")
        assert "No document is of the class privacy:secrett; the newest have " in said
        assert "privacy:public" in said
