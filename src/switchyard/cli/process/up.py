"""`jobctl up`: the whole system in the foreground, until Ctrl-C."""

from __future__ import annotations

import fcntl
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.cli.base.common import (
    IncludeOption,
    load_settings,
    run,
)
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import echo, say

if TYPE_CHECKING:
    from switchyard.cli.process.reload import ModuleWatch
    from switchyard.cli.system.autoscale import Autoscaler
    from switchyard.cli.system.local_broker import FoundBroker
    from switchyard.cli.system.local_system import System
    from switchyard.cli.system.rabbitmq_node import LocalNode
    from switchyard.cli.system.supervisor import Supervisor
    from switchyard.services.common.settings import Settings

POLL_INTERVAL = 0.3
NODE_RESTART_INTERVAL = 30.0
"""Seconds between two tries to start a broker that does not start."""
NOT_EXPORTED = frozenset({"log_format"})
"""Settings that `up` chooses for its own processes alone."""
API_START_TIMEOUT = 20.0
"""Seconds to wait for the HTTP API before the addresses are printed."""


def up(
    include: IncludeOption = None,
    api_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the HTTP API on loopback; 0 selects a free one. Default: JOBS_API_PORT.",
        ),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=N",
            help="Number of processes of a worker kind, for example llm=6; repeatable. "
            "Default: 2 of ingest, 1 of each other kind.",
        ),
    ] = None,
    autoscale: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=MIN..MAX",
            help="Adapt the number of processes of a worker kind to its jobs, for example "
            "llm=1..6 or all=1..4; repeatable.",
        ),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Assign broker and files to the ledger here, like `jobctl system adopt`.",
        ),
    ] = False,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="For development: restart the processes when one of your modules changes.",
        ),
    ] = False,
) -> None:
    """Run the whole system until Ctrl-C: broker, workers, scheduler and HTTP API.

    Prints the addresses, and how to publish from another terminal. A process that dies is
    restarted. The data is in ./.switchyard, or in the directory named by JOBS_DATA_DIR.

    Example:

    ```
    jobctl up --include my_jobs --scale llm=6 --scale ocr=0
    ```

    While you change job types, the processes follow your modules:

    ```
    jobctl up --include my_jobs --reload
    ```
    """
    from switchyard.cli.base.stopping import stop_by_interrupt
    from switchyard.cli.system.rabbitmq_config import make_private

    stop_by_interrupt()
    settings = load_settings()
    directory = settings.data_dir
    make_private(directory)
    with _lock_directory(directory):
        try:
            port = choose_api_port(settings.api_port if api_port is None else api_port)
            _run_until_interrupted(
                directory, include or [], port, scale or [], autoscale or [], adopt, reload
            )
        except KeyboardInterrupt:
            say("Stopped.")


@contextmanager
def _lock_directory(directory: Path) -> Iterator[None]:
    """Raise CommandFailed if another `up` runs in that directory."""
    with (directory / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(
                f"`jobctl up` runs in {directory} already: stop that one, or set JOBS_DATA_DIR"
            ) from None
        yield


def choose_api_port(preferred: int) -> int:
    """Return a loopback port for the API. Raises CommandFailed for one that is taken."""
    from switchyard.cli.system.free_ports import LOOPBACK

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, preferred))
        except OSError as error:
            raise CommandFailed(
                f"the HTTP API can't have port {preferred} ({error.strerror}): choose another one "
                "with --api-port, or 0 for any that is free"
            ) from error
        port: int = probe.getsockname()[1]
        return port


