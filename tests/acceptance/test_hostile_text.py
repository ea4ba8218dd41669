"""Text with control characters for terminals is escaped in all output, wherever it came from."""

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


def run_in_terminal(jobctl: CommandLine, *arguments: str, code: int = 0, **environment: str) -> str:
    """Run a command on a terminal; return its output, which must have no control characters."""
    with terminal() as (screen, read_screen):
        completed = commands().run(
            list(arguments),
            env=jobctl.environment | environment | TERMINAL,
            cwd=ROOT,
            stdin="",
            timeout=TIMEOUT,
            screen=screen,
        )
    text = read_screen()
    assert completed.returncode == code, text
    assert steering_in(text) == [], text
    return text


def run_json(text: str, jobctl: CommandLine, *arguments: str) -> Any:
    """Run a command with `--json`; its answer, which is returned, must have the text unchanged."""
    answer = json.loads(run_in_terminal(jobctl, *arguments, "--json"))
    assert json.dumps(text)[1:-1] in json.dumps(answer)
    return answer


@pytest.mark.long
async def test_text_of_jobs_letters_and_workers_is_escaped(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    payload = json.dumps({"text": STEERING})
    failing = json.dumps({"text": STEERING, "fail": True})
    with jobctl.worker():
        succeeded_id = jobctl.ok("publish", "hot.work", "--payload", payload).strip()
        dead_id = jobctl.ok("publish", "hot.work", "--payload", failing).strip()
        jobctl.until_state(succeeded_id, "succeeded")
        jobctl.until_state(dead_id, "dead")
        assert "u001b]52" in run_in_terminal(
            jobctl, "publish", "hot.work", "--payload", payload, "--wait"
        )
        run_in_terminal(jobctl, "publish", "hot.work", "--payload", failing, "--wait", code=1)
    with RawPublisher(jobctl.environment["JOBS_AMQP_URL"]) as raw:
        message_id = (1 << 7).to_bytes(2, "big") + short(STEERING.encode())
        raw.publish("jobs.dlx", "hot.work", json.dumps(LETTER).encode(), message_id)
        raw.publish("jobs.dlx", f"hot.\x1b[2J{'a'}", STEERING.encode())
    ledger = await Ledger.open(Settings().ledger_url)
    await ledger.workers.register_worker(
        STEERING, kinds=("tester",), lanes=("hot",), host=STEERING, pid=1, concurrency=1
    )
    await ledger.close()

    assert "\\u001b[2J" in run_in_terminal(jobctl, "jobs", "show", succeeded_id)
    assert "\\u202etxt.exe" in run_in_terminal(jobctl, "jobs", "show", dead_id)
    run_in_terminal(jobctl, "jobs", "list")
    run_in_terminal(jobctl, "jobs", "watch", dead_id, code=1)
    assert "\\x1b]0;owned" in run_in_terminal(jobctl, "workers")
    assert "\\x1b]52" in run_in_terminal(jobctl, "dead", "list")
    run_in_terminal(jobctl, "dead", "groups")
    for letter in run_json(STEERING, jobctl, "dead", "list"):
        assert "1b" in run_in_terminal(jobctl, "dead", "show", letter["id"])
        run_json("\x1b", jobctl, "dead", "show", letter["id"])
    assert run_json(STEERING, jobctl, "jobs", "show", succeeded_id)["payload"] == {"text": STEERING}
    run_in_terminal(jobctl, "dead", "replay", dead_id, "--local", code=1)
    exported = run_in_terminal(jobctl, "dead", "export", "--all")
    assert "\\u202e" in exported
    run_in_terminal(jobctl, "jobs", "show", STEERING, code=1)
    run_in_terminal(jobctl, STEERING, code=2)


async def test_text_of_documents_and_server_errors_is_escaped(jobctl: CommandLine) -> None:
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
    with serving_answer({"documents": [document], "next_cursor": None}) as url:
        text = run_in_terminal(jobctl, "documents", "list", JOBS_API_URL=url)
        assert "\\x1b]0;owned" in text
    with serving_answer({"title": STEERING, "detail": STEERING, "status": 409}, status=409) as url:
        run_in_terminal(jobctl, "documents", "list", code=1, JOBS_API_URL=url)


@contextmanager
def serving_answer(answer: object, status: int = 200) -> Iterator[str]:
    """Run a server that gives this answer to every request; yield its URL."""

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
