"""`jobctl`: the commands, and the one place where what went wrong becomes a line and an exit code.

from switchyard.cli.base.output import echo
Nothing heavy is imported here or at the top of a command's module: `--help` and completion
answer at once. tests/unit/test_cli_start.py holds that.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import NoReturn

import typer

from switchyard.cli.backfill import operations as backfill
from switchyard.cli.base.errors import (
    FAILED,
    INTERRUPTED,
    USAGE,
    exit_code_of,
    explain,
    one_line,
)
from switchyard.cli.base.modules import find_modules_here
from switchyard.cli.base.output import echo
from switchyard.cli.dead import (
    edit as dead_edit,
)
from switchyard.cli.dead import (
    files as dead_files,
)
from switchyard.cli.dead import (
    groups as dead_groups,
)
from switchyard.cli.dead import (
    letters as dead,
)
from switchyard.cli.dead import (
    purge,
    redrive,
    redrives,
)
from switchyard.cli.demo import command as demo
from switchyard.cli.jobs import cancel, jobs, llm, publish
from switchyard.cli.look import doctor, documents, lanes, search, workers
from switchyard.cli.process import api, scheduler, up, worker
from switchyard.cli.system import db, keys, system, topology

app = typer.Typer(
    name="jobctl",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Run, watch and repair Switchyard: a job system on RabbitMQ for document pipelines.",
    epilog="Settings come from JOBS_… variables: docs/settings.md. Every command: docs/cli.md.",
)

START = "Start"
WORK = "Run"
LOOK = "Look"
REPAIR = "Repair"

app.command(rich_help_panel=START)(demo.demo)
app.command(rich_help_panel=START)(up.up)
app.command(rich_help_panel=START)(doctor.doctor)
app.command(rich_help_panel=WORK, cls=publish.PublishCommand)(publish.publish)
app.add_typer(llm.app, name="llm", rich_help_panel=WORK)
app.add_typer(documents.app, name="documents", rich_help_panel=WORK)
app.command(rich_help_panel=WORK)(worker.worker)
app.command(rich_help_panel=WORK)(scheduler.scheduler)
app.command(rich_help_panel=WORK)(api.api)
app.command(rich_help_panel=LOOK)(lanes.lanes)
app.command(rich_help_panel=LOOK)(workers.workers)
app.command(rich_help_panel=LOOK)(search.search)

jobs.app.command()(cancel.cancel)
app.add_typer(jobs.app, name="jobs", rich_help_panel=LOOK)
dead.app.command()(dead_groups.groups)
dead.app.command()(redrive.redrive)
dead.app.add_typer(redrives.app, name="redrives")
dead.app.command()(dead_edit.edit)
dead.app.command()(dead_edit.undo)
dead.app.command()(dead_files.replay)
dead.app.command()(dead_files.export)
dead.app.command(name="import")(dead_files.import_)
dead.app.command()(purge.purge)
dead.app.command()(purge.purges)
app.add_typer(backfill.app, name="backfill", rich_help_panel=WORK)
app.add_typer(dead.app, name="dead", rich_help_panel=REPAIR)
app.add_typer(topology.app, name="topology", rich_help_panel=REPAIR)
app.add_typer(db.app, name="db", rich_help_panel=REPAIR)
app.add_typer(system.app, name="system", rich_help_panel=REPAIR)
app.add_typer(keys.app, name="keys", rich_help_panel=REPAIR)


def main() -> NoReturn:
    """The entry point of the command line."""
    sys.excepthook = _show_bug
    find_modules_here()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command; gives its exit code. What went wrong is one line on stderr."""
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="jobctl", standalone_mode=False)
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
