"""The answer to an upload without a broker, and the requests for its results later."""

from __future__ import annotations

import json

import httpx
import pytest

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import (
    page_key,
    references_key,
    result_key,
    stage_key,
)
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.samples.articles import sample
from tests.integration.api.document_server import NewFileLister, send
from tests.integration.pipeline.documents import STAGES
from tests.support.metrics import Scrape
from tests.support.pdfs import encrypted, pdf, scan, scanned, slips


async def test_an_upload_is_answered_with_its_result(
    client: httpx.AsyncClient, list_new_files: NewFileLister
):
    answer = await send(client, sample(0).content, source="https://example.org/0", title="Mine")
    assert answer.status_code == 201, answer.text
    document = answer.json()
    assert (document["state"], document["error"]) == ("completed", None)
    assert document["completed_stages"] == STAGES
    assert document["result"]["summary"]["method"] == "extractive"
    assert (document["result"]["title"], document["result"]["source"]) == (
        "Mine",
        "https://example.org/0",
    )
    assert answer.headers["location"] == f"/documents/{document['document_id']}"
    again = (await client.get(answer.headers["location"])).json()
    assert again == {**document, "result": None}
    assert not list_new_files("uploads/incoming")


async def test_the_stages_are_in_the_metrics_although_no_worker_runs_them(
    own_client: httpx.AsyncClient,
):
    assert (await send(own_client, sample(0).content)).status_code == 201
    metrics = Scrape((await own_client.get("/metrics")).text)
    counted = {"lane": "hot", "outcome": "succeeded"}
    for stage in STAGES:
        assert metrics.value("switchyard_job_attempts_total", job_type=stage, **counted) == 1, stage
    assert metrics.value("switchyard_job_duration_seconds_count") == len(STAGES)


async def test_references_are_not_found_until_they_are_stored(
    client: httpx.AsyncClient, settings: Settings
):
    document = (await send(client, pdf(["one page"]))).json()
    address = f"/documents/{document['document_id']}/references"
    no_references = await client.get(address)
    assert no_references.status_code == 404
    assert "hot.process_references" in no_references.json()["detail"]
    stored_references = {"document_id": document["document_id"], "references": [], "citations": []}
    storage = Storage(settings.files_url)
    await storage.put_async(
        references_key(document["document_id"]), json.dumps(stored_references).encode()
    )
    assert (await client.get(address)).json() == stored_references
    assert (await client.get("/documents/unknown/references")).status_code == 404


@pytest.mark.parametrize(
    ("format_name", "media_type", "beginning"),
    [
        ("bibtex", "application/x-bibtex", "@article{roe1999tides,"),
        ("csl", "application/vnd.citationstyles.csl+json", '[\n {\n  "id": "roe1999tides"'),
        ("tei", "application/tei+xml", "<?xml"),
    ],
)
async def test_references_are_served_in_the_requested_format(
    client: httpx.AsyncClient, settings: Settings, format_name: str, media_type: str, beginning: str
):
    document_id = (await send(client, pdf(["a text"]))).json()["document_id"]
    reference = {
        "text": "Roe: Tides. Sea 3, 1999.",
        "authors": [{"family": "Roe", "given": "R."}],
        "title": "Tides & harbours",
        "container": "Sea",
        "year": 1999,
    }
    stored_references = {"document_id": document_id, "references": [reference], "citations": []}
    storage = Storage(settings.files_url)
    await storage.put_async(references_key(document_id), json.dumps(stored_references).encode())
    address = f"/documents/{document_id}/references"
    by_name = await client.get(address, params={"format": format_name})
    by_type = await client.get(address, headers={"Accept": f"text/html, {media_type};q=0.9"})
    assert by_name.status_code == by_type.status_code == 200
    assert by_name.headers["content-type"].partition(";")[0] == media_type
    assert by_name.text.startswith(beginning)
    assert (by_type.headers["content-type"], by_type.text) == (
        by_name.headers["content-type"],
        by_name.text,
    )
    other = await client.get(address, params={"format": "json"}, headers={"Accept": media_type})
    assert other.json() == stored_references
    bad_format = await client.get(address, params={"format": "ris"})
    assert (bad_format.status_code, bad_format.json()["type"]) == (422, "/problems/invalid")


async def test_the_result_has_the_text_on_request(client: httpx.AsyncClient):
    document = (await send(client, pdf(["one page", "and another"]))).json()
    address = f"/documents/{document['document_id']}/result"
    plain = (await client.get(address)).json()
    assert plain == document["result"]
    with_text = (await client.get(address, params={"include": "text"})).json()
    assert with_text == plain | {
        "pages": [{"page": 1, "text": "one page"}, {"page": 2, "text": "and another"}]
    }


async def test_pages_are_served_one_by_one(client: httpx.AsyncClient):
    document = (await send(client, pdf(["The first page.", "", "The third."]))).json()
    address = f"/documents/{document['document_id']}/pages"
    assert (await client.get(f"{address}/1")).json() == {
        "document_id": document["document_id"],
        "page": 1,
        "page_count": 3,
        "text": "The first page.",
    }
    assert (await client.get(f"{address}/2")).json()["text"] == ""
    beyond = await client.get(f"{address}/4")
    assert beyond.status_code == 404
    assert "it has 3" in beyond.json()["detail"]
    assert (await client.get(f"{address}/0")).status_code == 422
    assert (await client.get("/documents/nothing/pages/1")).status_code == 404


