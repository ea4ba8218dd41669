"""`jobctl demo`: the main job, from nothing to done, with nothing left behind."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import load_settings, run
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import echo, say

if TYPE_CHECKING:
    from switchyard.cli.system.local_broker import FoundBroker
    from switchyard.cli.system.local_system import System
    from switchyard.cli.system.spawner import Spawner
    from switchyard.cli.system.supervisor import Supervisor
    from switchyard.services.common.settings import Settings

VHOST = "switchyard-demo"
JOBS_MODULE = "switchyard.cli.demo.jobs"
EXTRAS = ("llm", "documents", "citations", "graph")
"""What the stages of its documents need; with `--keep`, `api` as well."""
RETRY_DELAYS = "1,2,4"
"""Seconds: shorter than the 5 and 10 in production, so that nobody has to wait."""
WORKER_OPTIONS = {"llm": ("--concurrency", "5", "--reserve", "2")}
"""Options of the workers by kind. They override the environment's, as what the demo shows depends
on them. With five slots, two jobs of a killed worker may run again at the same time."""
IN_ONE_PROCESS = frozenset({"embed", "link", "reindex"})
"""Kinds of worker that share a process: loading the index takes three seconds of processor time."""
GRACE = "3"
"""Seconds that running jobs get when the demo is interrupted."""
STOP_TIMEOUT = 15.0
POLL_INTERVAL = 0.3
PAGES = (("Dashboard", "/dashboard"), ("API", "/docs"), ("API", "/openapi.json"))
"""Names and paths of pages for a browser. Of each name, the first that the API has is shown."""


def demo(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE", help="Your own PDFs. Default: eight samples that are included."
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave everything running until Ctrl-C, with the HTTP API."),
    ] = False,
    keep_data: Annotated[
        bool,
        typer.Option(
            "--keep-data", help="Keep ledger, files and logs afterwards, and print where they are."
        ),
    ] = False,
) -> None:
    """Run documents through all stages on real queues, and show what happens.

    Needs no configuration: it finds or starts a broker and starts workers. A hot job overtakes a
    backfill, a job fails twice, one dies and is redriven, and a worker is killed in the middle of
    its jobs. Then it searches the documents, and stops everything it started.
    """
    from switchyard.cli.base.stopping import stop_by_interrupt
    from switchyard.cli.demo.demo_runner import run_demo
    from switchyard.cli.demo.report import find_problems, print_summary
    from switchyard.services.common.extras import require_extras

    require_extras("the demo", *EXTRAS, *(("api",) if keep else ()))
    started = time.monotonic()
    stop_by_interrupt()
    settings = load_settings()
    directory = Path(tempfile.mkdtemp(prefix="switchyard-demo-"))
    try:
        with (
            _open_system(settings, directory, keep=keep) as system,
            _run_processes(system, directory, keep=keep) as supervisor,
        ):
            demo_run = run(
                run_demo(system, supervisor, directory, [Path(file) for file in files or ()])
            )
            print_summary(demo_run)
            problems = find_problems(demo_run)
            if not problems:
                echo(f"Everything is as it should be ({time.monotonic() - started:.0f} s).")
            if keep:
                _keep_running(system, supervisor, directory, demo_run.query)
    finally:
        if keep_data:
            say(f"Kept in {directory}: ledger.db, files, index, logs")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if problems:
        raise CommandFailed(f"not as it should be: {'; '.join(problems)}")
    if not keep:
        _print_next()


@contextmanager
def _open_system(settings: Settings, directory: Path, *, keep: bool) -> Iterator[System]:
    """Set up the system on a virtual host of its own; what was started ends with the context."""
    from switchyard.cli.system.local_broker import find_or_start_broker
    from switchyard.cli.system.local_system import PLACE_SETTINGS, EarlySteps, prepare
    from switchyard.cli.system.vhosts import temporary_vhost

    api = _api_settings(settings) if keep else {}
    places = {"data_dir": directory, **dict.fromkeys(PLACE_SETTINGS)}
    early = EarlySteps(settings.model_copy(update=places).ledger_url, with_api=keep)
    with (
        closing(early),
        find_or_start_broker(settings, directory / "broker", say, meanwhile=early.begin) as broker,
    ):
        say(f"Broker: {broker.what}")
        if broker.is_private:
            system = _make_system(broker, broker.amqp_url, directory, early.spawner, api)
            run(prepare(system))
            yield system
            return
        with temporary_vhost(broker, VHOST) as url:
            if url is None:
                url = run(_require_unused_vhost(broker))
            system = _make_system(broker, url, directory, early.spawner, api)
            say(f"Virtual host: {system.settings.vhost}")
            run(prepare(system))
            yield system


def _api_settings(settings: Settings) -> dict[str, str]:
    """Return the settings of an API on loopback, at its usual port where that is free."""
    from switchyard.cli.process.up import choose_api_port
    from switchyard.cli.system.free_ports import LOOPBACK

    try:
        port = choose_api_port(settings.api_port)
    except CommandFailed:
        port = choose_api_port(0)
    return {"api_host": LOOPBACK, "api_port": str(port), "api_url": f"http://{LOOPBACK}:{port}"}


def _make_system(
    broker: FoundBroker,
    amqp_url: str,
    directory: Path,
    spawner: Spawner | None,
    more: dict[str, str],
) -> System:
    from switchyard.cli.system.local_system import make_system

    return make_system(
        amqp_url=amqp_url,
        management_url=broker.management_url,
        data_dir=directory,
        only_in_data_dir=True,
        modules=[JOBS_MODULE],
        spawner=spawner,
        retry_delays=RETRY_DELAYS,
        # More than there are processors would end no document sooner.
        worker_concurrency=str(max(2, os.cpu_count() or 1)),
        shutdown_grace=GRACE,
        **more,
    )


@contextmanager
def _run_processes(system: System, directory: Path, *, keep: bool) -> Iterator[Supervisor]:
    """Start the system's processes; they end with the context."""
    from switchyard.cli.system.local_system import start_all
    from switchyard.cli.system.supervisor import Supervisor

    supervisor = Supervisor(directory / "logs", system.environment, system.spawner)
    try:
        start_all(supervisor, system.registry, options=WORKER_OPTIONS, together=IN_ONE_PROCESS)
        if keep:
            supervisor.start("api", "api")
        yield supervisor
    finally:
        supervisor.stop(STOP_TIMEOUT)


