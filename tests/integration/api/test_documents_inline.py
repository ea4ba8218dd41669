"""Documents without a broker: the answer to an upload is what was made of it."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pymupdf
import pytest

from switchyard.services.documents.desk import open_desks
from switchyard.services.documents.inbox import About
from switchyard.services.documents.runs import run_id
from switchyard.services.files.keys import references_key
from switchyard.services.files.storage import Storage
from switchyard.services.identity.places import MARKER
from switchyard.services.jobs.registry import Registry
from switchyard.services.ledger import Ledger
from switchyard.services.samples.articles import sample
from switchyard.services.settings import Settings
from tests.integration.api.document_server import in_parts, send, serving
from tests.integration.pipeline.documents import STAGES
from tests.support import made
from tests.support.eventually import eventually
from tests.support.ledgers import make_ledger
from tests.support.pdfs import encrypted, pdf, scan, scanned, sized, slips


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", amqp_url=None, retry_delays=(0.05, 0.1))


@pytest.fixture
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(settings) as opened:
        yield opened


def stored(settings: Settings, below: str = "") -> list[Path]:
    root = settings.data_dir / "files" / below
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != MARKER)


async def test_an_upload_is_answered_with_its_result(client: httpx.AsyncClient, settings: Settings):
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
    assert not stored(settings, "uploads/incoming")


async def test_references_are_told_once_they_were_looked_for(
    client: httpx.AsyncClient, settings: Settings
):
    document = (await send(client, pdf(["one page"]))).json()
    address = f"/documents/{document['document_id']}/references"
    none_yet = await client.get(address)
    assert none_yet.status_code == 404
    assert "hot.process_references" in none_yet.json()["detail"]
    made = {"document_id": document["document_id"], "references": [], "citations": []}
    storage = Storage(settings.files_url)
    await storage.put_async(references_key(document["document_id"]), json.dumps(made).encode())
    assert (await client.get(address)).json() == made
    assert (await client.get("/documents/unknown/references")).status_code == 404


@pytest.mark.parametrize(
    ("named", "media_type", "begins"),
    [
        ("bibtex", "application/x-bibtex", "@article{roe1999tides,"),
        ("csl", "application/vnd.citationstyles.csl+json", '[\n {\n  "id": "roe1999tides"'),
        ("tei", "application/tei+xml", "<?xml"),
    ],
)
async def test_references_are_had_in_the_format_that_is_asked_for(
    client: httpx.AsyncClient, settings: Settings, named: str, media_type: str, begins: str
):
    document_id = (await send(client, pdf(["a text"]))).json()["document_id"]
    reference = {
        "text": "Roe: Tides. Sea 3, 1999.",
        "authors": [{"family": "Roe", "given": "R."}],
        "title": "Tides & harbours",
        "container": "Sea",
        "year": 1999,
    }
    made = {"document_id": document_id, "references": [reference], "citations": []}
    storage = Storage(settings.files_url)
    await storage.put_async(references_key(document_id), json.dumps(made).encode())
    address = f"/documents/{document_id}/references"
    by_name = await client.get(address, params={"format": named})
    by_type = await client.get(address, headers={"Accept": f"text/html, {media_type};q=0.9"})
    assert by_name.status_code == by_type.status_code == 200
    assert by_name.headers["content-type"].partition(";")[0] == media_type
    assert by_name.text.startswith(begins)
    assert (by_type.headers["content-type"], by_type.text) == (
        by_name.headers["content-type"],
        by_name.text,
    )
    other = await client.get(address, params={"format": "json"}, headers={"Accept": media_type})
    assert other.json() == made
    wrong = await client.get(address, params={"format": "ris"})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "/problems/invalid")


async def test_the_result_has_the_text_on_request(client: httpx.AsyncClient):
    document = (await send(client, pdf(["one page", "and another"]))).json()
    address = f"/documents/{document['document_id']}/result"
    plain = (await client.get(address)).json()
    assert plain == document["result"]
    whole = (await client.get(address, params={"include": "text"})).json()
    assert whole == plain | {
        "pages": [{"page": 1, "text": "one page"}, {"page": 2, "text": "and another"}]
    }


async def test_the_same_content_is_the_same_document(client: httpx.AsyncClient, settings: Settings):
    first = await send(client, sample(0).content)
    files = stored(settings)
    again = await send(client, sample(0).content, name="other.pdf", source="elsewhere")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["duplicate"]
    assert again.json() | {"duplicate": False} == first.json()
    assert stored(settings) == files


async def test_the_same_source_is_the_same_document(client: httpx.AsyncClient, settings: Settings):
    first = (await send(client, sample(0).content, source="here")).json()
    files = stored(settings)
    again = await send(client, sample(1).content, source="here")
    assert again.status_code == 200
    assert again.json()["document_id"] == first["document_id"]
    assert stored(settings) == files


@pytest.mark.parametrize("same", ["content", "source"])
async def test_uploads_at_the_same_time_make_one_document(client: httpx.AsyncClient, same: str):
    contents = [sample(0 if same == "content" else number).content for number in range(4)]
    answers = await asyncio.gather(*(send(client, each, source="here") for each in contents))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["document_id"] for answer in answers}) == 1
    listed = (await client.get("/documents")).json()["documents"]
    assert len(listed) == 1
    jobs = (await client.get("/jobs", params={"limit": "100"})).json()["jobs"]
    ran = sorted(job["job_type"] for job in jobs if job["job_type"] != "ingest_document")
    assert ran == sorted(STAGES[1:])


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "paper.pdf", "no PDF"),
        (b"PK\x03\x04" + bytes(9000), "paper.pdf", "ZIP"),
        (b"<html><body>hello</body></html>", "paper.pdf", "HTML"),
        (b"", "paper.pdf", "empty"),
        (b"not a pdf at all\n", "Paper.PDF", "no PDF"),
        (b"not a pdf at all\n" * 9000, "paper.pdf", "no PDF"),
        (bytes(range(256)) * 40, "notes.txt", "binary"),
    ],
)
async def test_what_is_no_document_is_told_by_its_content(
    client: httpx.AsyncClient, settings: Settings, content: bytes, name: str, said: str
):
    answer = await send(client, content, name=name)
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]
    assert not stored(settings)


async def test_a_pdf_is_taken_whatever_it_is_called(client: httpx.AsyncClient):
    answer = await send(client, pdf(), name="picture.png")
    assert answer.json()["media_type"] == "application/pdf"


@pytest.mark.parametrize(
    ("content", "error_type"),
    [
        (sample(0).content[:-700], "CorruptDocument"),
        (encrypted("secret"), "EncryptedDocument"),
        (sized(14400, 14400), "DocumentTooLarge"),
    ],
    ids=["truncated", "encrypted", "too many pixels"],
)
async def test_a_pdf_that_can_not_be_read_is_refused_with_the_reason(
    client: httpx.AsyncClient, content: bytes, error_type: str
):
    answer = await send(client, content)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["type"] == "/problems/document-unreadable"
    assert (problem["error_type"], problem["current_stage"]) == (error_type, "extract_text")
    status = (await client.get(f"/documents/{problem['document_id']}")).json()
    assert status["state"] == "failed"
    assert status["error"]["job_id"] == problem["job_id"]
    result = await client.get(f"/documents/{problem['document_id']}/result")
    assert (result.status_code, result.json()["type"]) == (409, "/problems/document-failed")


async def test_a_document_that_has_failed_is_taken_up_anew(client: httpx.AsyncClient):
    content = encrypted("secret")
    first, second = [(await send(client, content)).json() for _ in range(2)]
    assert first["document_id"] == second["document_id"]
    assert first["job_id"] != second["job_id"]


async def test_a_file_gets_the_source_of_one_that_has_failed(client: httpx.AsyncClient):
    refused = (await send(client, encrypted("secret"), source="here")).json()
    better = await send(client, pdf(["At last."]), source="here")
    assert better.status_code == 201, better.text
    document = better.json()
    assert (document["state"], document["source"]) == ("completed", "here")
    assert document["document_id"] != refused["document_id"]
    failed = (await client.get(f"/documents/{refused['document_id']}")).json()
    assert (failed["state"], failed["source"]) == ("failed", None)
    for content in (pdf(["At last."]), encrypted("secret"), pdf(["Something else."])):
        again = await send(client, content, source="here")
        assert (again.status_code, again.json()["document_id"]) == (200, document["document_id"])
    assert (await send(client, pdf(["At last."]))).status_code == 200
    assert (await send(client, encrypted("secret"))).status_code == 422


async def test_a_bad_file_from_the_same_source_at_the_same_time_fails_alone(
    client: httpx.AsyncClient,
):
    for number in range(4):
        good, bad = pdf([f"Good, {number}."]), encrypted("secret")
        contents = [bad, good] if number % 2 else [good, bad]
        answers = await asyncio.gather(
            *(send(client, each, source=f"s{number}") for each in contents)
        )
        answer = answers[contents.index(good)]
        assert answer.status_code in (200, 201), answer.text
        address = f"/documents/{answer.json()['document_id']}/result"
        whole = (await client.get(address, params={"include": "text"})).json()
        assert [page["text"] for page in whole["pages"]] == [f"Good, {number}."]


async def test_a_file_that_lost_its_source_to_another_is_a_document_by_itself(
    client: httpx.AsyncClient,
):
    contents = [sample(number).content for number in range(4)]
    answers = await asyncio.gather(*(send(client, each, source="here") for each in contents))
    (winner,) = {answer.json()["document_id"] for answer in answers}
    alone = [await send(client, content) for content in contents]
    assert sorted(answer.status_code for answer in alone) == [200, 201, 201, 201]
    ids = {answer.json()["document_id"] for answer in alone}
    assert len(ids) == 4
    assert winner in ids
    for answer in alone:
        document_id = answer.json()["document_id"]
        assert (await client.get(f"/documents/{document_id}")).json()["document_id"] == document_id


async def test_a_run_that_found_its_document_known_does_not_hide_that_it_has_failed(
    client: httpx.AsyncClient, settings: Settings
):
    """As when a letter of the first run was redriven before the second one began, and died again:
    the file was there, and nothing came of it."""
    content = encrypted("secret")
    failed = (await send(client, content)).json()
    address = f"/documents/{failed['document_id']}"
    first = (await client.get(address)).json()
    async with await Ledger.open(settings.ledger_url) as ledger:
        idle = made.new_job(made.message(run_id(failed["document_id"], after=first["job_id"])))
        await ledger.record(idle)
        await ledger.claim(made.claim(idle.message))
        result = {"document_id": failed["document_id"], "duplicate": True}
        await ledger.finish(made.finish(job_id=idle.message.job_id, result=result))
    now = (await client.get(address)).json()
    assert (now["state"], now["error"]) == ("failed", first["error"])
    again = await send(client, content)
    assert again.status_code == 422
    assert again.json()["job_id"] not in (failed["job_id"], idle.message.job_id)


@pytest.mark.long
async def test_images_alone_are_read(client: httpx.AsyncClient):
    document = (await send(client, scan(slips(["A heron in the reeds"])))).json()
    assert (document["state"], document["result"]["title"]) == ("completed", "A heron in the reeds")
    blank = await send(client, scanned())
    assert blank.status_code == 422
    assert "no words" in blank.json()["detail"]


async def test_pages_are_had_one_by_one(client: httpx.AsyncClient):
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


def huge_image() -> bytes:
    """20,000 by 20,000 pixels, packed into some kilobytes."""
    document = pymupdf.open()
    image = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 20_000, 20_000))
    image.clear_with(200)
    document.new_page().insert_image(pymupdf.Rect(50, 50, 500, 500), pixmap=image)
    return bytes(document.tobytes(deflate=True, deflate_images=True, no_new_id=True))


def many_pages() -> bytes:
    document = pymupdf.open()
    for _ in range(2_001):
        document.new_page(width=20, height=20)
    return bytes(document.tobytes(no_new_id=True))


def bloated_text() -> bytes:
    """A page whose content is 300 MB of blanks and some letters, in a small file."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(b"BT /F1 12 Tf 10 10 Td (hello there) Tj ET\n")]
    parts += [packer.compress(b" " * 1_000_000) for _ in range(300)]
    body = b"".join(parts) + packer.flush()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        (
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R"
            b"/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>>>"
        ),
        b"<</Filter/FlateDecode/Length %d>>stream\n%b\nendstream" % (len(body), body),
    ]
    made, at = b"%PDF-1.5\n", []
    for number, each in enumerate(objects, start=1):
        at.append(len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in at)
    start = len(made)
    made += b"xref\n0 5\n0000000000 65535 f \n" + table
    return made + b"trailer<</Size 5/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % start


