"""`jobctl`: the commands, and the one place where an error becomes a line and an exit code.

Nothing heavy is imported here or at the top of a command's module: `--help` and completion
answer at once. tests/unit/test_cli_start.py holds that.
"""

from __future__ import annotations

import os
import sys
import traceback
from functools import cache
from types import TracebackType
from typing import Annotated, NoReturn, cast

import typer
from typer.core import TyperGroup

from switchyard.cli.base.errors import (
    FAILED,
    INTERRUPTED,
    USAGE,
    exit_code_of,
    explain,
    one_line,
)
from switchyard.cli.base.lazy_command import (
    LazyCommand,
    find_modules_here,
    with_plain_help,
)
from switchyard.cli.base.output import echo
from switchyard.services.common.light_imports import leave_out_unused, start_light

app = typer.Typer(
    name="jobctl",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Run, watch and repair Switchyard: a job system on RabbitMQ for document pipelines.",
    epilog="Settings are JOBS_… environment variables: docs/settings.md. All "
    "commands: docs/cli.md.",
)

# Heading in --help → command → its function or group, and the first line of its help.
PANELS = {
    "Start": {
        "demo": (
            "cli.demo.command:demo",
            "Run documents through all stages on real queues, and show what happens.",
        ),
        "up": (
            "cli.process.up:up",
            "Run the whole system until Ctrl-C: broker, workers, scheduler and HTTP API.",
        ),
        "doctor": (
            "cli.engine.inspect.doctor:doctor",
            "Check broker, lanes, ledger, workers and this host, and print remedies.",
        ),
    },
    "Run": {
        "publish": (
            "cli.engine.jobs.publish:publish",
            "Publish one job, or one per line of standard input, and print the job ids.",
        ),
        "worker": (
            "cli.process.worker:worker",
            "Run the jobs of one or more worker kinds until SIGTERM or Ctrl-C.",
        ),
        "scheduler": (
            "cli.process.scheduler:scheduler",
            "Publish due jobs, run schedules and backfills, and index dead letters, until Ctrl-C.",
        ),
        "api": ("cli.process.api:api", "Serve the HTTP API until SIGTERM or Ctrl-C."),
        "mcp": (
            "cli.process.mcp:mcp",
            "Serve tools for agents over the Model Context Protocol, on standard input and output.",
        ),
        "llm": (
            "cli.llm.app:app",
            "Language models: send a request, show servers, batches and cost.",
        ),
        "documents": (
            "cli.pipeline.documents:app",
            "Documents, over the HTTP API: upload, list, show, results, text, references.",
        ),
        "samples": (
            "cli.pipeline.samples:app",
            "Sample documents: generate files of many kinds and languages.",
        ),
        "backfill": (
            "cli.engine.backfill.operations:app",
            "Backfills (bulk publishing): start, list, show, watch, pause, resume, cancel, set.",
        ),
        "crawl": (
            "cli.pipeline.crawl:app",
            "Crawls of web sites: start, list, show, cancel.",
        ),
        "pause": (
            "cli.engine.jobs.pauses:pause",
            "Pause a lane, a job type, a source or a queue: its jobs do not begin.",
        ),
        "resume": (
            "cli.engine.jobs.pauses:resume",
            "End a pause; the jobs that it held are published, oldest first.",
        ),
        "schedules": (
            "cli.engine.jobs.schedules:app",
            "Schedules: list, add, remove, pause, resume, run, history.",
        ),
    },
    "Look": {
        "lanes": (
            "cli.engine.inspect.lanes:lanes",
            "Show the queues of each lane with their depths and limits, and jobs by state.",
        ),
        "workers": (
            "cli.engine.inspect.workers:workers",
            "List workers: alive, silent (no heartbeat: dead, or without the ledger), or stopped.",
        ),
        "pauses": (
            "cli.engine.jobs.pauses:pauses",
            "List what is paused: by whom, why, until when, and how many jobs it holds.",
        ),
        "limits": (
            "cli.engine.inspect.limits:limits",
            "Show named limits: current use, waiting jobs, and when there is room again.",
        ),
        "usage": (
            "cli.system.usage:usage",
            "Show how much space is used: the ledger by table, files by kind, index, queues.",
        ),
        "search": (
            "cli.pipeline.search:search",
            "Search the indexed documents, best passages first.",
        ),
        "graph": (
            "cli.pipeline.graph:app",
            "The knowledge graph: show, neighbours, path, cocited, coupled, cited, draw, export.",
        ),
        "jobs": (
            "cli.engine.jobs.jobs:app",
            "Jobs: list, show, watch, cancel, rerun, move, release, republish.",
        ),
    },
    "Repair": {
        "dead": (
            "cli.engine.dead.app:app",
            "Dead letters: list, group by cause, edit, redrive, export, purge.",
        ),
        "index": (
            "cli.pipeline.index:app",
            "The search index: show, rebuild, compact, abandon a rebuild.",
        ),
        "topology": (
            "cli.system.topology:app",
            "Exchanges, queues, bindings and policies: compare with the broker and apply.",
        ),
        "prune": (
            "cli.system.prune:prune",
            "Remove ended jobs, letters, operations and workers whose age is over.",
        ),
        "archive": (
            "cli.system.archive:app",
            "Jobs that were removed for their age, in Parquet files: list, query, forget.",
        ),
        "db": (
            "cli.system.db:app",
            "The ledger (database of jobs): create or upgrade its tables, and its users.",
        ),
        "backup": (
            "cli.system.backup:app",
            "Backups of a whole system: create, verify, restore, reconcile with the broker.",
        ),
        "system": (
            "cli.system.system:app",
            "System id: which system the ledger, broker and files belong to.",
        ),
        "keys": ("cli.system.keys:app", "Create, limit, list and revoke keys of the HTTP API."),
    },
}

