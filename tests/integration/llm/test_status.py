"""What `jobctl llm status` tells of model servers."""

from __future__ import annotations

import json
from dataclasses import replace

from switchyard.services.ledger import Ledger
from switchyard.services.records.llm import TRIED
from tests.support.commands import jobctl

SERVERS = [
    {"name": "own", "base_url": "http://127.0.0.1:9/v1", "model": "m"},
    {"name": "spare", "base_url": "http://127.0.0.1:9/v1", "model": "m", "order": 1, "most": 4},
]


async def test_it_tells_of_a_server_on_trial_and_of_one_that_was_never_called(
    sqlite_url: str, plain_ledger: Ledger
) -> None:
    await plain_ledger.take_llm_slot("own", "a", "me", ttl=60, keep_free=0, first=16, most=50)
    await plain_ledger.end_llm_slot(
        "own", "a", lambda state, *_: replace(state, failures=TRIED, pause_reason="it is broken")
    )
    given = {"JOBS_DATABASE_URL": sqlite_url, "JOBS_LLM_PROVIDERS": json.dumps(SERVERS)}
    shown = json.loads((await jobctl("llm", "status", "--json", **given)).stdout)["servers"]
    assert [(each["name"], each["limit"], each["on_trial"]) for each in shown] == [
        ("own", 1, True),
        ("spare", 4, False),
    ]
    told = (await jobctl("llm", "status", **given)).stdout
    assert "one call at a time until it answers: it is broken" in " ".join(told.split())
