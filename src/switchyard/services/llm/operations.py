"""Provide the wing's periodic duties, doctor's checks and metrics."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import structlog

from switchyard.broker.lanes import queue_name
from switchyard.services.common.durations import DAY, duration_text
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.lane_history import MINUTE
from switchyard.services.engine.monitoring import metric_names as names
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    first_few,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.doctor import DoctorStep
from switchyard.services.engine.monitoring.metric_names import Metric, Samples
from switchyard.services.engine.monitoring.pressure_thresholds import LLM_WORKER
from switchyard.services.engine.scheduler.duties import (
    HISTORY_INTERVAL,
    DutyContext,
    PeriodicDuty,
)
from switchyard.services.llm.batch_runner import BatchRunner
from switchyard.services.llm.budget_account import clean_up_spending, format_budget
from switchyard.services.llm.gate import calls_allowed
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.openai_batch_service import OpenAiBatchService
from switchyard.services.llm.records.llm_batches import ItemState
from switchyard.services.llm.records.llm_servers import (
    BRIEF_PAUSE,
    TRIAL_AFTER_FAILURES,
    LlmMinute,
    LlmServerReport,
)
from switchyard.services.llm.records.llm_spend import BudgetState, SpendRow
from switchyard.services.llm.stored_answers import drop_old_answers, drop_unrecorded_answers

REPORTED_AFTER_FAILURES = TRIAL_AFTER_FAILURES + 2
"""Failures in a row from which the doctor reports a server: by then it gets one call at a time, and
some of these have failed, too. More failures could take minutes, if each call runs into its time
limit."""
LONG_PAUSE_SECONDS = 120.0
"""Seconds left of a pause from which the doctor reports it: a server's limits per minute pause it
for less."""


async def check_model_servers(system: DoctorContext) -> list[Diagnostic]:
    """Check the servers of the settings for repeated failures and long pauses. Returns nothing if
    none was called yet."""
    configured = {each.name for each in system.settings.model_servers}
    reports = [
        each
        for each in await LlmLedger(system.need_ledger()).slots.llm_servers()
        if each.name in configured
    ]
    failing = [each for each in reports if each.state.failures >= REPORTED_AFTER_FAILURES]
    paused = [
        each for each in reports if each.paused_for >= LONG_PAUSE_SECONDS and each not in failing
    ]
    # Without vision or embeddings the rest goes on; without language models, little does.
    needed_names = {each.name for each in system.settings.llm_servers} or configured
    diagnose = failure if needed_names <= {each.name for each in failing} else warning
    checks = [
        diagnose(
            "model servers",
            Finding.MODEL_SERVER_FAILS,
            f"server {each.name} has failed {each.state.failures:,} times in a row: "
            f"{each.state.pause_reason or 'no reason is known'}",
            "see its log; start it where it is down, and restart it where it hangs; where its "
            "address, model or key is wrong, correct that and restart the workers; "
            "`jobctl llm status`",
        )
        for each in failing
    ]
    checks += [
        warning(
            "model servers",
            Finding.MODEL_SERVER_PAUSED,
            f"server {each.name} is paused for {duration_text(each.paused_for)} more: "
            f"{each.state.pause_reason or 'no reason is known'}; its requests wait, and go on then",
            "nothing, if they may wait; to ask it again at once, as when its limit was raised: "
            f"`jobctl llm resume {shlex.quote(each.name)}`; else name another server in "
            "JOBS_LLM_PROVIDERS and restart the workers; `jobctl llm status`",
        )
        for each in paused
    ]
    if checks or not reports:
        return checks
    return [ok("model servers", f"{len(reports):,} of {len(configured):,} called, and none fails")]


async def check_budgets(system: DoctorContext) -> list[Diagnostic]:
    """Check for budgets of the day, of API keys and of backfills that have too little left for the
    next call."""
    spending, settings = LlmLedger(system.need_ledger()).spending, system.settings
    open_budgets = await spending.llm_budgets(per_day=settings.llm_budget_per_day)
    short_budgets = [
        each for each in open_budgets if each.is_short
    ] + await spending.short_api_key_budgets()
    if not short_budgets:
        return []
    texts = [
        f"{each.name}: {format_budget(each, settings.prices.currency)}" for each in short_budgets
    ]
    remedy = (
        "nothing, if its jobs may wait until the budget begins anew; else raise it: "
        f"`{short_budgets[0].raised_by}`; `jobctl llm spend` shows for what it went"
    )
    detail = f"too little is left for the next call of {first_few(texts)}"
    return [warning("budgets", Finding.BUDGET_SPENT, detail, remedy)]


def doctor_steps() -> Iterable[DoctorStep]:
    """Return the checks that this wing adds to the doctor's."""
    return [DoctorStep(check_model_servers, ledger=True), DoctorStep(check_budgets, ledger=True)]


async def delayed_jobs(settings: Settings, ledger: Ledger) -> Mapping[str, int]:
    """Count, by queue, the jobs that wait in delays because all servers of language models are
    paused. Raises LedgerError."""
    servers = {each.name for each in settings.llm_servers}
    if not servers:
        return {}
    waiting = await LlmLedger(ledger).slots.waiting_for_servers(
        servers, LLM_WORKER, min_pause=BRIEF_PAUSE
    )
    return {queue_name(lane, LLM_WORKER): number for lane, number in waiting.items()}


