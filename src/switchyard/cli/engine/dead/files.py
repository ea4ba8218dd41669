"""`jobctl dead export`, `import` and `replay`: move dead letters between systems, and run one in
this terminal."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.errors import FAILED, CommandFailed, WrongUsage, writing
from switchyard.cli.base.output import JsonOption, echo, indented_json, inline_json, print_json, say
from switchyard.cli.engine.dead.changes import JqOption, MergeOption, SetOption, make_change
from switchyard.cli.engine.dead.letters import check_state, index_new_letters
from switchyard.cli.engine.dead.options import (
    AllOption,
    IdsArgument,
    full_letter_id,
    with_ids,
    with_letter_filter,
)
from switchyard.services.common.file_errors import describe_read_error

if TYPE_CHECKING:
    from switchyard.services.engine.dead.files import ImportResult
    from switchyard.services.engine.dead.stored import StoredLetter
    from switchyard.services.engine.jobs.registry import Registry
    from switchyard.services.engine.records.requests import NewJob
    from switchyard.services.engine.runtime.brokerless_attempt import Attempt


@with_letter_filter
def export(
    ids: IdsArgument = None,
    everything: AllOption = False,
    file: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Output file; - is standard output.")
    ] = "-",
    state: Annotated[
        str,
        typer.Option(help="waiting, redriven, purged, dropped (no longer on the broker), or all."),
    ] = "waiting",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of letters, oldest first. Default: no limit."),
    ] = None,
    *,
    letter_filter: Any,
) -> None:
    """Write dead letters as JSON Lines, oldest first, without removing them.

    Example:

    ```
    jobctl dead export --group ab12cd34 --out letters.jsonl
    ```
    """
    from switchyard.services.engine.dead.files import export_letters
    from switchyard.services.engine.dead.groups import require_group, with_full_ids

    letter_filter = with_ids(letter_filter, ids, everything=everything)
    wanted_state = check_state(state)
    settings = load_settings()
    quiet_logs()

    async def work() -> int:
        count, registry = 0, load_registry(settings)
        async with open_ledger(settings, registry) as ledger, _open_output(file) as output:
            await index_new_letters(settings, ledger, registry)
            await require_group(ledger, letter_filter)
            full_filter = await with_full_ids(ledger, letter_filter)
            in_index = full_filter.for_index(wanted_state, ledger.clock.now())
            async for line in export_letters(ledger, in_index, limit=limit):
                output.write(line + "\n")
                count += 1
        return count

    say(f"{run(work()):,} exported")


@asynccontextmanager
async def _open_output(file: str) -> AsyncIterator[TextIO]:
    """Open the output; a file gets its name only when it is complete."""
    if file == "-":
        yield sys.stdout
        return
    target = Path(file)
    part = target.with_name(target.name + ".part")
    with writing(file):
        with part.open("w", encoding="utf-8") as output:
            yield output
        part.replace(target)


def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSON Lines file written by `jobctl dead export`; - is standard input.",
        ),
    ],
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add exported dead letters to the dead letters of this system.

    All lines are validated first. Letters that are already present are skipped, so an interrupted
    import can be repeated. To run the jobs again, redrive them afterwards.
    """
    from switchyard.services.engine.dead.files import import_letters

    letters = _read_letters(file)
    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    quiet_logs()

    async def work() -> ImportResult:
        from switchyard.broker.publish.publisher import Publisher

        async with (
            open_ledger(settings, registry) as ledger,
            Publisher(settings, name="import") as publisher,
        ):
            await index_new_letters(settings, ledger, registry)
            done = await import_letters(ledger, publisher, letters)
            await index_new_letters(settings, ledger, registry)
            return done

    done = run(work())
    if as_json:
        print_json({"imported": done.imported, "skipped": done.skipped, "refused": done.refused})
    else:
        skipped = f"; {done.skipped:,} skipped: they wait here already" if done.skipped else ""
        echo(f"{done.imported:,} imported{skipped}")
    if done.refused:
        first = "; ".join(done.refused[:3])
        raise CommandFailed(f"the broker does not take {len(done.refused):,} letters: {first}")