@pytest.mark.parametrize("bomb", [huge_image, many_pages, bloated_text])
async def test_a_small_file_that_would_grow_huge_does_no_harm(client: httpx.AsyncClient, bomb):
    content = bomb()
    assert len(content) < 2_000_000
    answer, alive = await asyncio.gather(send(client, content), client.get("/documents"))
    assert alive.status_code == 200
    if bomb is bloated_text:
        assert answer.status_code in (201, 422), answer.text
    else:
        assert answer.status_code == 422
        assert answer.json()["error_type"] == "DocumentTooLarge"
    assert (await send(client, pdf())).status_code == 201


@pytest.mark.parametrize(
    "name",
    ["../../../../etc/passwd", "/etc/cron.d/x", "..\\\\..\\\\boot.ini", "a/../b\tc.pdf", "." * 300],
)
async def test_a_file_name_is_never_a_path(
    client: httpx.AsyncClient, settings: Settings, tmp_path: Path, name: str
):
    answer = await send(client, pdf(), name=name)
    assert answer.status_code == 201, answer.text
    document = answer.json()
    assert "/" not in document["filename"]
    assert "\\" not in document["filename"]
    keys = [str(path.relative_to(settings.data_dir / "files")) for path in stored(settings)]
    assert all(document["document_id"] in key for key in keys), keys
    outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(settings.data_dir)]
    assert outside == []