def _keep_running(system: System, supervisor: Supervisor, directory: Path, query: str) -> None:
    """Print where to look, and keep everything running until Ctrl-C."""
    from switchyard.cli.process.up import ApiStart, await_api, write_env

    settings = system.settings
    await_api(ApiStart(settings.api_host, settings.api_port), supervisor)
    jobctl = "jobctl" if shutil.which("jobctl") else shlex.quote(str(Path(sys.argv[0]).absolute()))
    echo("")
    for name, address in _find_pages(str(settings.api_url)).items():
        echo(f"{name:<11} {address}")
    echo("In another terminal:")
    echo("")
    echo(f"  source {shlex.quote(str(write_env(system, directory)))}")
    echo(f"  {jobctl} jobs list")
    echo(f"  {jobctl} lanes --watch")
    if query:
        echo(f"  {jobctl} search {shlex.quote(query)}")
    echo("")
    echo("Ctrl-C stops everything.")
    with suppress(KeyboardInterrupt):
        while True:
            for line in supervisor.restart_dead():
                say(line)
            time.sleep(POLL_INTERVAL)
    say("Stopping.")


def _find_pages(api_url: str) -> dict[str, str]:
    """Return the addresses of the pages that the API has, by name."""
    import httpx

    pages: dict[str, str] = {}
    with httpx.Client(base_url=api_url, trust_env=False) as client:  # no proxy for loopback
        for name, path in PAGES:
            with suppress(httpx.HTTPError):
                if name not in pages and client.get(path).is_success:
                    pages[name] = f"{api_url}{path}"
    return pages


def _print_next() -> None:
    by_make = "MAKELEVEL" in os.environ
    echo("")
    echo(f"Look around in it:  {'make demo ARGS=--keep' if by_make else 'jobctl demo --keep'}")
    echo(f"Use it:             {'make up' if by_make else 'jobctl up'}")


async def _require_unused_vhost(broker: FoundBroker) -> str:
    """Return the broker's own address if its virtual host has no queue of ours: the demo's workers
    would take the jobs in it, and their records would go with the demo's data.
    """
    from switchyard.broker.lanes import LANES, queue_name
    from switchyard.broker.wire.depths import query_queues

    names = [queue_name(lane.name, worker) for lane in LANES for worker in lane.workers]
    queues = await query_queues(broker.amqp_url, names)
    if any(waiting is not None for waiting in queues.values()):
        raise CommandFailed(
            "we may make no virtual host on this broker, and the one of JOBS_AMQP_URL has a "
            "Switchyard in it already: unset JOBS_AMQP_URL, or set it to an empty virtual host"
        )
    return broker.amqp_url
