"""No body that anybody may send makes the API fail, or stop answering."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path
from random import randrange
from typing import Any

import httpx
import pytest

from switchyard.services.engine.access.api_keys import Scope, create_key
from tests.support.api_server import api_process
from tests.support.hostile_bodies import hostile_bodies
from tests.support.system import System

CHAT: Any = [{"role": "user", "content": "x"}]
VALID: dict[str, list[dict[str, Any]]] = {
    "/jobs": [
        {
            "routing_key": "hot.noop",
            "payload": {"n": 1, "text": "x"},
            "priority": 3,
            "max_attempts": 2,
            "delay": 3600,
            "source": "mine",
            "tags": {"team": "x"},
            "notify_url": "https://example.org/",
        },
        {
            "job_type": "noop",
            "lane": "hot",
            "payload": {"n": 1},
            "run_at": "2030-01-05T09:00:00Z",
            "expires_at": "2031-01-05T09:00:00Z",
        },
        {"routing_key": "hot.chat_completion", "payload": {"messages": CHAT, "model": "test"}},
    ],
    "/llm/requests": [
        {
            "type": "chat_completion",
            "payload": {"messages": CHAT},
            "lane": "hot",
            "priority": 3,
            "expires_in": 5,
            "source": "mine",
        }
    ],
    "/documents/generate": [{"count": 1}],
    "/extract/references": [{"text": "References\n[1] A. Author. Title. 2001.", "lane": "hot"}],
    "/parse/references": [
        {"references": ["A. Author. Title. 2001."], "lane": "hot"},
        {"text": "A. Author. Title. 2001."},
    ],
    "/process/references": [{"text": "References\n[1] A. Author. Title. 2001."}],
    "/search": [
        {
            "query": "why the tide rises",
            "mode": "keyword",
            "limit": 5,
            "per_document": 1,
            "filters": {"document_ids": ["a"], "source": "a"},
        }
    ],
    "/backfills": [
        {
            "source": "documents",
            "options": {},
            "job_type": "noop",
            "payload": {"text": "{document_id}", "n": 1},
            "rate": 1,
            "tags": {"a": "b"},
            "max_attempts": 2,
            "priority": 1,
            "reason": "x",
            "max_open": 5,
        }
    ],
    "/backfills/preview": [
        {
            "source": "documents",
            "options": {"state": "completed"},
            "job_type": "noop",
            "payload": {"text": "{document_id}"},
        }
    ],
    "/crawl": [
        {
            "start": ["https://example.org/"],
            "hosts": ["example.org"],
            "max_pages": 2,
            "max_depth": 1,
            "within": 60,
            "tags": {"a": "b"},
        }
    ],
    "/schedules": [
        {
            "name": "a-name",
            "cron": "0 3 * * *",
            "timezone": "UTC",
            "job": "hot.noop",
            "payload": {"n": 1},
            "priority": 1,
            "max_attempts": 2,
            "tags": {"a": "b"},
        }
    ],
    "/pauses": [{"scope": "type", "target": "noop", "reason": "x", "seconds": 1}],
    "/admin/dead/redrives": [
        {"filter": {"ids": ["a"], "job_type": "noop", "lane": "hot"}, "dry_run": True},
        {"filter": {"job_type": "noop"}, "change": {"merge": {"n": 1}}, "rate": 1, "reason": "x"},
    ],
    "/jobs/actions": [
        {
            "action": "cancel",
            "filter": {"job_type": "nothing", "state": "queued"},
            "dry_run": True,
            "rate": 1,
        },
        {
            "action": "rerun",
            "filter": {"job_type": "nothing", "payload": "n=1"},
            "change": {"merge": {"n": 2}},
            "dry_run": True,
        },
    ],
    "/v1/batches": [
        {
            "input_file_id": "file-x",
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "metadata": {"a": "b"},
        }
    ],
}
"""Bodies that are accepted, by path."""
SAMPLING = 3
"""Every third body is sent in a run, from a random one on: all of them take minutes on a busy
machine, and a failure names the body."""
MAX_MEMORY = 400
"""MiB that the process may take: most of it are the libraries of the search."""


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) // 1024


MANY_FIELDS = dict.fromkeys(map(str, range(40_000)), 0)
"""Unknown fields, whose values are numbers."""
INVALID: list[tuple[str, dict[str, Any]]] = [
    ("/jobs", MANY_FIELDS),
    ("/jobs", {"routing_key": "hot.noop", "payload": {}, "tags": MANY_FIELDS}),
    ("/llm/requests", {"type": "chat_completion", "payload": MANY_FIELDS}),
    ("/parse/references", MANY_FIELDS),
    ("/v1/chat/completions", {"model": "test", "messages": list(MANY_FIELDS)}),
    ("/v1/embeddings", {"model": "test", "input": [[]] * 40_000}),
    ("/v1/batches", {"input_file_id": "file-x", "metadata": MANY_FIELDS}),
]


async def test_very_many_wrong_values_are_refused_at_once(system: System, tmp_path: Path) -> None:
    """The answer does not list every error: that would block the event loop."""
    async with (
        api_process(system.settings, tmp_path / "api.log") as api,
        httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=60) as client,
    ):
        for path, body in INVALID:
            answer = await client.post(path, json=body)
            assert answer.status_code in (400, 422), answer.text[:300]
            assert len(answer.content) < 10_000


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_values_of_every_kind_in_every_field_are_refused_or_taken(
    system: System, tmp_path: Path
) -> None:
    key = (await create_key(system.ledger, "attacker", list(Scope))).key
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    unlimited = {"JOBS_API_RATE_LIMIT": "1000000", "JOBS_API_RATE_BURST": "1000000"}
    secret = "only-for-signatures-4711-0123456789abcdef"
    log = tmp_path / "api.log"
    statuses: Counter[int] = Counter()
    failed: list[tuple[str, str, int, str]] = []
    async with (
        api_process(system.settings, log, JOBS_NOTIFY_SECRET=secret, **unlimited) as api,
        httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=60) as client,
    ):
        for path, bodies in VALID.items():
            for valid in bodies:
                for body in islice(hostile_bodies(valid), randrange(SAMPLING), None, SAMPLING):
                    answer = await client.post(path, content=body.content, headers=headers)
                    statuses[answer.status_code] += 1
                    if answer.status_code >= 500 or "Traceback" in answer.text:
                        failed.append((path, body.change, answer.status_code, answer.text[:300]))
            assert (await client.get("/health/live")).status_code == 200
        assert failed == []
        assert sum(statuses[each] for each in (200, 201, 202)) > 200 // SAMPLING, statuses
        assert peak_memory(api.process.pid) < MAX_MEMORY
    logged = log.read_text(errors="replace")
    assert [each for each in (key, secret, "Traceback") if each in logged] == []
