"""`jobctl llm show`: what became of an earlier request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import JsonOption, echo, plain, print_json, say
from switchyard.cli.engine.jobs.jobs import JobIdArgument, full_job_id, unknown_job

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.llm.queue import LlmResult


def show(job_id: JobIdArgument, as_json: JsonOption = False) -> None:
    """Show the answer to an earlier request.

    If neither answer of the model matches the schema, it prints both. Exit code 1: there is no
    answer, or not yet.
    """
    result, raw = run(_look_up(load_settings(), job_id))
    if as_json:
        print_json({**plain(result), "raw_answers": raw})
    elif result.result is not None:
        if result.value is None:
            echo(result.text or "")
        else:
            print_json(result.value)
    for number, answer in enumerate(raw or (), start=1):
        if not as_json:
            say(f"Answer {number}:")
            echo(answer)
    if result.result is None:
        raise CommandFailed(failure(result))


def failure(result: LlmResult) -> str:
    """Why a request has no answer, in one line."""
    return f"request {result.job_id}: {result.status}{f': {result.error}' if result.error else ''}"


async def _look_up(settings: Settings, job_id: str) -> tuple[LlmResult, list[str] | None]:
    from switchyard.services.common.files.storage import Storage
    from switchyard.services.llm.queue import result_of
    from switchyard.services.llm.unusable import raw_answers

    async with open_ledger(settings) as ledger:
        record = await ledger.job_reads.get(await full_job_id(ledger, job_id))
        if record is None:
            raise unknown_job(job_id)
        now = ledger.clock.time()
    return result_of(record, now), await raw_answers(Storage(settings.files_url), record)
