"""`jobctl dead list` and `show`: the dead letters, and why they died."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.broker.times import format_local
from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.durations import age
from switchyard.cli.base.errors import WrongUsage, one_line
from switchyard.cli.base.output import (
    JsonOption,
    add_row,
    cell,
    console,
    echo,
    indented_json,
    inline_json,
    print_json,
    print_rows,
    say,
    table,
)
from switchyard.cli.base.shared_options import MAX_LIMIT, LimitOption
from switchyard.cli.engine.dead.options import full_letter_id, with_letter_filter

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.requests import LetterEdit
    from switchyard.services.engine.records.results import DeadLetter, JobRecord

WAITING, ALL = "waiting", "all"


@with_letter_filter
def list_dead(
    state: Annotated[
        str,
        typer.Option(help="waiting, redriven, purged, dropped (no longer on the broker), or all."),
    ] = WAITING,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
    *,
    letter_filter: Any,
) -> None:
    """List dead letters, newest first."""
    wanted_state = check_state(state)
    quiet_logs()

    async def read(settings: Settings, registry: Registry) -> list[DeadLetter]:
        async with open_ledger(settings, registry) as ledger:
            await index_new_letters(settings, ledger, registry)
            page = await ledger.dead_letters.list_dead(
                letter_filter.for_index(wanted_state, ledger.clock.now()), limit=limit
            )
            return list(page.items)

    settings = load_settings()
    letters = run(read(settings, load_registry(settings)))
    if as_json:
        from switchyard.api.views.dead import view_letter

        print_json([view_letter(letter) for letter in letters])
        return
    if not letters:
        say("No dead letters." if state == WAITING else f"No dead letters ({state}).")
        return
    rows = table("ID", "JOB", "REASON", "DIED", "ERROR", flexible=("JOB", "ERROR"))
    for letter in letters:
        add_row(
            rows,
            cell(letter.id),
            cell(letter.routing_key),
            letter.reason if state == WAITING else f"{letter.reason}, {letter.state}",
            age(letter.dead_at),
            cell(error_of(letter)),
        )
    console().print(rows)
    if len(letters) == limit:
        say(f"The latest {limit}; more with --limit (at most {MAX_LIMIT}) or a filter.")


def check_state(state: str) -> str | None:
    """Return the state, None for all. Raises WrongUsage for an unknown state."""
    from switchyard.services.engine.records.states import DeadLetterState

    if state not in (ALL, *DeadLetterState):
        raise WrongUsage(f"--state {state!r}: choose {', '.join(DeadLetterState)} or {ALL}")
    return None if state == ALL else state


def show(
    letter_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id of the dead letter, from `jobctl dead list`; the first six characters or more "
            "are enough.",
        ),
    ],
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a dead letter: body, headers, traceback, attempts, and the commands to redrive it."""
    quiet_logs()

    async def read(
        settings: Settings, registry: Registry
    ) -> tuple[DeadLetter, JobRecord | None, list[LetterEdit]]:
        async with open_ledger(settings, registry) as ledger:
            await index_new_letters(settings, ledger, registry)
            full_id = await full_letter_id(ledger, letter_id)
            letter = await ledger.dead_letters.require_dead(full_id)
            job = None if letter.job_id is None else await ledger.job_reads.get(full_id)
            return letter, job, await ledger.redrives.letter_edits(letter_id=full_id)

    settings = load_settings()
    registry = load_registry(settings, include)
    letter, job, edits = run(read(settings, registry))
    if as_json:
        from switchyard.api.views.dead import view_letter_details

        print_json(view_letter_details(registry, letter, job, edits))
        return
    _print_letter(registry, letter, job, edits)


async def index_new_letters(settings: Settings, ledger: Ledger, registry: Registry) -> None:
    """Index letters that the broker has and the ledger does not. Without a broker, the letters
    indexed before are shown."""
    from switchyard.broker.errors import BrokerUnavailable, WrongSystem
    from switchyard.services.engine.dead.indexing import index_waiting
    from switchyard.services.engine.identity.broker import require_same_system
    from switchyard.services.engine.monitoring.lane_report import count_unlisted_letters

    require_broker(settings)
    try:
        await require_same_system(settings, ledger)
        await index_waiting(settings, ledger, registry)
        if (more := await count_unlisted_letters(settings, ledger)) > 0:
            say(
                f"jobs.dead has {pluralize(more, 'message')} more than the ledger lists: "
                "`jobctl dead index` lists them"
            )
    except WrongSystem:
        raise
    except BrokerUnavailable as error:
        say(f"the latest may be missing: {one_line(str(error))}")


