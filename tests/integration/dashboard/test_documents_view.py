import asyncio
import json
import re
from pathlib import Path

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import (
    content_hash,
    figure_key,
    figures_key,
    references_key,
    upload_key,
)
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.records.results import Page
from switchyard.services.pipeline.documents.document_status import DocumentStatus
from switchyard.services.pipeline.documents.page_pictures import (
    MAX_WAITING_PAGES,
    PagePictures,
    StoredPage,
    TooManyPictures,
)
from switchyard.services.pipeline.graph.upserts import upsert_document
from switchyard.services.pipeline.text.ocr import SourceFile
from tests.integration.dashboard.test_signing_in import sign_in
from tests.support.api_server import RunningApi
from tests.support.browser import Browser
from tests.support.eventually import eventually
from tests.support.pdfs import pdf, scan, slips
from tests.support.system import System

INJECTION = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
DOCUMENTS = "/dashboard/documents"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d4944415478da63f8ffff3f0005fe02fea72d2c9d0000000049454e44ae426082"
)


async def wait_for_documents(system: System, api: RunningApi, number: int) -> Page[DocumentStatus]:
    """Wait until the pipelines of `number` documents have ended; return the documents."""
    documents = api.server.app.state.document_services.documents

    async def documents_page() -> Page[DocumentStatus] | None:
        page: Page[DocumentStatus] = await documents.documents(limit=50, cursor=None)
        done = len(page.items) == number and all(each.is_finished for each in page.items)
        return page if done else None

    return await eventually(documents_page, what="the end of the pipeline")


async def test_documents_are_uploaded_searched_and_opened_at_the_passage(
    system: System, api: RunningApi, browser: Browser, tmp_path: Path
) -> None:
    await system.start_worker("ingest", "llm", "embed", "link")
    tides = tmp_path / "tides.pdf"
    tides.write_bytes(pdf(["Of bread and flour.", "The Moon pulls at the water of the ocean."]))
    hostile = tmp_path / "hostile.md"
    hostile.write_text(f"# {INJECTION}\n\nThe tide rises twice a day. {INJECTION}\n")
    bad_file = tmp_path / "wrong.bin"
    bad_file.write_bytes(b"\x00\x01\x02" * 100)

    def send() -> None:
        browser.open(f"{api.url}{DOCUMENTS}")
        assert "There is no document yet." in browser.text("[data-region=live_documents]")
        files = "\n".join(map(str, (tides, hostile, bad_file)))
        browser.find("[data-upload] input[type=file][multiple]").send_keys(files)
        browser.click("[data-upload] button")
        browser.await_text("sent", ".uploads li:nth-child(1)")
        browser.await_text("sent", ".uploads li:nth-child(2)")
        browser.find(".uploads li:nth-child(3).failed")
        browser.wait(lambda: len(browser.all(".documents tbody tr")) == 2, "both documents")

    def read() -> None:
        browser.open(f"{api.url}{DOCUMENTS}")
        assert INJECTION[:40] in browser.text(".documents tbody")
        assert "completed" in browser.text(".documents tbody")
        browser.find("[data-search]").send_keys("moon pulls water\n")
        browser.find(".hits li:first-child mark")
        highlighted = [each.text for each in browser.all(".hits li:first-child mark")]
        assert highlighted == ["Moon", "pulls", "water"]
        browser.click(".hits li:first-child a")
        browser.await_text("The Moon pulls at the water", "#passage")
        assert "/pages/2" in browser.driver.current_url  # the passage is on the second page
        assert [each.text for each in browser.all("#passage mark")] == ["Moon", "pulls", "water"]
        browser.click(".eyebrow a:nth-child(2)")
        browser.await_text("extract text", ".run tbody")
        assert len(browser.all(".run .waterfall")) == 6
        assert browser.all("[data-region]") == []  # no live part: the run has ended
        browser.open(f"{api.url}{DOCUMENTS}/search?q=tide+rises")
        browser.click(".hits li:first-child a")
        browser.find(".page-text")
        assert INJECTION in browser.text(".page-text")
        assert browser.driver.title != "owned"
        assert not browser.all("main img, main script")
        refused = "the server responded with a status of 415"  # of the third file
        assert [each for each in browser.complaints() if refused not in each] == []

    await asyncio.to_thread(send)
    await wait_for_documents(system, api, 2)
    await asyncio.to_thread(read)


