"""An upload that is refused temporarily is sent again from its beginning, and the user is told."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from switchyard.api.client import ApiError, ApiUnavailable, AsyncClient, Client, Unavailable
from switchyard.api.models.documents import DocumentView
from switchyard.cli.base import api_client
from switchyard.cli.pipeline.documents import app

CONTENT = b"The tide rises because of the moon."
LANE_FULL = {"type": "/problems/lane-full", "title": "The lane is full", "status": 503}
DOCUMENT = dict.fromkeys(DocumentView.model_fields) | {
    "document_id": "d-1",
    "state": "queued",
    "completed_stages": [],
    "classes": [],
    "duplicate": False,
    "created_at": "2026-01-05T09:00:00Z",
    "updated_at": None,
    "unreadable_pages": [],
    "page_errors": {},
}


@contextmanager
def serve_refusals(refusals: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of an API that refuses so many uploads, and the bodies that it received."""
    bodies: list[bytes] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            is_refused = len(bodies) <= refusals
            body = json.dumps(LANE_FULL if is_refused else DOCUMENT).encode()
            self.send_response(503 if is_refused else 202)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


def test_a_refused_upload_is_sent_again_from_its_beginning() -> None:
    errors: list[ApiError] = []
    with (
        serve_refusals(2) as (url, bodies),
        Client(url, on_retry=lambda error, pause: errors.append(error)) as client,
    ):
        assert client.upload(io.BytesIO(CONTENT), filename="tide.txt").document_id == "d-1"
    assert [CONTENT in body for body in bodies] == [True] * 3
    assert [each.kind for each in errors] == ["lane-full"] * 2


async def test_an_upload_is_given_up_after_two_repeats(tmp_path: Path) -> None:
    path = tmp_path / "tide.txt"
    path.write_bytes(CONTENT)
    with serve_refusals(9) as (url, bodies):
        async with AsyncClient(url) as client:
            with pytest.raises(Unavailable):
                await client.upload(path)
    assert [CONTENT in body for body in bodies] == [True] * 3


def test_a_stream_that_can_not_seek_is_sent_once() -> None:
    class Unseekable(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with serve_refusals(9) as (url, bodies), Client(url) as client, pytest.raises(Unavailable):
        client.upload(Unseekable(CONTENT), filename="tide.txt")
    assert len(bodies) == 1


def test_an_upload_without_an_answer_is_not_sent_again(unused_tcp_port: int) -> None:
    errors: list[ApiError] = []
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with (
        Client(url, on_retry=lambda error, pause: errors.append(error)) as client,
        pytest.raises(ApiUnavailable),
    ):
        client.upload(io.BytesIO(CONTENT))
    assert errors == []


def test_jobctl_prints_that_it_sends_a_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tide.txt").write_bytes(CONTENT)
    monkeypatch.setattr(api_client, "SHORT_PAUSE", -1.0)
    with serve_refusals(1) as (url, _):
        monkeypatch.setenv("JOBS_API_URL", url)
        result = CliRunner().invoke(app, ["upload", str(tmp_path / "tide.txt")])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"d-1  {tmp_path / 'tide.txt'}\n"
    assert result.stderr == "trying again in 0 s: The lane is full\n"
