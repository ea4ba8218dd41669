"""`jobctl demo`: the main job, from nothing to done, with nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import load_settings, quiet_logs, run
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import echo, say

if TYPE_CHECKING:
    from switchyard.cli.system.local_broker import FoundBroker
    from switchyard.cli.system.local_system import System
    from switchyard.services.common.settings import Settings

VHOST = "switchyard-demo"
JOBS_MODULE = "switchyard.cli.demo.jobs"
RETRY_DELAYS = "1,2,4"
"""Seconds, so that nobody has to wait for 5 and 10 as in production."""
GRACE = "3"
"""Seconds that running jobs get when the demo is interrupted."""


def demo(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE", help="Your own PDFs. Default: eight samples that are included."
        ),
    ] = None,
    keep_data: Annotated[
        bool,
        typer.Option(
            "--keep-data", help="Keep ledger, files and logs afterwards, and print where they are."
        ),
    ] = False,
) -> None:
    """Run documents through all stages on real queues, and show what happens.

    Needs no configuration: it finds or starts a broker, starts workers, publishes a job that fails
    twice and one that dies and is redriven, searches the result, and stops everything it started.
    """
    from switchyard.cli.base.stopping import stop_by_interrupt
    from switchyard.cli.demo.play import play
    from switchyard.cli.demo.report import judge, print_summary

    started = time.monotonic()
    quiet_logs("critical")
    stop_by_interrupt()
    settings = load_settings()
    directory = Path(tempfile.mkdtemp(prefix="switchyard-demo-"))
    try:
        with _system(settings, directory) as system:
            story = run(play(system, directory, [Path(file) for file in files or ()]))
            print_summary(story, time.monotonic() - started)
    finally:
        if keep_data:
            say(f"Kept in {directory}: ledger.db, files, index, logs")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    problems = judge(story)
    if problems:
        raise CommandFailed(f"not as it should be: {'; '.join(problems)}")
    echo(f"Everything is as it should be ({time.monotonic() - started:.0f} s).")


@contextmanager
def _system(settings: Settings, directory: Path) -> Iterator[System]:
    """The system on a virtual host of its own, set up; what was started ends with the context."""
    from switchyard.cli.system.local_broker import any_broker
    from switchyard.cli.system.local_system import prepare
    from switchyard.cli.system.vhosts import temporary_vhost

    with any_broker(settings, directory / "broker", say) as found:
        say(f"Broker: {found.what}")
        if found.is_private:
            system = _assemble(found, found.amqp_url, directory)
            run(prepare(system))
            yield system
            return
        with temporary_vhost(found, VHOST) as url:
            if url is None:
                url = run(_unused_vhost(found))
            system = _assemble(found, url, directory)
            say(f"Virtual host: {system.settings.vhost}")
            run(prepare(system))
            yield system


def _assemble(found: FoundBroker, amqp_url: str, directory: Path) -> System:
    from switchyard.cli.system.local_system import assemble

    return assemble(
        amqp_url=amqp_url,
        management_url=found.management_url,
        data_dir=directory,
        only_in_data_dir=True,
        modules=[JOBS_MODULE],
        retry_delays=RETRY_DELAYS,
        shutdown_grace=GRACE,
    )


async def _unused_vhost(found: FoundBroker) -> str:
    """The virtual host of the broker's own address, where nobody else's jobs can be.

    The demo's workers would take them, and their records would go with the demo's data.
    """
    from switchyard.broker.lanes import LANES, queue_name
    from switchyard.broker.wire.depths import ask_queues

    names = [queue_name(lane.name, worker) for lane in LANES for worker in lane.workers]
    queues = await ask_queues(found.amqp_url, names)
    if any(waiting is not None for waiting in queues.values()):
        raise CommandFailed(
            "we may make no virtual host on this broker, and the one of JOBS_AMQP_URL has a "
            "Switchyard in it already: unset JOBS_AMQP_URL, or set it to an empty virtual host"
        )
    return found.amqp_url
