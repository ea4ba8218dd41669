"""The Batch API of the test server, whose files and batches a test can inspect and let
misbehave."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.site import Exchange

ANSWER = "An answer of a batch."


@dataclass
class Batch:
    """One batch that a client has created."""

    id: str
    input_file_id: str
    metadata: Mapping[str, str]
    status: str = "in_progress"
    output_file_id: str | None = None
    error_file_id: str | None = None

    def as_json(self) -> dict[str, Any]:
        fixed_fields = {"object": "batch", "endpoint": "/v1/chat/completions", "created_at": 1}
        return vars(self) | fixed_fields | {"completion_window": "24h"}


@dataclass
class FakeBatchApi:
    """Files and batches. Nothing is answered until a test says so (`finish`)."""

    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Names of the uploaded files, by id."""
    deleted: list[str] = field(default_factory=list)
    fail_next: list[Callable[[Exchange], None]] = field(default_factory=list)
    """Misbehaviours of the next requests, in order."""
    after_creating: Callable[[Exchange], None] | None = None
    """Misbehaviour after the next batch is created, instead of the answer."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def questions(self, batch: Batch) -> list[dict[str, Any]]:
        """Return the lines of its file."""
        return [json.loads(line) for line in self.files[batch.input_file_id].splitlines()]

    def finish(
        self,
        batch: Batch,
        status: str = "completed",
        *,
        unanswered: int = 0,
        failed: Mapping[str, int] | None = None,
        appended: bytes = b"",
    ) -> None:
        """End a batch: an answer for each question but the last `unanswered`; an error with that
        status for those in `failed`; and `appended` behind them."""
        questions = self.questions(batch)
        answered: list[dict[str, Any]] = []
        errors: list[dict[str, Any]] = []
        for line in questions[: len(questions) - unanswered]:
            key = line["custom_id"]
            code = (failed or {}).get(key)
            response = {"status_code": code or 200, "body": _completion(line["body"])}
            if code:
                response["body"] = {"error": {"message": "it went wrong"}}
            (errors if code else answered).append({"custom_id": key, "response": response})
        batch.output_file_id = self._store_lines(answered, appended)
        batch.error_file_id = self._store_lines(errors, b"") if errors else None
        batch.status = status

    def _store_lines(self, lines: list[dict[str, Any]], appended: bytes) -> str:
        file_id = f"file-{len(self.files)}"
        self.files[file_id] = (
            b"".join(json.dumps(each).encode() + b"\n" for each in lines) + appended
        )
        return file_id

    def answer(self, exchange: Exchange, content: bytes) -> None:
        """Answer a request for /files or /batches."""
        with self._lock:
            if self.fail_next:
                self.fail_next.pop(0)(exchange)
                return
            self._answer(exchange, content, exchange.path.partition("?")[0].split("/")[2:])

    def _answer(self, exchange: Exchange, content: bytes, path: list[str]) -> None:
        match exchange.command, path:
            case "POST", ["files"]:
                file_id = f"file-{len(self.files)}"
                self.files[file_id] = _file_of(content)
                self.names[file_id] = _name_of(content)
                exchange.send_json(200, {"id": file_id, "object": "file", "purpose": "batch"})
            case "GET", ["files"]:
                remaining = [each for each in self.names if each not in self.deleted]
                entries = [{"id": each, "filename": self.names[each]} for each in remaining]
                exchange.send_json(200, {"object": "list", "data": entries, "has_more": False})
            case "GET", ["files", file_id, "content"] if file_id in self.files:
                exchange.send(200, self.files[file_id], content_type="application/json")
            case "DELETE", ["files", file_id]:
                self.deleted.append(file_id)
                exchange.send_json(200, {"id": file_id, "deleted": True})
            case "POST", ["batches"]:
                self._create(exchange, json.loads(content))
            case "GET", ["batches"]:
                entries = [each.as_json() for each in reversed(self.batches.values())]
                exchange.send_json(200, {"object": "list", "data": entries, "has_more": False})
            case "GET", ["batches", batch_id] if batch_id in self.batches:
                exchange.send_json(200, self.batches[batch_id].as_json())
            case "POST", ["batches", batch_id, "cancel"] if batch_id in self.batches:
                self.batches[batch_id].status = "cancelling"
                exchange.send_json(200, self.batches[batch_id].as_json())
            case _:
                exchange.send_json(404, {"error": {"message": "there is no such thing"}})

    def _create(self, exchange: Exchange, fields: Mapping[str, Any]) -> None:
        batch = Batch(f"batch_{len(self.batches)}", fields["input_file_id"], fields["metadata"])
        self.batches[batch.id] = batch
        misbehave, self.after_creating = self.after_creating, None
        if misbehave is not None:
            misbehave(exchange)
            return
        exchange.send_json(200, batch.as_json())


def _file_of(content: bytes) -> bytes:
    """Return the file of a form: the lines of JSON in it."""
    lines = content.replace(b"\r\n", b"\n").split(b"\n")
    return b"\n".join(each for each in lines if each.startswith(b"{")) + b"\n"


def _name_of(content: bytes) -> str:
    """Return the name of a part, as the form has it."""
    match = re.search(rb'filename="([^"]*)"', content)
    return match.group(1).decode() if match else ""


def _completion(fields: Mapping[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}}
    return {
        "model": fields["model"],
        "choices": [choice | {"finish_reason": "stop"}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7},
    }


def with_batches(url: str, directory: Path) -> dict[str, Any]:
    """Return settings to send batches to the server at `url`. A token costs 1, and 0.5 in a batch,
    so an answer costs 18, or 9."""
    (directory / "prices.toml").write_text("[models.m]\ninput = 1000000\noutput = 1000000")
    return {
        "llm_base_url": url,
        "llm_model": "m",
        "llm_timeout": 20.0,
        "llm_prices": directory / "prices.toml",
        "llm_batch": True,
        "llm_batch_wait": 0.0,
        "llm_budget_per_day": 1_000_000.0,
    }
