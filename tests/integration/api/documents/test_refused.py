"""Uploads that are no documents, no forms or too large are refused, and leave no files behind."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.samples.articles import sample
from tests.integration.api.document_server import NewFileLister, files_of, in_parts, send, serving
from tests.support.pdfs import encrypted, pdf, sized


@pytest.mark.parametrize(
    ("content", "name", "reason"),
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
async def test_a_file_of_another_type_is_refused_by_its_content(
    client: httpx.AsyncClient, list_new_files: NewFileLister, content: bytes, name: str, reason: str
):
    answer = await send(client, content, name=name)
    assert answer.status_code == 415
    assert answer.headers["content-type"] == "application/problem+json"
    assert reason in answer.json()["detail"]
    assert not list_new_files()


async def test_a_pdf_is_accepted_under_any_name(client: httpx.AsyncClient):
    answer = await send(client, pdf(["No picture."]), name="picture.png")
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


@pytest.mark.parametrize(
    "name",
    ["../../../../etc/passwd", "/etc/cron.d/x", "..\\\\..\\\\boot.ini", "a/../b\tc.pdf", "." * 300],
)
async def test_a_file_name_is_never_a_path(
    client: httpx.AsyncClient, settings: Settings, list_new_files: NewFileLister, name: str
):
    answer = await send(client, pdf([f"Its name has {len(name)} letters."]), name=name)
    assert answer.status_code == 201, answer.text
    document = answer.json()
    assert "/" not in document["filename"]
    assert "\\" not in document["filename"]
    keys = [str(path.relative_to(settings.data_dir / "files")) for path in list_new_files()]
    assert all(document["document_id"] in key for key in keys), keys
    paths = settings.data_dir.parent.rglob("*")
    outside = [path for path in paths if not path.is_relative_to(settings.data_dir)]
    assert outside == []


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"hello", "text/plain"),
        (b"hello", "multipart/form-data"),
        (b"no boundary at all", "multipart/form-data; boundary=b"),
        (b"--b--\r\n", "multipart/form-data; boundary=b"),
        (
            b'--b\r\nContent-Disposition: form-data; name="title"\r\n\r\nx\r\n--b--\r\n',
            "multipart/form-data; boundary=b",
        ),
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
        "cut off behind the file",
        "two files",
        "headers",
    ],
)
async def test_anything_but_a_form_with_one_file_is_refused(
    client: httpx.AsyncClient, list_new_files: NewFileLister, body: bytes, content_type: str
):
    answer = await client.post("/documents", content=body, headers={"Content-Type": content_type})
    assert answer.status_code == 400, answer.text
    assert not list_new_files()


@pytest.mark.parametrize(
    "fields",
    [
        {"lane": "maintenance"},
        {"title": "x" * 1001},
        {"path": "/etc/passwd"},
        {"tags": "team=search"},
        {"tags": '{"Team": "a"}'},
    ],
)
async def test_fields_are_checked(
    client: httpx.AsyncClient, list_new_files: NewFileLister, fields: dict
):
    answer = await send(client, pdf(), **fields)
    assert answer.status_code == 422
    assert not list_new_files()


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
        assert not files_of(settings)
        assert (await send(client, pdf())).status_code == 201


async def test_an_upload_beyond_the_storage_quota_is_refused(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, amqp_url=None, storage_quota=30_000)
    async with serving(settings) as client:
        too_large = await send(client, in_parts(b"%PDF-1.7\n" + b"word " * 8_000, 10_000))
        assert (too_large.status_code, too_large.json()["type"]) == (507, "/problems/storage-full")
        assert not files_of(settings)
        assert (await send(client, pdf())).status_code == 201
    await Storage(settings.files_url).put_async("results/other/result.json", bytes(30_000))
    async with serving(settings) as client:
        assert (await send(client, pdf(["other"]))).status_code == 507
        documents = (await client.get("/documents")).json()["documents"]
        assert len(documents) == 1