async def samples(settings: Settings, ledger: Ledger) -> list[tuple[Metric, Samples]]:
    """Read the metrics of servers, cost and batches from the ledger. Raises LedgerError."""
    repositories = LlmLedger(ledger)
    reports = await repositories.slots.llm_servers()
    spent = await repositories.spending.llm_spent_today()
    budgets = await repositories.spending.llm_budgets(per_day=settings.llm_budget_per_day)
    batch_counts = await repositories.batches.llm_batch_counts()
    return [
        *_server_samples(settings, reports),
        *_spending_samples(settings, spent, budgets),
        (
            names.LLM_BATCHED,
            {
                (each.name, state.value): batch_counts.get((each.name, state.value), 0)
                for each in settings.llm_servers
                if each.batch
                for state in ItemState
            },
        ),
    ]


def _server_samples(
    settings: Settings, reports: Iterable[LlmServerReport]
) -> list[tuple[Metric, Samples]]:
    """Return the samples of the settings' servers: the ledger may have others, from earlier
    settings."""
    max_calls = {each.name: settings.max_calls(each) for each in settings.model_servers}
    configured = [each for each in reports if each.name in max_calls]
    return [
        (
            names.LLM_SERVER_LIMIT,
            {(each.name,): float(each.state.calls(max_calls[each.name])) for each in configured},
        ),
        (names.LLM_SERVER_CALLS, {(each.name,): float(each.in_flight) for each in configured}),
        (names.LLM_SERVER_PAUSED, {(each.name,): each.paused_for for each in configured}),
    ]


def _spending_samples(
    settings: Settings, spent: Mapping[str, SpendRow], budgets: Iterable[BudgetState]
) -> list[tuple[Metric, Samples]]:
    servers = (each.name for each in settings.model_servers)
    by_server = {name: spent[name] for name in servers if name in spent}
    tokens: dict[tuple[str, ...], float] = {}
    for name, row in by_server.items():
        tokens[name, "input"] = row.input_tokens
        tokens[name, "cached"] = row.cached_tokens
        tokens[name, "output"] = row.output_tokens
    budget_states = list(budgets)
    left_today = next((each.left for each in budget_states if each.key.startswith("day:")), None)
    return [
        (names.LLM_TOKENS, tokens),
        (names.LLM_COST, {(name,): row.cost for name, row in by_server.items()}),
        (names.LLM_UNPRICED, {(name,): row.unpriced_calls for name, row in by_server.items()}),
        (names.LLM_SAVED, {(): spent[""].saved if "" in spent else 0.0}),
        (names.LLM_BUDGET_LEFT, {} if left_today is None else {(): left_today}),
        (names.LLM_BUDGETS_SHORT, {(): float(sum(each.is_short for each in budget_states))}),
    ]


def periodic_duties(context: DutyContext) -> Iterator[PeriodicDuty]:
    """Return this wing's duties: batches, and the deletion of old answers, costs and files."""
    batch_runner = BatchRunner(context.settings, context.ledger, context.publisher)
    yield PeriodicDuty("batches", batch_runner.run)
    yield PeriodicDuty("old answers", partial(_drop_answers, context), context.intervals.answers)
    unrecorded = partial(_drop_unrecorded_answers, context)
    yield PeriodicDuty("answers without a record", unrecorded, DAY)
    client_batches = OpenAiBatchService(context.settings, context.ledger, context.registry)
    yield PeriodicDuty("client batches", client_batches.turn, context.intervals.client_batches)
    yield PeriodicDuty(
        "old files of clients", partial(_drop_files, client_batches), context.intervals.answers
    )
    yield PeriodicDuty("model servers' history", partial(_record_minute, context), HISTORY_INTERVAL)


async def _record_minute(context: DutyContext) -> None:
    """Wait for the end of this minute, and record what each server is allowed. Raises
    LedgerError."""
    await asyncio.sleep(MINUTE - context.ledger.clock.time() % MINUTE)
    await record_minute(context.settings, context.ledger)


async def record_minute(settings: Settings, ledger: Ledger) -> None:
    """Record how many calls each server that was ever called is allowed, for the charts of the
    dashboard. Raises LedgerError."""
    repositories = LlmLedger(ledger)
    reports = await repositories.slots.llm_servers()
    if not reports:
        return
    max_calls = {each.name: settings.max_calls(each) for each in settings.model_servers}
    now = ledger.clock.time()
    minutes = [
        LlmMinute(now - now % MINUTE, each.name, calls_allowed(each, max_calls), each.in_flight)
        for each in reports
    ]
    await repositories.history.add_minute(minutes, now)


async def _drop_files(client_batches: OpenAiBatchService) -> None:
    """Delete files of the OpenAI-compatible API that are too old."""
    if count := await client_batches.delete_old():
        structlog.get_logger("scheduler").info("client files deleted", files=count)


async def _drop_answers(context: DutyContext) -> None:
    """Delete models' answers and records of cost that are too old, or too many."""
    log = structlog.get_logger("scheduler")
    if count := await drop_old_answers(context.settings, context.ledger):
        log.info("model answers deleted", answers=count)
    if count := await clean_up_spending(context.settings, context.ledger):
        log.info("cost records deleted", calls=count)


async def _drop_unrecorded_answers(context: DutyContext) -> None:
    """Delete files of models' answers that no record names."""
    if count := await drop_unrecorded_answers(context.settings, context.ledger):
        structlog.get_logger("scheduler").info("unrecorded model answers deleted", answers=count)