LONG_RUNNING = frozenset({"api", "demo", "mcp", "scheduler", "up", "worker"})
"""Commands that work for longer than a call, themselves or through other processes: they need what
`start_light` leaves out."""


def _show_version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

        echo(version("switchyard"))
        raise typer.Exit


@app.callback()
def _jobctl(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version, and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Make a group, to which `commands` adds all commands."""


@cache
def shared_commands() -> TyperGroup:
    """Return the commands of this process and of those that are forked from it, made once."""
    return commands()


def commands() -> TyperGroup:
    """Return all of `jobctl`; each command is imported when it is used."""
    group = cast("TyperGroup", typer.main.get_command(app))
    for panel, entries in PANELS.items():
        for name, (reference, summary) in entries.items():
            group.add_command(LazyCommand(name, summary, reference=reference, panel=panel))
    return cast("TyperGroup", with_plain_help(group))


def main() -> NoReturn:
    """Run the command line."""
    sys.excepthook = _show_bug
    find_modules_here()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command, and return its exit code. An error is one line on stderr."""
    leave_out_unused()
    if not LONG_RUNNING.intersection(arguments[:1]):
        start_light()
    try:
        code = shared_commands().main(arguments, prog_name="jobctl", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _wrong_usage(error)
    except typer.Abort:
        return _report_failure("aborted", FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has what it wanted. Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        code = exit_code_of(error)
        if code is None:
            raise  # a bug: the traceback is what helps
        return _report_failure(explain(error), code)


def _wrong_usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", error.__str__)()
    if context is not None and message == context.get_help():  # a group without a command
        echo(message)
        return USAGE
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    # Errors of our own types come with pydantic's prefix.
    reason = one_line(message).replace(": Value error, ", ": ").rstrip(".")
    return _report_failure(reason + hint, USAGE)


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a bug as Python itself would, but for what the error's text would do to the
    terminal."""
    echo("".join(traceback.format_exception(kind, error, trace)), err=True, nl=False)


def _report_failure(text: str, code: int) -> int:
    echo(f"jobctl: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
