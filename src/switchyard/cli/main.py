"""`jobctl`: the commands, and the one place where what went wrong becomes a line and an exit code.

Nothing heavy is imported here or at the top of a command's module: `--help` and completion
answer at once. tests/unit/test_cli_start.py holds that.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import NoReturn, cast

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
from switchyard.cli.base.later import MARKUP, Later
from switchyard.cli.base.modules import find_modules_here
from switchyard.cli.base.output import echo

app = typer.Typer(
    name="jobctl",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    help="Run, watch and repair Switchyard: a job system on RabbitMQ for document pipelines.",
    epilog="Settings come from JOBS_… variables: docs/settings.md. Every command: docs/cli.md.",
)

# Where the command lies, and the first line of its help, under the heading that --help shows it.
PANELS = {
    "Start": {
        "demo": (
            "cli.demo.command:demo",
            "Put documents through all stages on real queues, and show what happens.",
        ),
        "up": (
            "cli.process.up:up",
            "Run the whole system until Ctrl-C: broker, workers, scheduler and HTTP API.",
        ),
        "doctor": (
            "cli.look.doctor:doctor",
            "Check broker, lanes, ledger, workers and this host one by one.",
        ),
    },
    "Run": {
        "publish": (
            "cli.jobs.publish:publish",
            "Publish jobs: checked, recorded in the ledger, and confirmed by the broker.",
        ),
        "worker": (
            "cli.process.worker:worker",
            "Work jobs until SIGTERM or Ctrl-C: then finish those that run and give back the rest.",
        ),
        "scheduler": (
            "cli.process.scheduler:scheduler",
            "Publish what is due, index dead letters, and run backfills, until SIGTERM or Ctrl-C.",
        ),
        "api": ("cli.process.api:api", "Serve the HTTP API until SIGTERM or Ctrl-C."),
        "llm": (
            "cli.jobs.llm:app",
            "Ask language models, and see their servers and what they cost.",
        ),
        "documents": (
            "cli.look.documents:app",
            "Documents, over the HTTP API: upload, list, show, wait, result.",
        ),
        "samples": (
            "cli.look.samples:app",
            "Sample documents of many kinds and languages.",
        ),
        "backfill": (
            "cli.backfill.operations:app",
            "Backfills: start, list, show, watch, pause, resume, cancel, set.",
        ),
        "crawl": (
            "cli.jobs.crawl:app",
            "Crawls of web sites: start, list, show, cancel.",
        ),
        "schedules": (
            "cli.jobs.schedules:app",
            "Schedules: list, add, remove, pause, resume, run, history.",
        ),
    },
    "Look": {
        "lanes": (
            "cli.look.lanes:lanes",
            "Show each lane's queues with their depths and limits, and its jobs by state.",
        ),
        "workers": (
            "cli.look.workers:workers",
            "List workers: alive, silent (no beat: it died, or lost the ledger), or stopped.",
        ),
        "limits": (
            "cli.look.limits:limits",
            "Show named limits: what is in use, how many jobs wait, and when there is room again.",
        ),
        "search": (
            "cli.look.search:search",
            "Search the documents that have been indexed, best places first.",
        ),
        "graph": (
            "cli.look.graph:app",
            "The knowledge graph: show, neighbours, path, cocited, coupled, cited, draw, export.",
        ),
        "jobs": ("cli.jobs.app:app", "Jobs: list, show, watch, cancel, release, republish."),
    },
    "Repair": {
        "dead": ("cli.dead.app:app", "Dead letters: what died, why, and back again."),
        "index": ("cli.jobs.index:app", "The index that is searched: show, rebuild, compact."),
        "topology": (
            "cli.system.topology:app",
            "Exchanges, queues, bindings and policies on the broker.",
        ),
        "db": ("cli.system.db:app", "The ledger's tables."),
        "system": (
            "cli.system.system:app",
            "Which system ledger, broker and files belong to.",
        ),
        "keys": ("cli.system.keys:app", "Make, list and revoke keys of the HTTP API."),
    },
}


@app.callback()
def _jobctl() -> None:
    """A callback makes a group of it, which gets its commands below."""


def commands() -> TyperGroup:
    """All of `jobctl`; each command is imported when it is used."""
    group = cast("TyperGroup", typer.main.get_command(app))
    for panel, entries in PANELS.items():
        for name, (place, summary) in entries.items():
            group.add_command(Later(name, summary, place=place, panel=panel))
    return group


def main() -> NoReturn:
    """The entry point of the command line."""
    sys.excepthook = _show_bug
    find_modules_here()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command; gives its exit code. What went wrong is one line on stderr."""
    try:
        code = commands().main(arguments, prog_name="jobctl", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _wrong_usage(error)
    except typer.Abort:
        return _failed("aborted", FAILED)
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
        return _failed(explain(error), code)


def _wrong_usage(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", error.__str__)()
    if not message.strip():
        return USAGE  # a group without a command: its help has been printed instead
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    return _failed(one_line(message).rstrip(".") + hint, USAGE)


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python itself would, but for what the error's text would do to the terminal."""
    echo("".join(traceback.format_exception(kind, error, trace)), err=True, nl=False)


def _failed(text: str, code: int) -> int:
    echo(f"jobctl: {text}", err=True)
    return code


if __name__ == "__main__":
    main()