def _run_until_interrupted(
    directory: Path,
    include: list[str],
    api_port: int,
    scale: list[str],
    autoscale: list[str],
    adopt: bool,
    reload: bool,
) -> None:
    from switchyard.broker.errors import WrongSystem
    from switchyard.cli.system.autoscale import Autoscaler, parse_ranges
    from switchyard.cli.system.free_ports import LOOPBACK
    from switchyard.cli.system.local_broker import find_or_start_broker
    from switchyard.cli.system.local_system import (
        MAX_PROCESSES,
        PROCESSES,
        EarlySteps,
        make_system,
        parse_scale,
        prepare,
        run_in_fork,
        start_all,
        worker_kinds,
    )
    from switchyard.cli.system.supervisor import Supervisor
    from switchyard.cli.system.vhosts import own_vhost
    from switchyard.services.common.extras import installed_extras

    settings = _node_settings(directory)
    has_api = installed_extras()["api"]
    early = EarlySteps(settings.ledger_url, with_api=has_api)
    with (
        closing(early),
        find_or_start_broker(
            settings, directory / "broker", say, keeps_data=True, meanwhile=early.begin
        ) as broker,
    ):
        is_ours = broker.is_private or settings.amqp_url is not None
        system = make_system(
            amqp_url=broker.amqp_url if is_ours else run(own_vhost(broker, settings)),
            management_url=broker.management_url,
            data_dir=directory,
            only_in_data_dir=False,
            modules=include,
            spawner=early.spawner,
            api_host=LOOPBACK,
            api_port=str(api_port),
            api_url=f"http://{LOOPBACK}:{api_port}",
            **({"rabbitmqctl": shlex.quote(str(broker.node.control))} if broker.node else {}),
        )
        given_scale = parse_scale(scale, system.registry)
        ranges = parse_ranges(autoscale, worker_kinds(system.registry), MAX_PROCESSES)
        at_start = {
            kind: max(given_scale.get(kind, 1), each.minimum) for kind, each in ranges.items()
        }
        processes = PROCESSES | given_scale | at_start
        try:
            run_in_fork(lambda: prepare(system, adopt=adopt))
        except WrongSystem as error:
            raise CommandFailed(
                f"{error}. While `jobctl up` does not run: `jobctl up --adopt`"
            ) from error
        supervisor = Supervisor(directory / "logs", system.environment, system.spawner)
        reloader = SystemReloader.of(system, supervisor) if reload else None
        try:
            start_all(supervisor, system.registry, processes)
            api = ApiStart(LOOPBACK, api_port) if has_api else None
            if api is not None:
                supervisor.start("api", "api")
                await_api(api, supervisor)
            _print_addresses(broker, system, directory, has_api=has_api)
            scaler = Autoscaler(system, supervisor, ranges) if ranges else None
            _watch(broker, supervisor, scaler, api, reloader)
        finally:
            say("Stopping; running jobs get their grace. Ctrl-C again stops at once.")
            for name in supervisor.stop(system.settings.shutdown_grace + 5):
                say(f"{name} had to be killed; its jobs go on at the next start")


@dataclass(slots=True)
class ApiStart:
    """The start of the HTTP API, which is over when it takes connections."""

    host: str
    port: int
    has_started: bool = False

    def has_just_started(self) -> bool:
        """Tell whether the API has started since the last call."""
        if self.has_started:
            return False
        with socket.socket() as probe:
            self.has_started = probe.connect_ex((self.host, self.port)) == 0
        return self.has_started


def await_api(api: ApiStart, supervisor: Supervisor) -> None:
    """Wait until the API takes connections, so that its address can be used once it is printed. If
    that takes too long, say so, and return: `_watch` says when the API has started."""
    deadline = time.monotonic() + API_START_TIMEOUT
    while time.monotonic() < deadline:
        if api.has_just_started():
            return
        for line in supervisor.restart_dead():
            say(line)
        time.sleep(POLL_INTERVAL)
    say(f"The HTTP API is still starting; its log: {supervisor.log_dir / 'api.log'}")


def _node_settings(directory: Path) -> Settings:
    """Return the settings from the environment without the broker that the last `up` here started:
    it is gone, and a shell that has read `env` still names it."""
    from switchyard.cli.system.rabbitmq_node import NodeFile

    settings = load_settings()
    password = NodeFile(directory / "broker" / "node.json").read().get("password")
    if password is None or settings.amqp_url is None:
        return settings
    if password not in settings.require_amqp_url():
        return settings
    return settings.model_copy(update={"amqp_url": None, "management_url": None})


