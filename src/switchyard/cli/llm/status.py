"""`jobctl llm status` shows model servers, time limits, budgets and batches; `jobctl llm resume`
ends the pause of a server; `jobctl llm check` finds the settings that a server needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import (
    load_registry,
    load_settings,
    open_ledger,
    require_ledger,
    run,
)
from switchyard.cli.base.durations import duration_text
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
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import InvalidLlmResponse, LlmRefused, LlmUnavailable

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.llm.records.llm_batches import LlmBatch
    from switchyard.services.llm.records.llm_servers import LlmServerReport, PauseEnded
    from switchyard.services.llm.records.llm_spend import BudgetState


def status(as_json: JsonOption = False) -> None:
    """Show model servers, time limits, budgets and batches.

    Lists calls in progress, limits, pauses, how long requests may take, and the money left.
    """
    settings = load_settings()
    require_ledger(settings)
    limits = _time_limits(settings)

    async def read() -> tuple[
        list[LlmServerReport], list[BudgetState], list[LlmBatch], Mapping[tuple[str, str], int]
    ]:
        async with open_ledger(settings) as ledger:
            repositories = LlmLedger(ledger)
            return (
                await repositories.slots.llm_servers(),
                await repositories.spending.llm_budgets(per_day=settings.llm_budget_per_day),
                await repositories.batches.llm_batches(),
                await repositories.batches.llm_batch_counts(),
            )

    known_servers, budgets, batches, counts = run(read())
    from switchyard.services.llm.gate import all_servers, calls_allowed

    servers = all_servers(known_servers, settings)
    max_calls = {each.name: settings.max_calls(each) for each in settings.model_servers}
    if as_json:
        from switchyard.api.views.llm import view_model_server, view_model_status

        view = view_model_status(
            servers=[view_model_server(each, calls_allowed(each, max_calls)) for each in servers],
            time_limits=limits,
            budgets=budgets,
            currency=settings.prices.currency,
            batches=batches,
            batched_questions=counts,
        )
        print_json(view)
        return
    if servers:
        _print_servers(servers, max_calls)
    else:
        say("No model server is configured, and none has been called: see docs/llm.md#servers.")
    if settings.llm_servers:
        _print_limits(limits)
    _print_budgets(budgets, settings.prices.currency)
    for (server, state), number in counts.items():
        say(f"{pluralize(number, 'question')} for batches of {server}: {state}")
    for each in batches:
        note = f", {each.note}" if each.note else ""
        questions = pluralize(each.questions, "question")
        say(f"Batch {each.id} of {each.provider}: {questions}, {each.state}{note}")


def _time_limits(settings: Settings) -> list[tuple[str, float, float]]:
    """Return the seconds that an attempt of each type of request may take, and each of its
    calls."""
    from switchyard.services.llm.llm_requests import LlmRequest

    return [
        (each.name, each.timeout, settings.llm_call_limit(each.timeout))
        for each in load_registry(settings)
        if issubclass(each.payload_model, LlmRequest) or each.name == "summarize_content"
    ]


def _describe_state(report: LlmServerReport, max_calls: Mapping[str, int]) -> str:
    if max_calls and report.name not in max_calls:
        return "not in these settings: it is not called"
    reason = report.state.pause_reason or ""
    if report.paused_for:
        return reason
    if report.state.is_on_trial:
        return f"one call at a time until it answers: {reason}"
    return ""


def _print_servers(reports: list[LlmServerReport], max_calls: Mapping[str, int]) -> None:
    from switchyard.services.llm.gate import calls_allowed

    rows = table("SERVER", "IN FLIGHT", "LIMIT", "PAUSED", "FAILURES", "WHY", flexible=("WHY",))
    for each in reports:
        add_row(
            rows,
            cell(each.name),
            str(each.in_flight),
            str(calls_allowed(each, max_calls)),
            duration_text(each.paused_for) if each.paused_for else "",
            str(each.state.failures),
            cell(_describe_state(each, max_calls)),
        )
    console().print(rows)


def _print_limits(limits: list[tuple[str, float, float]]) -> None:
    rows = table(
        "REQUEST", "ATTEMPT AT MOST", "CALL AT MOST", right=("ATTEMPT AT MOST", "CALL AT MOST")
    )
    for name, attempt, call in limits:
        add_row(rows, cell(name), duration_text(attempt), duration_text(call))
    console().print(rows)


def _print_budgets(budgets: list[BudgetState], currency: str) -> None:
    from switchyard.services.common.prices import format_money

    if not budgets:
        return
    rows = table(
        "BUDGET", "LIMIT", "SPENT", "SET ASIDE", "LEFT", "", right=("LIMIT", "SPENT", "SET ASIDE")
    )
    for each in budgets:
        money = (each.limit, each.spent, each.reserved, each.left)
        add_row(
            rows,
            cell(each.key),
            *(format_money(value, currency) for value in money),
            "too little for its next call: jobs wait" if each.is_short else "",
        )
    console().print(rows)


def check(
    server: Annotated[
        str, typer.Argument(metavar="SERVER", help="Name of the server, from `jobctl llm status`.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Find out which request options a model server needs, and print its settings.

    Sends a few short requests, past all limits and budgets. Exit code 1: it answers nothing.
    """
    from switchyard.services.llm.server_probe import probe_server

    settings = load_settings()
    known = {each.name: each for each in settings.model_servers}
    if server not in known:
        names = ", ".join(known) or "none"
        raise CommandFailed(f"the settings have no model server {server!r}; they have: {names}")
    search = settings.for_embeddings
    if search is not None and known[server] in search.llm_servers:
        raise CommandFailed(f"{server} is the server of JOBS_EMBED_BASE_URL: it answers no chats")
    try:
        probe = run(probe_server(known[server], settings.llm_timeout))
    except (LlmUnavailable, LlmRefused, InvalidLlmResponse) as error:
        raise CommandFailed(f"{server} answers nothing: {error}") from error
    if as_json:
        print_json(
            {
                "server": server,
                "model": probe.model,
                "findings": probe.findings,
                "settings": probe.settings,
            }
        )
        return
    for test, outcome in probe.findings.items():
        echo(f"{test}: {outcome}")
    say("For its entry in JOBS_LLM_PROVIDERS:")
    echo(json.dumps(probe.settings))


def resume(
    server: Annotated[
        str, typer.Argument(metavar="SERVER", help="Name of the server, from `jobctl llm status`.")
    ],
    as_json: JsonOption = False,
) -> None:
    """End the pause of a model server: requests that wait for it go on.

    A server that still refuses them is paused again. Exit code 1: no such server was called.
    """

    async def end() -> PauseEnded | None:
        async with open_ledger(load_settings()) as ledger:
            return await LlmLedger(ledger).slots.end_llm_pause(server)

    ended = run(end())
    if ended is None:
        raise CommandFailed(f"no model server {server!r} was called: see `jobctl llm status`")
    if as_json:
        from switchyard.api.views.llm import view_ended_pause

        print_json(view_ended_pause(server, ended))
    elif not ended.paused_for:
        echo(f"{server} is not paused")
    else:
        jobs = pluralize(ended.jobs, "waiting job is", "waiting jobs are")
        echo(f"{server} is asked again; {jobs} published again by the scheduler")
