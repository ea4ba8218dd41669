"""An upload that is refused for the moment is sent again as a whole, and the user is informed."""

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
from switchyard.cli.base import api_client as calling
from switchyard.cli.pipeline.documents import app

CONTENT = b"The tide rises because of the moon."
FULL = {"type": "/problems/lane-full", "title": "The lane is full", "status": 503}
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
def refusing(times: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of an API that refuses so many uploads, and the bodies that it received."""
    bodies: list[bytes] = []

    class Api(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            is_refused = len(bodies) <= times
            body = json.dumps(FULL if is_refused else DOCUMENT).encode()
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


def test_a_refused_upload_is_sent_again_whole() -> None:
    errors: list[ApiError] = []
    with (
        refusing(2) as (url, bodies),
        Client(url, on_retry=lambda error, pause: errors.append(error)) as client,
    ):
        assert client.upload(io.BytesIO(CONTENT), filename="tide.txt").document_id == "d-1"
    assert [CONTENT in body for body in bodies] == [True] * 3
    assert [each.kind for each in errors] == ["lane-full"] * 2


async def test_an_upload_is_given_up_after_two_repeats(tmp_path: Path) -> None:
    path = tmp_path / "tide.txt"
    path.write_bytes(CONTENT)
    with refusing(9) as (url, bodies):
        async with AsyncClient(url) as client:
            with pytest.raises(Unavailable):
                await client.upload(path)
    assert [CONTENT in body for body in bodies] == [True] * 3


def test_a_stream_that_can_not_seek_is_sent_once() -> None:
    class Once(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with refusing(9) as (url, bodies), Client(url) as client, pytest.raises(Unavailable):
        client.upload(Once(CONTENT), filename="tide.txt")
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


def test_jobctl_says_that_it_sends_a_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tide.txt").write_bytes(CONTENT)
    monkeypatch.setattr(calling, "SHORT_PAUSE", -1.0)
    with refusing(1) as (url, _):
        monkeypatch.setenv("JOBS_API_URL", url)
        done = CliRunner().invoke(app, ["upload", str(tmp_path / "tide.txt")])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"d-1  {tmp_path / 'tide.txt'}\n"
    assert done.stderr == "trying again in 0 s: The lane is full\n"
