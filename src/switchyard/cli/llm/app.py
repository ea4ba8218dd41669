"""`jobctl llm`: ask a language model, and see how its servers are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.common import (
    PriorityOption,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    require_ledger,
    run,
)
from switchyard.cli.base.durations import DURATION_HELP, parse_optional_duration
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    print_json,
    say,
    table,
)
from switchyard.cli.base.payloads import read_argument
from switchyard.cli.base.shared_options import JobIdArgument, full_job_id
from switchyard.cli.llm.status import check, resume, status
from switchyard.services.llm.ledger import LlmLedger

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.llm.answer_follower import LlmText
    from switchyard.services.llm.llm_queue import LlmResult
    from switchyard.services.llm.records.llm_spend import BudgetState, SpendRow


app = typer.Typer(
    no_args_is_help=True, help="Language models: send a request, show servers, batches and cost."
)


class SpendGrouping(StrEnum):
    """The choices of --by; a test compares them with `SPENT_BY`."""

    DAY = "day"
    MODEL = "model"
    PROVIDER = "provider"
    TYPE = "type"
    SOURCE = "source"
    DOCUMENT = "document"
    JOB = "job"
    BACKFILL = "backfill"


@app.command()
def ask(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="The question, or the text that the job type works on."
        ),
    ] = None,
    job_type: Annotated[
        str,
        typer.Option(
            "--type",
            help="Job type: chat_completion, extract_facts, extract_field_group, "
            "extract_entities or classify.",
        ),
    ] = "chat_completion",
    payload: Annotated[
        str,
        typer.Option(
            metavar="JSON|@FILE",
            help='Further fields of the payload, for example {"labels": ["sea", "land"]} '
            "for classify.",
        ),
    ] = "{}",
    schema: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE", help="JSON Schema that the answer must match."),
    ] = None,
    lane: Annotated[str, typer.Option(help="Lane of the request: hot or backfill.")] = "hot",
    priority: PriorityOption = None,
    timeout: Annotated[
        str,
        typer.Option(metavar="TIME", help=f"Cancel the request after this time, {DURATION_HELP}."),
    ] = "10m",
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Ask the model even if an answer to the same request is stored."
        ),
    ] = False,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream", help="Print the answer while the model writes it; not with --json."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Send a request to a language model through the lanes, and print its answer.

    A repeated request is answered from stored answers at no cost, unless --fresh is given. Exit
    code 1: there is no answer.

    Example:

    ```
    jobctl llm ask 'Why does the tide rise?' --timeout 2m
    ```
    """
    payload_value = read_argument(payload)
    if prompt is not None:
        chat = job_type == "chat_completion"
        payload_value |= (
            {"messages": [{"role": "user", "content": prompt}]} if chat else {"text": prompt}
        )
    if schema is not None:
        payload_value["json_schema"] = read_argument(schema)
    if fresh:
        payload_value["fresh"] = True
    quiet_logs()
    settings = load_settings()
    if not settings.llm_direct:
        require_broker(settings)
    require_ledger(settings)
    seconds = parse_optional_duration(timeout) or 600.0
    sending = _send_request(
        settings,
        job_type,
        payload_value,
        printing=stream and not as_json,
        timeout=seconds,
        lane=lane,
        priority=priority,
    )
    result, printed = run(sending)
    if as_json:
        from switchyard.api.views.llm import view_answer

        print_json(view_answer(result))
    elif printed is not None and printed == result.text:
        return
    else:
        _print_answer(result)
    if result.result is None:
        raise CommandFailed(describe_failure(result))


@app.command()
def show(job_id: JobIdArgument, as_json: JsonOption = False) -> None:
    """Show the answer to an earlier request.

    If the model was asked twice and neither answer matches the schema, prints both. Exit code 1:
    there is no answer, or not yet.
    """
    result, raw = run(_read_answer(load_settings(), job_id))
    if as_json:
        from switchyard.api.views.llm import view_answer

        print_json(view_answer(result, raw))
    else:
        _print_answer(result)
    for number, answer in enumerate(raw or (), start=1):
        if not as_json:
            say(f"Answer {number}:")
            echo(answer)
    if result.result is None:
        raise CommandFailed(describe_failure(result))


def _print_answer(result: LlmResult) -> None:
    if result.value is not None:
        print_json(result.value)
    elif result.result is not None:
        echo(result.text or "")


