"""`jobctl llm`: ask a language model, and see how its servers are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.common import (
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.durations import DURATION_HELP, optional_duration
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

if TYPE_CHECKING:
    from switchyard.services.llm.queue import LlmResult
    from switchyard.services.records.llm import LlmServerReport
    from switchyard.services.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Ask language models, and see their servers.")


@app.command()
def ask(
    prompt: Annotated[str | None, typer.Argument(help="The question.")] = None,
    job_type: Annotated[
        str, typer.Option("--type", help="chat_completion, extract_facts, classify, …")
    ] = "chat_completion",
    payload: Annotated[
        str, typer.Option(metavar="JSON|@FILE", help="More of the payload, or all of it.")
    ] = "{}",
    schema: Annotated[
        str | None,
        typer.Option(metavar="JSON|@FILE", help="A JSON Schema that the answer is to fit."),
    ] = None,
    lane: Annotated[str, typer.Option(help="hot, or backfill.")] = "hot",
    priority: Annotated[
        int | None, typer.Option(min=0, max=10, help="Within the lane; else the lane's own.")
    ] = None,
    timeout: Annotated[
        str,
        typer.Option(metavar="TIME", help=f"Expire and give up after so long, {DURATION_HELP}."),
    ] = "10m",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ask anew although an answer is kept.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask a model through the lanes, and print its answer.

    Exit code 1 tells that it failed or came too late. What was asked before costs nothing.
    """
    given = read_argument(payload)
    if prompt is not None:
        chat = job_type == "chat_completion"
        given |= {"messages": [{"role": "user", "content": prompt}]} if chat else {"text": prompt}
    if schema is not None:
        given["json_schema"] = read_argument(schema)
    if fresh:
        given["fresh"] = True
    quiet_logs()
    settings = load_settings()
    if not settings.llm_direct:
        require_broker(settings)
    seconds = optional_duration(timeout) or 600.0
    result = run(_ask(settings, job_type, given, lane, priority, seconds))
    if as_json:
        print_json(_shown(result))
    elif result.result is not None:
        value = result.value
        if value is None:
            echo(result.text or "")
        else:
            print_json(value)
    if result.result is None:
        raise CommandFailed(
            f"request {result.job_id}: {result.status}{f': {result.error}' if result.error else ''}"
        )


async def _ask(
    settings: Settings,
    job_type: str,
    payload: dict[str, Any],
    lane: str,
    priority: int | None,
    timeout: float,
) -> LlmResult:
    from switchyard.services.llm.queue import LLMQueue

    async with LLMQueue.opened(settings) as queue:
        return await queue.call(
            job_type, payload, timeout=timeout, lane=lane, priority=priority, source="jobctl"
        )


def _shown(result: LlmResult) -> dict[str, Any]:
    return {
        "job_id": result.job_id,
        "status": result.status,
        "result": result.result,
        "error": result.error,
    }


@app.command()
def status(as_json: JsonOption = False) -> None:
    """Show the servers that were asked: calls under way, limit, pauses, failures in a row."""
    settings = load_settings()

    async def read(settings: Settings) -> list[LlmServerReport]:
        async with open_ledger(settings) as ledger:
            return await ledger.llm_servers()

    found = run(read(settings))
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "in_flight": each.in_flight,
                    "limit": int(each.state.limit),
                    "paused_for": each.paused_for,
                    "pause_reason": each.state.pause_reason if each.paused_for else None,
                    "failures": each.state.failures,
                }
                for each in found
            ]
        )
        return
    if not found:
        say("No server was asked yet: `jobctl llm ask` does.")
        return
    rows = table("SERVER", "IN FLIGHT", "LIMIT", "PAUSED", "FAILURES", "WHY", flexible=("WHY",))
    for each in found:
        add_row(
            rows,
            cell(each.name),
            str(each.in_flight),
            str(int(each.state.limit)),
            cell(f"{each.paused_for:.0f} s" if each.paused_for else ""),
            str(each.state.failures),
            cell(each.state.pause_reason if each.paused_for else ""),
        )
    console().print(rows)