async def test_the_picture_of_a_page_is_shown_with_the_lines_that_ocr_has_read(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await system.start_worker("ingest", "llm", "embed", "link", "ocr")
    text = "The Moon pulls at the water of the ocean."
    sent = await api.client.post("/documents", files={"file": ("a.pdf", scan(slips([text])))})
    document_id = sent.json()["document_id"]
    await wait_for_documents(system, api, 1)
    page = f"{DOCUMENTS}/{document_id}/pages/1"

    def look() -> None:
        browser.open(f"{api.url}{page}?q=moon")
        size = "return document.querySelector('.page-picture img').naturalWidth"
        browser.wait(lambda: browser.run(size) > 400, "the picture")
        lines = browser.all(".page-picture rect title")
        assert "The Moon" in (lines[0].get_attribute("textContent") or "")
        assert len(browser.all(".page-picture rect.found")) == 1
        inside = """
            const [box, page] = [".page-picture rect", ".page-picture img"].map(
              (each) => document.querySelector(each).getBoundingClientRect());
            return box.width > 50 && box.left >= page.left && box.right <= page.right
              && box.top >= page.top && box.bottom <= page.bottom"""
        assert browser.run(inside)
        browser.click(".page-picture .toggle input")
        assert not browser.find(".page-picture svg").is_displayed()
        assert browser.complaints() == []

    await asyncio.to_thread(look)
    first = await api.client.get(f"{page}/picture")
    assert first.headers["content-type"] == "image/png"
    assert "script-src 'self'" in first.headers["content-security-policy"]
    etag = first.headers["etag"]
    again = await api.client.get(f"{page}/picture", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert (await api.client.get(f"{DOCUMENTS}/{document_id}/pages/2/picture")).status_code == 404

    key = await create_key(system.ledger, "publisher", [Scope.PUBLISH])
    await sign_in(api, key.key)
    assert (await api.client.get(f"{page}/picture")).status_code == 403


async def test_a_page_that_can_not_be_drawn_is_tried_once_and_its_text_is_shown(
    system: System, api: RunningApi, browser: Browser
) -> None:
    await system.start_worker("ingest", "llm", "embed", "link")
    sent = await api.client.post("/documents", files={"file": ("a.pdf", pdf(["They rise."]))})
    document_id = sent.json()["document_id"]
    await wait_for_documents(system, api, 1)
    storage = Storage(system.settings.files_url)
    key = upload_key(document_id, "application/pdf")
    content = await storage.get_async(key)
    await storage.put_async(key, b"%PDF-1.7 <script>")
    page = f"{DOCUMENTS}/{document_id}/pages/1"
    refused = await api.client.get(f"{page}/picture")
    assert refused.status_code == 404
    assert "can't be drawn: the PDF is corrupt" in refused.json()["detail"]
    await storage.put_async(key, content)
    assert (await api.client.get(f"{page}/picture")).status_code == 404  # the failure is remembered

    def look() -> None:
        browser.open(f"{api.url}{page}")
        browser.find(".page-picture.failed")
        assert "They rise." in browser.text(".page-text")

    await asyncio.to_thread(look)


async def test_pages_are_drawn_one_at_a_time_and_only_few_may_wait(system: System) -> None:
    storage = Storage(system.settings.files_url)
    await storage.put_async("pages.pdf", pdf(["They rise."] * 12))
    original = SourceFile(storage, "pages.pdf", "x", "application/pdf")
    pages = [StoredPage(original, number, f"etag-{number}") for number in range(1, 13)]
    async with PagePictures.open(system.settings) as pictures:
        results = await asyncio.gather(*map(pictures.draw, pages), return_exceptions=True)
        refused = [isinstance(each, TooManyPictures) for each in results]
        assert refused == [False] * (MAX_WAITING_PAGES + 1) + [True] * (11 - MAX_WAITING_PAGES)
        assert (await pictures.draw(pages[-1]))[1] == "image/png"


async def test_a_document_is_sent_by_a_form_without_scripts_and_its_results_are_shown(
    system: System, api: RunningApi
) -> None:
    await system.start_worker("ingest", "llm", "embed", "link")
    page = (await api.client.get(DOCUMENTS)).text
    action = re.search(r'action="(/dashboard/documents\?csrf=\w+)" enctype="multipart', page)
    assert action is not None
    file = {"file": (f"{INJECTION}.md", f"# Tides\n\nThey rise. {INJECTION}".encode())}
    sent = await api.client.post(action.group(1), files=file, data={"lane": "backfill"})
    assert sent.status_code == 303, sent.text
    document_url = sent.headers["location"]
    again = await api.client.post(action.group(1), files=file)
    assert again.headers["location"] == f"{document_url}?known=1"
    forged = await api.client.post(f"{DOCUMENTS}?csrf=x", files=file)
    assert forged.status_code == 403
    document_id = (await wait_for_documents(system, api, 1)).items[0].document_id
    assert document_url == f"{DOCUMENTS}/{document_id}"

    storage = Storage(system.settings.files_url)
    key = figure_key(document_id, content_hash(PNG), "png")
    figure = {
        "figure": 1,
        "page": 1,
        "kind": "figure",
        "caption": INJECTION,
        "description": INJECTION,
        "model": "eyes",
        "width": 1,
        "height": 1,
        "media_type": "image/png",
        "size": len(PNG),
        "key": key,
    }
    reference = {
        "text": INJECTION,
        "title": INJECTION,
        "doi": '10.1/"><script>',
        "url": "javascript:alert(1)",
    }
    await storage.put_async(key, PNG)
    figures = json.dumps({"content": "x", "figures": [figure]})
    await storage.put_async(figures_key(document_id), figures.encode())
    references = json.dumps({"document_id": document_id, "references": [reference]})
    await storage.put_async(references_key(document_id), references.encode())
    for name in (document_id, "other"):
        cited = {"references": [{"doi": "10.1234/b", "title": INJECTION}]}
        await upsert_document(system.ledger, name, {}, f"On {INJECTION}", references=cited)

    page = (await api.client.get(document_url)).text
    for heading in ("Stages", "Summary", "Figures", "References", "Cites the same works"):
        assert heading in page, heading
    assert 'class="card graph"' in page
    assert f'href="{DOCUMENTS}/other"' in page
    assert "https://doi.org/10.1/%22%3E%3Cscript%3E" in page
    assert "javascript:" not in page
    assert "<img src=x" not in page
    assert "<script>" not in page
    picture = await api.client.get(f"{document_url}/figures/1")
    assert (picture.content, picture.headers["content-type"]) == (PNG, "image/png")
    assert "content-security-policy" in picture.headers
    assert (await api.client.get(f"{document_url}/pages/2")).status_code == 404
    assert (await api.client.get(f"{DOCUMENTS}/nobody")).status_code == 404
    assert (await api.client.get(f"{DOCUMENTS}?class=x")).status_code == 422
    assert "No document matches." in (await api.client.get(f"{DOCUMENTS}?state=failed")).text

    key_of_reader = await create_key(system.ledger, "reader", [Scope.READ])
    await sign_in(api, key_of_reader.key)
    page = (await api.client.get(DOCUMENTS)).text
    assert "data-upload" not in page
    assert (await api.client.post(action.group(1), files=file)).status_code == 403