@dataclass(slots=True)
class NodeWatchdog:
    """Starts our broker again when it has ended, and tries again where that fails: a disk may be
    full for a while, or the machine too busy."""

    node: LocalNode
    retry_at: float = float("-inf")

    def restart_if_ended(self, now: float) -> None:
        """Start the node again if it has ended; `now` is in seconds, by a monotonic clock."""
        from switchyard.cli.system.rabbitmq_node import LocalNodeError

        if self.node.is_running or now < self.retry_at:
            return
        say("RabbitMQ ended; starting it again …")
        try:
            self.node.restart()
        except (LocalNodeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            say(f"RabbitMQ does not start: {reason}; again in {NODE_RESTART_INTERVAL:g} s")
            self.retry_at = time.monotonic() + NODE_RESTART_INTERVAL
        else:
            say("RabbitMQ runs again")


@dataclass(slots=True)
class SystemReloader:
    """Restarts the processes when a module of the user's has changed."""

    watch: ModuleWatch
    environment: Mapping[str, str]
    supervisor: Supervisor

    @classmethod
    def of(cls, system: System, supervisor: Supervisor) -> SystemReloader:
        """Begin to watch the modules. Raises CommandFailed if there are none."""
        from switchyard.cli.process.reload import NOTHING_TO_WATCH, ModuleWatch

        watch = ModuleWatch(system.settings.modules)
        module_probe = watch.begin()
        if not module_probe.files:
            why = (
                module_probe.error or f"{NOTHING_TO_WATCH}: name it with --include or JOBS_MODULES"
            )
            raise CommandFailed(f"reload: {why}")
        return cls(watch, system.environment, supervisor)

    def reload_if_changed(self) -> None:
        """Restart the processes if there was a change that can be used; say so."""
        from switchyard.cli.process.reload import JOBCTL

        if (change := self.watch.find_change()) is None:
            return
        changed, module_probe = change
        if module_probe.error is not None:
            say(f"reload: {module_probe.error}; everything runs on as it was")
            return
        # A type that is new may need a queue.
        done = subprocess.run(
            [*JOBCTL, "topology", "apply"],
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason was given"]
            say(f"reload: `jobctl topology apply`: {lines[-1]}; everything runs on as it was")
            return
        say(f"reload: {', '.join(changed)} changed; the processes start again")
        self.supervisor.restart()


def _watch(
    broker: FoundBroker,
    supervisor: Supervisor,
    autoscaler: Autoscaler | None,
    api: ApiStart | None,
    reloader: SystemReloader | None,
) -> None:
    node_watchdog = None if broker.node is None else NodeWatchdog(broker.node)
    while True:
        if api is not None and api.has_just_started():
            say("The HTTP API has started.")
        time.sleep(POLL_INTERVAL)
        if node_watchdog is not None:
            node_watchdog.restart_if_ended(time.monotonic())
        if reloader is not None:
            reloader.reload_if_changed()
        for line in supervisor.restart_dead():
            say(line)
        for line in run(autoscaler.rescale(time.monotonic())) if autoscaler is not None else ():
            say(line)


def write_env(system: System, directory: Path) -> Path:
    """Write the file that another terminal reads to mean the same system; only its owner can."""
    from switchyard.cli.system.rabbitmq_config import write_private

    lines = [
        f"export {name}={shlex.quote(value)}" for name, value in _exported_variables(system).items()
    ]
    env_file = directory / "env"
    write_private(env_file, "\n".join(lines) + "\n")
    return env_file


def _exported_variables(system: System) -> dict[str, str]:
    """Return, by variable, what another terminal needs to use the same system: addresses, and what
    commands there depend on, such as prices, budgets, servers and limits."""
    from switchyard.cli.system.local_system import variable_name

    values = {}
    for name in type(system.settings).model_fields:
        value = system.environment.get(variable_name(name))
        if not value or name in NOT_EXPORTED:
            continue
        path = getattr(system.settings, name)  # it is read from other directories, too
        values[variable_name(name)] = str(path.absolute()) if isinstance(path, Path) else value
    return values


def _print_addresses(
    broker: FoundBroker, system: System, directory: Path, *, has_api: bool = True
) -> None:
    from switchyard.broker.addresses import display_address, without_login

    settings = system.settings
    env_file = write_env(system, directory)
    ledger = settings.ledger_url.rpartition("@")[2]
    echo(f"Broker      {broker.what}")
    if has_api:
        echo(f"Dashboard   {settings.api_url}/dashboard")
        echo(f"API         {settings.api_url}")
    else:
        echo(
            "API         not installed: `pip install 'switchyard[api]'`, which brings the dashboard"
        )
    echo(f"AMQP        {display_address(settings.require_amqp_url())}")
    echo(f"Management  {without_login(settings.require_management_url())}")
    if broker.node is not None:
        echo(f"rabbitmqctl {broker.node.control}")
    echo(f"Ledger      {ledger}")
    echo(f"Data        {directory}")
    echo(f"Logs        {directory / 'logs'}")
    echo(f"User and password are in {env_file}. From another terminal:")
    echo("")
    echo(f"  source {shlex.quote(str(env_file))}")
    if "ingest_document" in system.registry:
        echo('  jobctl publish hot.ingest_document --payload \'{"path": "/path/to/a.pdf"}\'')
    echo("  jobctl lanes --watch")
    if has_api and "ingest_document" in system.registry:
        echo(f"  curl -F file=@/path/to/a.pdf {settings.api_url}/documents")
    echo("")
    echo("Ctrl-C stops everything.")
