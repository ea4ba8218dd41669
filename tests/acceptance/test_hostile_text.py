"""Text that would steer the terminal of whoever looks at it: it is shown, wherever it came from."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from tests.acceptance.conftest import ROOT, TIMEOUT, CommandLine
from tests.support.commands import commands
from tests.support.raw_amqp import RawPublisher, short
from tests.support.terminals import STEERING, TERMINAL, steering_in, terminal

LETTER = {"job_id": "raw\x1b[2J", "job_type": "work", "payload": {"text": STEERING}}


def shown(jobctl: CommandLine, *arguments: str, code: int = 0, **environment: str) -> str:
    """What a command prints on a terminal, where nothing may steer that."""
    with terminal() as (screen, came):
        done = commands().run(
            list(arguments),
            env=jobctl.environment | environment | TERMINAL,
            cwd=ROOT,
            stdin="",
            timeout=TIMEOUT,
            screen=screen,
        )
    text = came()
    assert done.returncode == code, text
    assert steering_in(text) == [], text
    return text


def valid(text: str, jobctl: CommandLine, *arguments: str) -> Any:
    """The JSON of the same command, in which the text is what it was."""
    answer = json.loads(shown(jobctl, *arguments, "--json"))
    assert json.dumps(text)[1:-1] in json.dumps(answer)
    return answer


@pytest.mark.long
async def test_that_of_jobs_and_letters_and_workers(jobctl: CommandLine, tmp_path: Path) -> None:
    payload = json.dumps({"text": STEERING})
    failing = json.dumps({"text": STEERING, "fail": True})
    with jobctl.worker():
        done = jobctl.ok("publish", "hot.work", "--payload", payload).strip()
        dead = jobctl.ok("publish", "hot.work", "--payload", failing).strip()
        jobctl.until_state(done, "succeeded")
        jobctl.until_state(dead, "dead")
        assert "u001b]52" in shown(jobctl, "publish", "hot.work", "--payload", payload, "--wait")
        shown(jobctl, "publish", "hot.work", "--payload", failing, "--wait", code=1)
    with RawPublisher(jobctl.environment["JOBS_AMQP_URL"]) as raw:
        message_id = (1 << 7).to_bytes(2, "big") + short(STEERING.encode())
        raw.publish("jobs.dlx", "hot.work", json.dumps(LETTER).encode(), message_id)
        raw.publish("jobs.dlx", f"hot.\x1b[2J{'a'}", STEERING.encode())
    ledger = await Ledger.open(Settings().ledger_url)
    await ledger.workers.register_worker(
        STEERING, kinds=("tester",), lanes=("hot",), host=STEERING, pid=1, concurrency=1
    )
    await ledger.close()

    assert "\\u001b[2J" in shown(jobctl, "jobs", "show", done)
    assert "\\u202etxt.exe" in shown(jobctl, "jobs", "show", dead)
    shown(jobctl, "jobs", "list")
    shown(jobctl, "jobs", "watch", dead, code=1)
    assert "\\x1b]0;owned" in shown(jobctl, "workers")
    assert "\\x1b]52" in shown(jobctl, "dead", "list")
    shown(jobctl, "dead", "groups")
    for letter in valid(STEERING, jobctl, "dead", "list"):
        assert "1b" in shown(jobctl, "dead", "show", letter["id"])
        valid("\x1b", jobctl, "dead", "show", letter["id"])
    assert valid(STEERING, jobctl, "jobs", "show", done)["payload"] == {"text": STEERING}
    shown(jobctl, "dead", "replay", dead, "--local", code=1)
    exported = shown(jobctl, "dead", "export", "--all")
    assert "\\u202e" in exported
    shown(jobctl, "jobs", "show", STEERING, code=1)
    shown(jobctl, STEERING, code=2)


async def test_that_of_documents_and_what_a_server_answers(jobctl: CommandLine) -> None:
    document = {
        "document_id": "\x1b[2Jd",
        "state": STEERING,
        "current_stage": STEERING,
        "completed_stages": [STEERING],
        "job_id": STEERING,
        "error": None,
        "title": STEERING,
        "filename": STEERING,
        "source": STEERING,
        "media_type": STEERING,
        "size": 1,
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
    }
    with answering({"documents": [document], "next_cursor": None}) as url:
        text = shown(jobctl, "documents", "list", JOBS_API_URL=url)
        assert "\\x1b]0;owned" in text
    with answering({"title": STEERING, "detail": STEERING, "status": 409}, status=409) as url:
        shown(jobctl, "documents", "list", code=1, JOBS_API_URL=url)


@contextmanager
def answering(answer: object, status: int = 200) -> Iterator[str]:
    """A server that answers everything so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
