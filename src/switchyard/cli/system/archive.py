"""`jobctl archive`: jobs that were removed from the ledger, in Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.broker.times import to_datetime
from switchyard.broker.wording import pluralize, size_in_words
from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    run,
)
from switchyard.cli.base.durations import parse_duration, parse_optional_duration
from switchyard.cli.base.output import (
    JsonOption,
    YesOption,
    add_row,
    cell,
    confirm,
    console,
    echo,
    inline_json,
    print_json,
    require_answer,
    say,
    table,
)

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.archive.contents import ArchiveContents
    from switchyard.services.engine.archive.query import QueryResult
    from switchyard.services.engine.records.archive import ArchiveFile

app = typer.Typer(
    no_args_is_help=True,
    help="Jobs that were removed for their age, in Parquet files: list, query, forget.\n\n"
    "With JOBS_ARCHIVE_JOBS=true the scheduler and `jobctl prune` write jobs there before they "
    "remove them.",
)

_MAX_CELL = 200
"""Characters of a value in a table."""


@app.command("list")
def list_days(as_json: JsonOption = False) -> None:
    """List the days of the archive, with its files, jobs and sizes.

    Also names files that are missing, and files of an interrupted step, which nobody reads.
    """
    quiet_logs()
    contents = run(_read_contents(load_settings()))
    if as_json:
        print_json(_as_json(contents))
        return
    rows = table(
        "DAY", "FILES", "JOBS", "ATTEMPTS", "SIZE", "MADE", right=("FILES", "JOBS", "ATTEMPTS")
    )
    for day, each in groupby(contents.files, key=_day):
        files = list(each)
        oldest = min(file.oldest_at for file in files)
        newest = max(file.newest_at for file in files)
        add_row(
            rows,
            day,
            f"{len(files):,}",
            f"{sum(file.jobs for file in files):,}",
            f"{sum(file.attempts for file in files):,}",
            size_in_words(sum(file.bytes for file in files)),
            f"{_date(oldest)} to {_date(newest)}",
        )
    console().print(rows)
    if not contents.files:
        say("No job has been archived: docs/retention.md#archive says how.")
    if contents.missing:
        echo(
            f"{pluralize(len(contents.missing), 'file')} missing in the storage, or damaged: "
            f"{_name_some([file.key for file in contents.missing])}. Put them back from a backup, "
            "or forget them with `jobctl archive forget`",
            err=True,
        )
    if contents.leftovers:
        echo(
            f"{pluralize(len(contents.leftovers), 'file')} of an interrupted step, which nobody "
            f"reads and you can delete: {_name_some([each.key for each in contents.leftovers])}",
            err=True,
        )
    for file in contents.files:
        if file.settled_at is None:
            say(f"The jobs of {file.key} are being removed from the ledger.")


@app.command()
def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT over `jobs` and `attempts`.")
    ],
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger", help="Include the jobs that are in the ledger; `archived` tells them apart."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only jobs created within this time, such as 90d."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only jobs created longer ago than this.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=100_000, metavar="N", help="Maximum number of rows.")
    ] = 1000,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Give up after that time.")] = "5m",
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Query the archive in the SQL of DuckDB. One SELECT, which can read nothing else.

    ```
    jobctl archive query "SELECT job_type, count(*) FROM jobs GROUP BY ALL"
    jobctl archive query "DESCRIBE jobs"
    jobctl archive query --ledger "SELECT id FROM jobs WHERE tags['team'] = 'ml'"
    ```
    """
    quiet_logs()
    ages = (parse_optional_duration(since), parse_optional_duration(until))
    answer = run(
        _query(
            load_settings(),
            sql,
            include,
            ages=ages,
            with_ledger=ledger,
            limit=limit,
            timeout=parse_duration(timeout),
        )
    )
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    else:
        rows = table(*map(cell, answer.columns), flexible=[cell(each) for each in answer.columns])
        for row in answer.rows:
            add_row(rows, *(cell(_cell_text(value)) for value in row))
        console().print(rows)
    if answer.more:
        say(f"The first {pluralize(len(answer.rows), 'row')}; there are more: --limit.")


@app.command()
def forget(yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Forget files that are not in the storage any more, so that queries go on without them.

    Delete folders of `archive/` in the storage first, for days that are no longer needed; or set
    JOBS_KEEP_ARCHIVE, and the scheduler removes what is older by itself.
    """
    quiet_logs()
    settings = load_settings()
    missing = run(_read_contents(settings)).missing
    if missing and not yes:
        jobs = sum(file.jobs for file in missing)
        require_answer("forget")
        confirm(
            f"Forget {pluralize(len(missing), 'file')} with {pluralize(jobs, 'job')}, if they "
            "are not in the storage?",
            abort=True,
        )
    forgotten = run(_forget(settings))
    if as_json:
        print_json({"files": [_file_as_json(file) for file in forgotten]})
        return
    say(f"{pluralize(len(forgotten), 'file')} forgotten.")


async def _read_contents(settings: Settings) -> ArchiveContents:
    from switchyard.services.common.files.storage import Storage
    from switchyard.services.engine.archive.contents import read_contents

    async with open_ledger(settings) as ledger:
        return await read_contents(ledger, Storage(settings.files_url))


async def _forget(settings: Settings) -> Sequence[ArchiveFile]:
    from switchyard.services.common.files.storage import Storage
    from switchyard.services.engine.archive.contents import forget_missing

    async with open_ledger(settings) as ledger:
        return await forget_missing(ledger, Storage(settings.files_url))


async def _query(
    settings: Settings,
    sql: str,
    include: Iterable[str] | None,
    *,
    ages: tuple[float | None, float | None],
    with_ledger: bool,
    limit: int,
    timeout: float,
) -> QueryResult:
    from switchyard.services.common.files.storage import Storage
    from switchyard.services.engine.archive.parquet import make_secrets_hider
    from switchyard.services.engine.archive.query import ArchiveRange, run_query

    registry = load_registry(settings, include)
    async with open_ledger(settings, registry) as ledger:
        now = ledger.clock.time()
        since, until = (None if each is None else now - each for each in ages)
        everything = ArchiveRange()
        archive_range = ArchiveRange(
            everything.since if since is None else since,
            everything.until if until is None else until,
            with_ledger,
        )
        return await run_query(
            sql,
            ledger,
            Storage(settings.files_url),
            make_secrets_hider(registry),
            archive_range=archive_range,
            limit=limit,
            timeout=timeout,
        )


def _day(file: ArchiveFile) -> str:
    return file.key.split("/")[1]


def _date(moment: float) -> str:
    return to_datetime(moment).date().isoformat()


def _name_some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3:,} more" if len(keys) > 3 else "")


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else inline_json(value)
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"


def _as_json(contents: ArchiveContents) -> dict[str, Any]:
    return {
        "files": [_file_as_json(file) for file in contents.files],
        "missing": [file.key for file in contents.missing],
        "leftovers": [each.key for each in contents.leftovers],
    }


def _file_as_json(file: ArchiveFile) -> dict[str, Any]:
    return {
        "key": file.key,
        "jobs": file.jobs,
        "attempts": file.attempts,
        "bytes": file.bytes,
        "sha256": file.sha256,
        "oldest_at": to_datetime(file.oldest_at),
        "newest_at": to_datetime(file.newest_at),
        "created_at": to_datetime(file.created_at),
        "settled_at": None if file.settled_at is None else to_datetime(file.settled_at),
        "kept": len(file.kept),
    }