def describe_failure(result: LlmResult) -> str:
    """Say in one line why a request has no answer."""
    return f"request {result.job_id}: {result.status}{f': {result.error}' if result.error else ''}"


async def _read_answer(settings: Settings, job_id: str) -> tuple[LlmResult, list[str] | None]:
    from switchyard.services.common.files.storage import Storage
    from switchyard.services.llm.job_answers import raw_answers
    from switchyard.services.llm.llm_queue import result_of

    async with open_ledger(settings) as ledger:
        record = await ledger.job_reads.require(await full_job_id(ledger, job_id))
        now = ledger.clock.time()
    return result_of(record, now), await raw_answers(Storage(settings.files_url), record)


async def _send_request(
    settings: Settings, job_type: str, payload: dict[str, Any], *, printing: bool, **options: Any
) -> tuple[LlmResult, str | None]:
    """Return the result, and the part of the answer that was printed while it was written; None if
    nothing was."""
    from switchyard.services.llm.llm_queue import LLMQueue

    async with LLMQueue.open(settings) as queue:
        if printing:
            return await _print_stream(queue.stream(job_type, payload, source="jobctl", **options))
        return await queue.call(job_type, payload, source="jobctl", **options), None


async def _print_stream(events: AsyncIterator[LlmText | LlmResult]) -> tuple[LlmResult, str | None]:
    from switchyard.services.llm.llm_queue import LlmResult

    printed: str | None = None
    async for each in events:
        if isinstance(each, LlmResult):
            if printed is None:
                return each, None
            echo("")
            return each, printed.strip()
        if each.offset == 0 and printed:
            echo("\n")
            printed = ""
        if each.offset == len(printed or ""):
            echo(each.text, nl=False)
            printed = (printed or "") + each.text
    raise CommandFailed("the request is gone: somebody has removed its record")


app.command()(status)
app.command()(resume)
app.command()(check)


@app.command()
def spend(
    by: Annotated[
        SpendGrouping, typer.Option(help="How the calls are grouped.")
    ] = SpendGrouping.DAY,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            help="First day, YYYY-MM-DD in UTC, inclusive. Default: 30 days ago.",
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="Last day, YYYY-MM-DD in UTC, inclusive. Default: today."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000, help="Maximum number of lines, highest cost first.")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show the cost of language model calls, and what stored answers have saved."""
    from switchyard.services.llm.budget_account import first_day

    settings = load_settings()

    async def read() -> tuple[list[SpendRow], list[BudgetState]]:
        async with open_ledger(settings) as ledger:
            first = since.date().isoformat() if since else first_day(ledger)
            last = until.date().isoformat() if until else None
            spending = LlmLedger(ledger).spending
            rows = await spending.llm_spend(by.value, since=first, until=last, limit=limit)
            return rows, await spending.llm_budgets(per_day=settings.llm_budget_per_day)

    spend_rows, budgets = run(read())
    currency = settings.prices.currency
    if as_json:
        from switchyard.api.views.llm import view_spending

        print_json(view_spending(spend_rows, budgets, by=by.value, currency=currency))
    elif spend_rows:
        _print_spend(spend_rows, by.value, currency)
    else:
        say("No calls in this time.")


def _print_spend(spend_rows: list[SpendRow], by: str, currency: str) -> None:
    from switchyard.services.common.prices import format_money

    numbers = ("CALLS", "INPUT", "CACHED", "OUTPUT", "COST", "FROM STORE", "SAVED")
    rows = table(by.upper(), *numbers, flexible=(by.upper(),), right=numbers)
    for each in spend_rows:
        add_row(
            rows,
            cell(each.name or "-"),
            f"{each.calls:,}",
            f"{each.input_tokens:,}",
            f"{each.cached_tokens:,}",
            f"{each.output_tokens:,}",
            format_money(each.cost, currency),
            f"{each.saved_calls:,}",
            format_money(each.saved, currency),
        )
    console().print(rows)
    unpriced = sum(each.unpriced_calls for each in spend_rows)
    unsure = sum(each.unsure_calls for each in spend_rows)
    if unpriced:
        say(f"Not in the cost: {unpriced:,} calls of models without a price (JOBS_LLM_PRICES).")
    if unsure:
        say(
            f"Counted at their estimate: {unsure:,} calls that were broken off and may have been "
            "charged."
        )