def _read_letters(file: str) -> list[StoredLetter]:
    from switchyard.services.engine.dead.files import InvalidLine, parse_line

    try:
        with sys.stdin.buffer if file == "-" else Path(file).open("rb") as lines:
            letters = []
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    letters.append(parse_line(line))
                except InvalidLine as error:
                    raise CommandFailed(f"line {number}: {error}; nothing was imported") from error
            return letters
    except OSError as error:
        raise CommandFailed(describe_read_error(file, error)) from error


def replay(
    letter_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id of the dead letter, from `jobctl dead list`; the first six characters or more "
            "are enough.",
        ),
    ],
    local: Annotated[
        bool,
        typer.Option(
            "--local",
            help="Required: run the handler in this terminal, without side effects on the system.",
        ),
    ] = False,
    assignments: SetOption = None,
    merge: MergeOption = None,
    jq: JqOption = None,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the handler of a dead letter in this terminal and print what happens.

    Nothing is published or recorded: it works on copies of the files and of the index, and rolls
    back changes in the ledger. Calls to external servers (an LLM, a website) are real. Exit code 1:
    the job would not succeed.

    Example:

    ```
    jobctl dead replay ID --local --set payload.max_words=80
    ```
    """
    if not local:
        raise WrongUsage(f"give --local; for real: `jobctl dead redrive {letter_id}`")
    change = make_change(None, assignments, merge, jq, None, None)
    settings = load_settings()
    registry = load_registry(settings, include)
    quiet_logs()

    async def work() -> Attempt:
        from switchyard.services.engine.dead.changes import make_copy
        from switchyard.services.engine.dead.replay import replay as run_handler
        from switchyard.services.engine.dead.stored import stored_letter

        async with open_ledger(settings, registry) as ledger:
            if settings.amqp_url is not None:
                await index_new_letters(settings, ledger, registry)
            full_id = await full_letter_id(ledger, letter_id)
            letter = await ledger.dead_letters.require_dead(full_id)
        message, routing_key = make_copy(stored_letter(letter), change, registry)
        return await run_handler(settings, registry, message, routing_key)

    attempt = run(work())
    if as_json:
        print_json(replay_as_json(registry, attempt))
    else:
        print_replay(registry, attempt)
    if not attempt.succeeded:
        raise typer.Exit(FAILED)


def replay_as_json(registry: Registry, attempt: Attempt) -> dict[str, Any]:
    """Return a replay as `--json` prints it."""
    failure = attempt.failure
    return {
        "outcome": type(attempt.decision).__name__.lower(),
        "seconds": round(attempt.seconds, 3),
        "result": attempt.result,
        "next_jobs": [
            {"routing_key": job.routing_key, "payload": _shown_payload(registry, job)}
            for job in attempt.following
        ],
        "error_type": failure.error_type if failure else None,
        "error_message": failure.message if failure else None,
        "traceback": failure.traceback or None if failure else None,
    }


def _shown_payload(registry: Registry, job: NewJob) -> dict[str, Any]:
    return registry.hide_secrets(job.message.job_type, job.message.payload)


def print_replay(registry: Registry, attempt: Attempt) -> None:
    """Print a replay for people."""
    from switchyard.services.engine.jobs.retry import Delayed, Died

    match attempt.decision:
        case Delayed(level=level, counts=counts):
            what = f"would be tried again after {level:g} s"
            echo(what if counts else f"{what}, no attempt used up")
        case Died(reason=reason):
            echo(f"would be dead again: {reason}")
        case _:
            echo(f"succeeds, in {attempt.seconds:.2f} s")
            echo(indented_json(attempt.result))
    for job in attempt.following:
        payload = inline_json(_shown_payload(registry, job))
        echo(f"would publish {job.routing_key} {payload}")
    if attempt.failure is not None:
        echo(f"{attempt.failure.error_type}: {attempt.failure.message}")
        if attempt.failure.traceback:
            echo(attempt.failure.traceback.rstrip())
