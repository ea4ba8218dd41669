"""Answers that were paid for, kept so that nobody pays twice.

The key is a hash of everything the answer depends on: the prompt's version, server and model, the
messages with the document's text, the parameters. Where the question is the same, the answer is
reused, whichever job or document asks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from switchyard.services.files.storage import NotStored, Storage, content_hash
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.lane import LlmLane
from switchyard.services.llm.reading import Answer

_log = logging.getLogger(__name__)


async def ask_once(
    storage: Storage,
    lane: LlmLane,
    asked: Mapping[str, Any],
    *,
    prompt_version: str,
    urgency: Urgency,
    within: float,
) -> tuple[Answer, bool]:
    """The answer, and whether it was there already. Raises as `LlmLane.ask`.

    Two jobs that ask the same at the same moment may both pay; the later answer is kept.
    """
    question = {"prompt_version": prompt_version, "servers": lane.asks, "asked": asked}
    key = f"llm/{content_hash(question)}.json"
    kept = await _kept(storage, key)
    if kept is not None:
        return kept, True
    answer = await lane.ask(asked, urgency=urgency, within=within)
    body = {"prompt_version": prompt_version, "answer": asdict(answer)}
    await storage.put_async(key, json.dumps(body, ensure_ascii=False).encode())
    return answer, False


async def _kept(storage: Storage, key: str) -> Answer | None:
    try:
        body: Any = json.loads(await storage.get_async(key))
        return Answer(**body["answer"])
    except NotStored:
        return None
    except (ValueError, KeyError, TypeError) as error:
        # Somebody's hand, or another version's format: paying again mends it.
        _log.warning("unreadable LLM answer %s, asking again: %s", key, error)
        return None