@pytest.mark.parametrize(
    "document_id", ["..%2F..%2Fetc%2Fpasswd", "%00", "a%00b", "x" * 65, "'; DROP TABLE documents"]
)
async def test_an_id_that_is_none_is_not_looked_up(client: httpx.AsyncClient, document_id: str):
    for address in (f"/documents/{document_id}", f"/documents/{document_id}/result"):
        assert (await client.get(address)).status_code in (404, 422)


async def test_an_unknown_document_is_not_found(client: httpx.AsyncClient):
    for address in ("/documents/nothing", "/documents/nothing/result", "/extract/text/nothing"):
        answer = await client.get(address)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


async def test_documents_are_listed_page_by_page(client: httpx.AsyncClient):
    sent = [(await send(client, sample(n).content, source=f"s{n}")).json() for n in range(3)]
    newest_first = [each["document_id"] for each in reversed(sent)]
    first = (await client.get("/documents", params={"limit": 2})).json()
    rest = await client.get("/documents", params={"limit": 2, "cursor": first["next_cursor"]})
    pages = [first["documents"], rest.json()["documents"]]
    assert [each["document_id"] for page in pages for each in page] == newest_first
    assert rest.json()["next_cursor"] is None
    by_source = (await client.get("/documents", params={"source": "s1"})).json()["documents"]
    assert [each["document_id"] for each in by_source] == [sent[1]["document_id"]]
    assert not (await client.get("/documents", params={"state": "failed"})).json()["documents"]


