"""Answers of a model that fit no schema: kept for whoever wants to know why a request failed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.keys import raw_answers_key
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_errors import NotStored
from switchyard.services.engine.records.results import JobRecord


class LlmUnusable(PermanentError):
    """The model's answer does not fit its schema, the second one neither."""


async def keep_raw(storage: Storage, job_id: str, answers: Sequence[str]) -> None:
    """Keep what the model answered to a job. Raises StorageError."""
    body = json.dumps({"answers": list(answers)}, ensure_ascii=False).encode()
    await storage.put_async(raw_answers_key(job_id), body)


async def raw_answers(storage: Storage, record: JobRecord) -> list[str] | None:
    """What the model answered to a job that is dead because neither answer fits; None for any
    other, and where they are not kept any more. Raises StorageError."""
    if record.error_type != LlmUnusable.__name__:
        return None
    try:
        kept = json.loads(await storage.get_async(raw_answers_key(record.id)))
    except NotStored:
        return None
    answers: list[str] = kept["answers"]
    return answers
