"""Answers that were paid for, kept so that nobody pays twice.

The key is a hash of everything the answer depends on: the prompt's version, the model, the
messages with the document's text, the limit. Where the question is the same, the answer is
reused, whichever job or document asks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from switchyard.services.files.storage import NotStored, Storage, content_hash
from switchyard.services.llm.client import Answer, LlmClient

_log = logging.getLogger(__name__)


async def ask_once(
    storage: Storage,
    client: LlmClient,
    messages: Sequence[Mapping[str, str]],
    *,
    prompt_version: str,
    max_tokens: int,
    within: float,
) -> tuple[Answer, bool]:
    """The answer, and whether it was there already. Raises as `LlmClient.ask`.

    Two jobs that ask the same at the same moment may both pay; the later answer is kept.
    """
    asked = {
        "prompt_version": prompt_version,
        "model": client.model,
        "messages": [dict(message) for message in messages],
        "max_tokens": max_tokens,
    }
    key = f"llm/{content_hash(asked)}.json"
    kept = await _kept(storage, key)
    if kept is not None:
        return kept, True
    answer = await client.ask(messages, max_tokens=max_tokens, within=within)
    body = {"asked_for": client.model, "prompt_version": prompt_version, "answer": asdict(answer)}
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