def error_of(letter: DeadLetter) -> str:
    """Return the error in one line."""
    parts = [part for part in (letter.error_type, letter.error_message) if part]
    return ": ".join(parts)


def _print_letter(
    registry: Registry, letter: DeadLetter, job: JobRecord | None, edits: Sequence[LetterEdit]
) -> None:
    print_rows(
        [
            ("id", letter.id),
            ("job", letter.routing_key or ""),
            ("reason", letter.reason),
            ("group", letter.fingerprint or ""),
            ("state", letter.state),
            ("error", error_of(letter)),
            ("tries", str(letter.attempts)),
            ("redriven", pluralize(letter.redrives, "time") if letter.redrives else ""),
            ("died", _describe_time(letter.dead_at)),
            (
                "first died",
                _describe_time(letter.first_at) if letter.first_at != letter.dead_at else "",
            ),
            ("job is now", str(job.state) if job is not None else ""),
        ]
    )
    screen = console()
    for attempt in job.timeline if job is not None else ():
        error = f"{attempt.error_type}: {attempt.error_message}" if attempt.error_type else ""
        screen.print(
            f"  attempt {attempt.attempt}  {attempt.outcome}  {age(attempt.finished_at)} ago  "
            f"{cell(error)}"
        )
    for edit in edits:
        undone = ", undone" if edit.undone_at else ""
        screen.print(
            f"  edited by {cell(edit.edited_by)} {age(edit.edited_at)} ago "
            f"({edit.operation_id}{undone})"
        )
    from switchyard.api.views.dead import parse_message, shown_body

    _section("Body")
    body = shown_body(registry, letter.body)
    message = parse_message(body)
    if message is None:
        echo(body.decode("utf-8", "backslashreplace"))
    else:
        echo(indented_json(message))
    from switchyard.broker.dead.dead_letter_headers import PROPERTIES_HEADER

    # The headers of DeadLetterInfo are shown above, in words.
    others = {
        key: each
        for key, each in letter.headers.items()
        if not key.startswith("x-dead-") or key == PROPERTIES_HEADER
    }
    if others:
        _section("Headers")
        echo(indented_json(others))
    if letter.traceback:
        _section("Traceback")
        echo(letter.traceback.rstrip())
    if letter.state in (WAITING, "dropped"):
        _section("What to do")
        for line in hints(letter, message):
            echo(line)


def _section(title: str) -> None:
    console().print(f"\n[bold]{title}[/]")


def _describe_time(moment: float) -> str:
    return f"{format_local(moment)} ({age(moment)} ago)"


def hints(letter: DeadLetter, message: object) -> list[str]:
    """Return the exact commands for the next steps."""
    from switchyard.broker.dead.dead_letter_headers import PROPERTIES_HEADER

    again = f"jobctl dead redrive {letter.id}"
    if letter.state != WAITING:
        return [f"{again} --from-ledger      # the broker has it no longer"]
    lines = []
    if PROPERTIES_HEADER in letter.headers:
        message = None
        lines.append(
            f"Its AMQP properties can't be read (as they came, in base64: {PROPERTIES_HEADER}): "
            "mend the publisher, and publish the job anew."
        )
    elif message is None:
        lines.append("It is no job message: mend the publisher, and publish the job anew.")
    elif letter.reason == "refused":
        lines.append(f"{again} --from-ledger      # once the broker takes a message of that size")
    elif letter.reason == "unroutable":
        lines += [
            "jobctl topology apply      # if the job type is new",
            f"{again} --to LANE.JOB_TYPE",
        ]
    else:
        if letter.reason == "invalid_payload":
            lines.append("Was the worker older than the publisher? Then start the new one, and:")
        lines.append(again)
        payload = message.get("payload") if isinstance(message, Mapping) else None
        if isinstance(payload, Mapping) and payload:
            name, value = next(iter(payload.items()))
            shown = inline_json(value)
            text = shown if len(shown) <= 40 else "…"
            lines.append(f"{again} --set 'payload.{name}={text}'      # with another value")
    if message is not None:
        lines.append(f"jobctl dead edit {letter.id}      # in your editor")
        lines.append(
            f"jobctl dead replay {letter.id} --local      # what happens, touching nothing"
        )
    lines.append(f"jobctl dead purge {letter.id}      # throw it away")
    return lines
