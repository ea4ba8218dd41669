"""Listings of documents: titles, and filters by state and class."""

from __future__ import annotations

import httpx
import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import DocumentClass
from switchyard.services.pipeline.samples.articles import sample
from tests.integration.api.document_server import send
from tests.support.api_server import problem
from tests.support.commands import jobctl
from tests.support.pdfs import pdf


async def test_a_document_is_listed_and_found_under_the_title_in_its_text(
    own_client: httpx.AsyncClient,
):
    text = "# On tides\n\nThe tide rises twice a day, and falls as often."
    sent = (await send(own_client, text.encode(), name="scan-0017.md")).json()
    titled = (await send(own_client, b"Waves of the sea.", name="b.txt", title="My waves")).json()
    listed = (await own_client.get("/documents")).json()["documents"]
    titles = {each["document_id"]: each["title"] for each in listed}
    assert titles == {sent["document_id"]: "On tides", titled["document_id"]: "My waves"}
    details = (await own_client.get(f"/documents/{sent['document_id']}")).json()
    assert (details["title"], details["filename"]) == ("On tides", "scan-0017.md")
    hits = (await own_client.post("/search", json={"query": "tide"})).json()["hits"]
    assert hits[0]["title"] == "On tides"


async def test_filters_by_class_and_state_together_list_what_fits_both(
    own_client: httpx.AsyncClient, own_settings: Settings
):
    """The limit is 1, so a newer document of another state would hide the one that fits."""
    async with await Ledger.open(own_settings.ledger_url) as ledger:
        for name, state in (("wanted", "classifying"), ("newer", "linking")):
            await PipelineLedger(ledger).documents.upsert_document(
                f"hash of {name}", document_id=name, state=state
            )
            await PipelineLedger(ledger).document_classes.put_classes(
                name, [DocumentClass("privacy", "public", 1.0)]
            )
    filters = {"state": "classifying", "class": "privacy:public", "limit": "1"}
    answer = await own_client.get("/documents", params=filters)
    assert answer.status_code == 200, answer.text
    assert [each["document_id"] for each in answer.json()["documents"]] == ["wanted"]


async def test_an_unknown_state_is_an_error_instead_of_an_empty_list(
    own_client: httpx.AsyncClient,
):
    refused = problem(
        await own_client.get("/documents", params={"state": "complete"}), 422, "invalid"
    )
    assert "no document state 'complete': did you mean 'completed'?" in refused["detail"]
    assert "needs_ocr" in refused["detail"]
    answer = await own_client.get("/documents", params={"state": "needs_ocr"})
    assert answer.json()["documents"] == []


async def test_the_error_for_an_unused_class_lists_the_used_ones(
    own_client: httpx.AsyncClient,
):
    await send(own_client, b"The tide table of the harbour.", name="a.txt")

    async def run_command(*arguments: str) -> str:
        environment = {"JOBS_API_URL": str(own_client.base_url), "NO_PROXY": "*"}
        process_result = await jobctl(*arguments, **environment)
        return process_result.stdout + process_result.stderr

    for arguments in (["documents", "list"], ["search", "tide"]):
        error_text = await run_command(*arguments, "--class", "privacy:secrett")
        assert "No document is of the class privacy:secrett; the newest have " in error_text
        assert "privacy:public" in error_text


async def test_documents_are_listed_page_by_page(own_client: httpx.AsyncClient):
    sent = [(await send(own_client, sample(n).content, source=f"s{n}")).json() for n in range(3)]
    newest_first = [each["document_id"] for each in reversed(sent)]
    first = (await own_client.get("/documents", params={"limit": 2})).json()
    second = await own_client.get("/documents", params={"limit": 2, "cursor": first["next_cursor"]})
    pages = [first["documents"], second.json()["documents"]]
    assert [each["document_id"] for page in pages for each in page] == newest_first
    assert second.json()["next_cursor"] is None
    by_source = (await own_client.get("/documents", params={"source": "s1"})).json()["documents"]
    assert [each["document_id"] for each in by_source] == [sent[1]["document_id"]]
    assert not (await own_client.get("/documents", params={"state": "failed"})).json()["documents"]


@pytest.mark.parametrize("query", ["cursor=nonsense", "limit=0", "limit=1001", "source=%00"])
async def test_an_invalid_query_of_a_listing_is_refused(client: httpx.AsyncClient, query: str):
    assert (await client.get(f"/documents?{query}")).status_code == 422


async def test_documents_are_listed_and_searched_by_class(own_client: httpx.AsyncClient):
    secret = (await send(own_client, pdf(["Strictly confidential: the tide table."]))).json()
    public = (await send(own_client, pdf(["The tide table of the harbour."]))).json()
    privacy = [each for each in secret["classes"] if each["kind"] == "privacy"]
    assert [(each["label"], each["why"]["keywords"]) for each in privacy] == [
        ("restricted", {"strictly confidential": 1})
    ]

    async def listed_ids(*classes: str) -> set[str]:
        answer = await own_client.get("/documents", params={"class": classes})
        assert answer.status_code == 200, answer.text
        return {each["document_id"] for each in answer.json()["documents"]}

    async def found_ids(*classes: str) -> set[str]:
        body = {"query": "tide table", "filters": {"classes": classes}}
        answer = await own_client.post("/search", json=body)
        assert answer.status_code == 200, answer.text
        return {each["document_id"] for each in answer.json()["hits"]}

    both = {secret["document_id"], public["document_id"]}
    for names, expected in (
        (["privacy:restricted"], {secret["document_id"]}),
        (["privacy:restricted", "privacy:public"], both),
        (["privacy:internal"], set()),
    ):
        assert await listed_ids(*names) == expected
        assert await found_ids(*names) == expected
    assert (await own_client.get("/documents", params={"class": "privacy"})).status_code == 422
    entry = (await own_client.get("/documents")).json()["documents"][0]
    assert entry["classes"] == public["classes"]