@pytest.mark.parametrize("query", ["cursor=nonsense", "limit=0", "limit=1001", "source=%00"])
async def test_a_listing_that_makes_no_sense_is_refused(client: httpx.AsyncClient, query: str):
    assert (await client.get(f"/documents?{query}")).status_code == 422


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"hello", "text/plain"),
        (b"hello", "multipart/form-data"),
        (b"no boundary at all", "multipart/form-data; boundary=b"),
        (b"--b--\r\n", "multipart/form-data; boundary=b"),
        (b'--b\r\nContent-Disposition: form-data; name="title"\r\n\r\nx\r\n--b--\r\n',) * 1
        + ("multipart/form-data; boundary=b",),
        (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nhello',
            "multipart/form-data; boundary=b",
        ),
        (
            (
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nhello'
                b'\r\n--b\r\nContent-Disposition: form-data; name="title"\r\n\r\nhalf a ti'
            ),
            "multipart/form-data; boundary=b",
        ),
        (
            (
                b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nhello'
                b'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="y"\r\n\r\nhi'
                b"\r\n--b--\r\n"
            ),
            "multipart/form-data; boundary=b",
        ),
        (
            b'--b\r\nContent-Disposition: form-data; name="' + b"x" * 20_000,
            "multipart/form-data; boundary=b",
        ),
    ],
    ids=[
        "no form",
        "no boundary",
        "not in parts",
        "empty",
        "no file",
        "cut off in the file",
        "cut off behind it",
        "two files",
        "headers",
    ],
)
async def test_what_is_no_form_with_one_file_is_refused(
    client: httpx.AsyncClient, settings: Settings, body: bytes, content_type: str
):
    answer = await client.post("/documents", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400, answer.text
    assert not stored(settings)


@pytest.mark.parametrize(
    "fields", [{"lane": "maintenance"}, {"title": "x" * 1001}, {"path": "/etc/passwd"}]
)
async def test_fields_are_checked(client: httpx.AsyncClient, settings: Settings, fields: dict):
    answer = await send(client, pdf(), **fields)
    assert answer.status_code == 422
    assert not stored(settings)


async def test_fields_before_the_file_count_as_those_behind_it(client: httpx.AsyncClient):
    files = {"file": ("a.md", b"# On Tides\n\nThe tide rises.", "application/pdf")}
    answer = await client.post("/documents", data={"title": "Ebb\x00 and flow"}, files=files)
    assert (answer.status_code, answer.json()["title"]) == (201, "Ebb and flow")
    assert answer.json()["media_type"] == "text/markdown"


async def test_a_file_over_the_limit_is_refused_while_it_comes_in(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, amqp_url=None, max_document_bytes=100_000)
    async with serving(settings) as client:
        answer = await send(client, in_parts(b"%PDF-1.7\n" + bytes(150_000), 10_000))
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")
        assert not stored(settings)
        assert (await send(client, pdf())).status_code == 201


async def test_a_full_storage_takes_no_more_in(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, amqp_url=None, storage_quota=30_000)
    async with serving(settings) as client:
        too_large = await send(client, in_parts(b"%PDF-1.7\n" + b"word " * 8_000, 10_000))
        assert (too_large.status_code, too_large.json()["type"]) == (507, "/problems/storage-full")
        assert not stored(settings)
        assert (await send(client, pdf())).status_code == 201
    await Storage(settings.files_url).put_async("results/other/result.json", bytes(30_000))
    async with serving(settings) as client:
        assert (await send(client, pdf(["other"]))).status_code == 507
        found = (await client.get("/documents")).json()["documents"]
        assert len(found) == 1


async def test_a_pipeline_that_the_process_did_not_finish_goes_on_with_the_next_upload(
    tmp_path: Path,
):
    settings = Settings(data_dir=tmp_path, amqp_url=None)
    await make_ledger(settings.ledger_url)
    async with await Ledger.open(settings.ledger_url) as ledger:
        async with open_desks(settings, Registry.load(), ledger, None) as desks:
            inbox = desks.documents.inbox
            upload = await inbox.receive(in_parts(sample(0).content, 10_000))
            submitting = asyncio.create_task(desks.documents.submit(upload, About()))

            async def begun() -> bool:
                return bool((await ledger.list_documents()).items)

            await eventually(begun)
        submitting.cancel()
        await asyncio.gather(submitting, return_exceptions=True)
        assert (await ledger.list_documents()).items[0].state != "completed"
    async with serving(settings) as client:
        answer = await send(client, sample(0).content)
        assert (answer.status_code, answer.json()["state"]) == (200, "completed"), answer.text


async def test_the_text_alone_is_answered_at_once(client: httpx.AsyncClient, settings: Settings):
    answer = await send(client, pdf(["one page", "and another"]), to="/extract/text")
    assert answer.status_code == 200, answer.text
    result = answer.json()["result"]
    assert [page["text"] for page in result["pages"]] == ["one page", "and another"]
    assert (await client.get(answer.headers["location"])).json() == result
    assert not (await client.get("/documents")).json()["documents"]
    assert [path.name for path in stored(settings)] == ["result.json"]
    assert json.loads(stored(settings)[0].read_bytes()) == result


async def test_text_that_can_not_be_had_is_refused_with_the_reason(client: httpx.AsyncClient):
    answer = await send(client, encrypted("secret"), to="/extract/text")
    assert (answer.status_code, answer.json()["error_type"]) == (422, "EncryptedDocument")
    assert (await send(client, b"\x89PNG" + bytes(50), to="/extract/text")).status_code == 415


async def test_samples_are_made_and_go_through(client: httpx.AsyncClient, settings: Settings):
    wanted = {"count": 2, "seed": 1, "kinds": ["letter", "invoice"], "languages": ["en"]}
    answer = await client.post("/documents/generate", json=wanted)
    assert answer.status_code == 201, answer.text
    made = answer.json()["documents"]
    assert [(each["kind"], each["language"]) for each in made] == [
        ("letter", "en"),
        ("invoice", "en"),
    ]
    for each in made:
        document = (await client.get(f"/documents/{each['document_id']}")).json()
        assert (document["state"], document["filename"]) == ("completed", each["filename"])
    again = await client.post("/documents/generate", json=wanted)
    assert again.json()["documents"] == made


async def test_samples_of_an_unknown_kind_are_refused(client: httpx.AsyncClient):
    for wanted in ({"kinds": ["poem"]}, {"languages": ["xx"]}, {"count": 51}):
        answer = await client.post("/documents/generate", json=wanted)
        assert answer.status_code == 422, answer.text
    assert (
        "use en, de"
        in (await client.post("/documents/generate", json={"languages": ["xx"]})).json()["detail"]
    )


async def test_documents_are_listed_and_searched_by_class(client: httpx.AsyncClient):
    secret = (await send(client, pdf(["Strictly confidential: the tide table."]))).json()
    public = (await send(client, pdf(["The tide table of the harbour."]))).json()
    privacy = [each for each in secret["classes"] if each["kind"] == "privacy"]
    assert [(each["label"], each["why"]["keywords"]) for each in privacy] == [
        ("restricted", {"strictly confidential": 1})
    ]

    async def listed(*classes: str) -> set[str]:
        answer = await client.get("/documents", params={"class": classes})
        assert answer.status_code == 200, answer.text
        return {each["document_id"] for each in answer.json()["documents"]}

    async def found(*classes: str) -> set[str]:
        body = {"query": "tide table", "filters": {"classes": classes}}
        answer = await client.post("/search", json=body)
        assert answer.status_code == 200, answer.text
        return {each["document_id"] for each in answer.json()["hits"]}

    both = {secret["document_id"], public["document_id"]}
    for names, wanted in (
        (["privacy:restricted"], {secret["document_id"]}),
        (["privacy:restricted", "privacy:public"], both),
        (["privacy:internal"], set()),
    ):
        assert await listed(*names) == wanted
        assert await found(*names) == wanted
    assert (await client.get("/documents", params={"class": "privacy"})).status_code == 422
    summary = (await client.get("/documents")).json()["documents"][0]
    assert summary["classes"] == public["classes"]