async def test_a_page_is_served_as_soon_as_ocr_has_read_it(
    client: httpx.AsyncClient, settings: Settings
):
    document_id = (await send(client, pdf(["The first page.", ""]))).json()["document_id"]
    storage = Storage(settings.files_url)
    content = json.loads(await storage.get_async(stage_key(document_id, "extract_text")))["content"]
    for content_id, expected_text in ((content, "From a scan."), ("of another version", "")):
        read = {"text": "From a scan.", "content": content_id}
        await storage.put_async(page_key(document_id, "ocr_pdf", 2), json.dumps(read).encode())
        assert (await client.get(f"/documents/{document_id}/pages/2")).json()[
            "text"
        ] == expected_text


@pytest.mark.long
async def test_a_document_of_images_alone_is_read_by_ocr(own_client: httpx.AsyncClient):
    document = (await send(own_client, scan(slips(["A heron in the reeds"])))).json()
    assert (document["state"], document["result"]["title"]) == ("completed", "A heron in the reeds")
    blank = await send(own_client, scanned())
    assert blank.status_code == 422
    assert "no words" in blank.json()["detail"]


@pytest.mark.parametrize(
    "document_id", ["..%2F..%2Fetc%2Fpasswd", "%00", "a%00b", "x" * 65, "'; DROP TABLE documents"]
)
async def test_an_invalid_document_id_is_refused(client: httpx.AsyncClient, document_id: str):
    for address in (f"/documents/{document_id}", f"/documents/{document_id}/result"):
        assert (await client.get(address)).status_code in (404, 422)


async def test_an_unknown_document_is_not_found(client: httpx.AsyncClient):
    for address in ("/documents/nothing", "/documents/nothing/result", "/extract/text/nothing"):
        answer = await client.get(address)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


async def test_extracted_text_is_returned_at_once(
    client: httpx.AsyncClient, list_new_files: NewFileLister
):
    before = (await client.get("/documents")).json()
    answer = await send(client, pdf(["a page", "and its neighbour"]), endpoint="/extract/text")
    assert answer.status_code == 200, answer.text
    result = answer.json()["result"]
    assert [page["text"] for page in result["pages"]] == ["a page", "and its neighbour"]
    assert (await client.get(answer.headers["location"])).json() == result
    assert (await client.get("/documents")).json() == before
    assert [path.name for path in list_new_files()] == ["result.json"]
    assert json.loads(list_new_files()[0].read_bytes()) == result


async def test_the_error_says_why_text_can_not_be_extracted(client: httpx.AsyncClient):
    answer = await send(client, encrypted("secret"), endpoint="/extract/text")
    assert (answer.status_code, answer.json()["error_type"]) == (422, "EncryptedDocument")
    assert (await send(client, b"\x89PNG" + bytes(50), endpoint="/extract/text")).status_code == 415


async def test_samples_are_made_and_processed(client: httpx.AsyncClient):
    body = {"count": 2, "seed": 1, "kinds": ["letter", "invoice"], "languages": ["en"]}
    answer = await client.post("/documents/generate", json=body)
    assert answer.status_code == 201, answer.text
    samples = answer.json()["documents"]
    assert [(each["kind"], each["language"]) for each in samples] == [
        ("letter", "en"),
        ("invoice", "en"),
    ]
    for each in samples:
        document = (await client.get(f"/documents/{each['document_id']}")).json()
        assert (document["state"], document["filename"]) == ("completed", each["filename"])
    again = await client.post("/documents/generate", json=body)
    assert again.json()["documents"] == samples


async def test_samples_of_an_unknown_kind_are_refused(client: httpx.AsyncClient):
    for body in ({"kinds": ["poem"]}, {"languages": ["xx"]}, {"count": 51}):
        answer = await client.post("/documents/generate", json=body)
        assert answer.status_code == 422, answer.text
    assert (
        "use en, de"
        in (await client.post("/documents/generate", json={"languages": ["xx"]})).json()["detail"]
    )


async def test_the_document_and_each_hit_name_its_unreadable_pages(
    client: httpx.AsyncClient, settings: Settings
):
    document = (await send(client, pdf(["The cormorant dries its wings."]))).json()
    assert document["unreadable_pages"] == []
    key = result_key(document["document_id"])
    storage = Storage(settings.files_url)
    result = json.loads(await storage.get_async(key)) | {
        "unreadable_pages": [3, 4, 5],
        "page_errors": {"4": "too costly"},
    }
    await storage.put_async(key, json.dumps(result).encode())
    status = (await client.get(f"/documents/{document['document_id']}")).json()
    assert status["unreadable_pages"] == [3, 4, 5]
    assert status["page_errors"] == {"4": "too costly"}
    results = (await client.post("/search", json={"query": "cormorant"})).json()
    hits = [hit for hit in results["hits"] if hit["document_id"] == document["document_id"]]
    assert [hit["unreadable_pages"] for hit in hits] == [[3, 4, 5]]


async def test_a_text_is_read_in_the_charset_that_its_sender_names(
    client: httpx.AsyncClient, settings: Settings
):
    text = "The toll of the mole is 5 €, and it’s “dear” to everybody who lives there."
    content_type = "text/plain; charset=ISO-8859-1"
    files = {"file": ("toll.txt", text.encode("cp1252"), content_type)}
    document = (await client.post("/documents", files=files)).json()
    stored_text = Storage(settings.files_url).get(f"uploads/{document['document_id']}/input.txt")
    assert stored_text.decode() == text
