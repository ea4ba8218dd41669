"""`jobctl backup`: a whole system in one file, made while it runs, checked and restored."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.broker.lanes import DEAD_LOG_QUEUE, DEAD_QUEUE
from switchyard.broker.times import format_local
from switchyard.broker.wording import pluralize, size_in_words
from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.output import (
    JsonOption,
    YesOption,
    confirm,
    echo,
    print_json,
    print_rows,
    require_answer,
    say,
)
from switchyard.cli.system.topology import declared_topology

if TYPE_CHECKING:
    from switchyard.services.engine.backup.archive import Manifest
    from switchyard.services.engine.backup.reconciling import QueueDifferences, ReconcileResult

app = typer.Typer(
    no_args_is_help=True,
    help="Backups of a whole system: create, verify, restore, reconcile with the broker.\n\n"
    "To get a system back: end its processes; then `restore`, `jobctl topology apply`, "
    "`reconcile`; then start it.",
)

ArchiveArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The backup's file.")]
_SHOWN_MISSING = 3


@app.command()
def create(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="A new file, or a directory that gets a file named by system and time.",
        ),
    ],
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy ledger, stored files and search index into one file, while the system runs.

    The file also has the topology's definitions and the names of the settings; it has no settings'
    values. Whoever can read it can read all payloads. With a ledger in PostgreSQL it says what to
    use instead.
    """
    from switchyard.broker.topology.definitions import render_text
    from switchyard.services.engine.backup.creating import create_backup

    quiet_logs()
    settings = load_settings()
    topology = declared_topology(settings, None, include)
    done = run(create_backup(settings, target, render_text(topology)))
    manifest = done.manifest
    if as_json:
        print_json(_as_json(done.archive, manifest) | {"archive_bytes": done.size})
        return
    echo(f"{done.archive}: {size_in_words(done.size)}, {_summary(manifest)}")
    _report_missing(manifest)
    say(f"Check it with `jobctl backup verify {done.archive}`.")


@app.command()
def verify(archive: ArchiveArgument, as_json: JsonOption = False) -> None:
    """Check a backup without restoring it: each file's SHA-256, and the ledger by SQLite's check.

    Needs as much free room as the ledger in it has, for a moment. Exit code 1: do not rely on it.
    """
    from switchyard.services.engine.backup.restoring import verify_backup

    quiet_logs()
    manifest = verify_backup(archive)
    if as_json:
        print_json(_as_json(archive, manifest))
        return
    echo(f"{archive} is whole: {_summary(manifest)}")
    print_rows(
        [
            ("system", f"{manifest.system_name} ({manifest.system_id})"),
            ("made", _moment(manifest)),
            ("program", manifest.program),
            ("ledger's tables", manifest.revision),
            ("generation", str(manifest.generation)),
            ("rows", ", ".join(f"{n:,} {name}" for name, n in manifest.tables.items() if n)),
            ("settings", ", ".join(manifest.settings)),
        ]
    )
    _report_missing(manifest)


@app.command()
def restore(
    archive: ArchiveArgument,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Take the place of the data that is there, which is kept beside it.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put a backup in the place that the settings name. No process of the system may run.

    The place is that of JOBS_DATA_DIR, JOBS_DATABASE_URL, JOBS_STORAGE_URL and JOBS_INDEX_URL. It
    is unpacked and checked first, and then exchanged at once: whatever goes wrong, the old state
    stays. Afterwards compare ledger and broker: `jobctl backup reconcile`.
    """
    from switchyard.services.engine.backup.restoring import restore_backup
    from switchyard.services.engine.ledger.sql.tables import SCHEMA_REVISION

    quiet_logs()
    settings = load_settings()
    done = restore_backup(settings, archive, replace=replace)
    manifest = done.manifest
    if as_json:
        print_json(
            _as_json(archive, manifest)
            | {"ledger": str(done.ledger), "kept": [str(each) for each in done.kept]}
        )
        return
    if done.undid:
        say("A restore that had been interrupted was undone first.")
    echo(f"restored to {done.ledger}: {_summary(manifest)}, of {_moment(manifest)}")
    for each in done.kept:
        echo(f"kept what was there: {each}")
    _report_missing(manifest)
    if manifest.revision < SCHEMA_REVISION:
        say("Now run `jobctl db upgrade`: its tables are of an older version.")
    say("Before you start the system, run `jobctl topology apply` and `jobctl backup reconcile`.")


@app.command()
def reconcile(
    include: IncludeOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what differs; change nothing.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the waiting jobs of a restored ledger with the broker, and put both right.

    It reads all queues, so no worker may run. It gives broker, files and index to this ledger's
    system, lists the letters of jobs.dead, and has the jobs published again that the broker lacks.
    Can be repeated safely.
    """
    from switchyard.services.engine.backup.reconciling import compare_queues
    from switchyard.services.engine.backup.reconciling import reconcile as put_right

    quiet_logs()
    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    topology = declared_topology(settings, None, include)
    queues = [
        each.name for each in topology.queues if each.name not in (DEAD_QUEUE, DEAD_LOG_QUEUE)
    ]

    async def compare() -> QueueDifferences:
        async with open_ledger(settings, registry) as ledger:
            return await compare_queues(settings, ledger, queues)

    async def work() -> ReconcileResult:
        async with open_ledger(settings, registry) as ledger:
            return await put_right(settings, ledger, registry, differences)

    differences = run(compare())
    if not as_json:
        _show(differences)
    if dry_run:
        done = None
    else:
        if not yes:
            require_answer("change the broker's system and publish jobs again")
            confirm("Does the broker belong to this ledger, and shall it publish them?", abort=True)
        done = run(work())
    if as_json:
        print_json(
            asdict(differences)
            | {"lost": len(differences.lost), "done": None if done is None else asdict(done)}
        )
    elif done is not None:
        echo(
            f"{pluralize(done.republished, 'job is', 'jobs are')} published again by the "
            "scheduler; "
            f"{pluralize(done.letters.letters, 'dead letter')} listed, {done.letters.dropped:,} "
            "that the broker has no longer noted as dropped"
        )


def _show(differences: QueueDifferences) -> None:
    print_rows(
        [
            ("in the queues", pluralize(differences.on_broker, "message")),
            (
                "unknown to the ledger",
                f"{differences.unknown:,}: recorded when a worker claims them",
            ),
            ("ended by the ledger", f"{differences.ended:,}: skipped when a worker gets them"),
            ("no job at all", f"{differences.unreadable:,}"),
            ("by the ledger alone", f"{len(differences.lost):,}: to be published again"),
        ]
    )


def _summary(manifest: Manifest) -> str:
    jobs = pluralize(manifest.tables.get("jobs", 0), "job")
    index = size_in_words(
        sum(each.size for name, each in manifest.members.items() if name.startswith("index/"))
    )
    return f"{jobs}, {pluralize(manifest.files, 'file')}, {index} of index"


def _report_missing(manifest: Manifest) -> None:
    for part, what in manifest.elsewhere.items():
        echo(f"not in it: {part}, {what}", err=True)
    if manifest.missing:
        shown = ", ".join(manifest.missing[:_SHOWN_MISSING])
        number = pluralize(len(manifest.missing), "file")
        echo(f"{number} that waiting jobs name were not in the storage: {shown}", err=True)


def _as_json(archive: Path, manifest: Manifest) -> dict[str, Any]:
    values = manifest.model_dump(exclude={"members"})
    return {
        "archive": str(archive),
        **values,
        "files": manifest.files,
        "bytes": manifest.bytes,
    }


def _moment(manifest: Manifest) -> str:
    return format_local(manifest.made_at, zoned=True)
