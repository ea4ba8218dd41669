"""The whole system on one machine, for `jobctl demo` and `jobctl up`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from switchyard.cli.base.common import load_registry, open_ledger, quiet_logs, run
from switchyard.cli.base.errors import FAILED, CommandFailed, WrongUsage

if TYPE_CHECKING:
    from switchyard.cli.system.spawner import Spawner
    from switchyard.cli.system.supervisor import Supervisor
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.jobs.registry import Registry

PLACE_SETTINGS = ("database_url", "storage_url", "index_url")
"""Settings that can name places outside of the data directory."""
PROCESSES = {"ingest": 2}
"""Processes of each kind of worker in `jobctl up` by default; of kinds not named here, one."""
MAX_PROCESSES = 64
"""Processes of one kind of worker on one machine, at most."""


@dataclass(frozen=True, slots=True)
class System:
    """Settings and job types of this process, and the environment that gives children the same."""

    settings: Settings
    registry: Registry
    environment: Mapping[str, str]
    spawner: Spawner | None = None
    """Forks the children; None where the machine can't fork them."""


@dataclass(slots=True)
class EarlySteps:
    """Steps that need no broker, and are taken while one starts: the process that others are forked
    from, and the ledger's tables."""

    ledger_url: str
    with_api: bool = True
    """Whether the HTTP API is one of the processes."""
    spawner: Spawner | None = None

    def begin(self) -> None:
        """Fork the process that others are forked from, and make the ledger's tables. Call it
        before anything starts a thread or opens a connection. Raises LedgerError."""
        from switchyard.cli.system.spawner import Spawner

        is_postgres = self.ledger_url.startswith("postgres")
        self.spawner = Spawner.fork(postgres=is_postgres, api=self.with_api)
        quiet_logs("critical")
        from switchyard.services.engine.ledger import upgrade

        run_in_fork(lambda: upgrade(self.ledger_url))

    def close(self) -> None:
        """End the process; its children are for the supervisor to end."""
        if self.spawner is not None:
            self.spawner.stop()


def run_in_fork(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run a coroutine in a forked process, so that what it has loaded and written into is given
    back when it ends: 30 MB, for as long as `jobctl up` runs.

    Where that fails, it is run again here, for its errors: it must do no harm to run it twice.
    """
    if sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = FAILED
            try:
                run(work())
                code = 0
            finally:  # nothing of the parent's is ended or said here
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            return
    run(work())


def make_system(
    *,
    amqp_url: str,
    management_url: str,
    data_dir: Path,
    only_in_data_dir: bool,
    modules: Sequence[str] = (),
    spawner: Spawner | None = None,
    **changes: str,
) -> System:
    """Make the system that uses that broker, with its data in that directory.

    With `only_in_data_dir` no other place is used, whatever the environment says: a demo must not
    write into somebody's database. `modules` come beside JOBS_MODULES; `changes` are further
    settings by their names.
    """
    from switchyard.cli.base.common import load_settings
    from switchyard.services.common.settings import Settings

    own_settings = load_settings()
    own_values: dict[str, str | None] = {
        "amqp_url": amqp_url,
        "management_url": management_url,
        "data_dir": str(data_dir.absolute()),
        "modules": ",".join(dict.fromkeys((*own_settings.modules, *modules))),
        "log_format": "json",
        **changes,
    }
    if only_in_data_dir:
        own_values |= dict.fromkeys(PLACE_SETTINGS)
    environment = {
        key: value for key, value in os.environ.items() if _is_inherited(key, own_values)
    }
    environment |= {
        variable_name(key): value for key, value in own_values.items() if value is not None
    }
    values: dict[str, Any] = dict(own_values)
    settings = Settings(**values)
    return System(settings, load_registry(settings), environment, spawner)


async def prepare(system: System, *, adopt: bool = False) -> None:
    """Make the ledger, declare the topology, and mark the broker as that ledger's; can be repeated.
    With `adopt`, also a broker and files of another system become this one's.

    Raises CommandFailed when the broker has something else in its place, WrongSystem when it is
    another system's, ManagementError, LedgerError.
    """
    from switchyard.broker.errors import TopologyMismatch
    from switchyard.broker.management.client import ManagementClient
    from switchyard.broker.topology.build import build
    from switchyard.broker.topology.differences import Deviation
    from switchyard.broker.topology.reconcile import apply
    from switchyard.services.engine.identity.broker import mark_broker, require_same_system
    from switchyard.services.engine.identity.storage_identity import claim_places
    from switchyard.services.engine.ledger import upgrade

    settings = system.settings
    await upgrade(settings.ledger_url)
    async with open_ledger(settings) as ledger:
        if adopt:
            await mark_broker(settings, ledger, take=True)
            await claim_places(settings, ledger, take=True)
        await require_same_system(settings, ledger)
    topology = build(settings.profile, system.registry.routes, retry_delays=settings.retry_delays)
    async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
        report = await apply(client, topology)
    try:
        report.require_success()
    except TopologyMismatch as error:
        remedy = "see `jobctl topology diff`"
        if any(each.kind == "queue" and each.problem is Deviation.TYPE for each in report.blocked):
            remedy += f"; change the queues: `jobctl topology migrate --to {settings.profile}`"
        raise CommandFailed(f"{error}; {remedy}") from error
    async with open_ledger(settings) as ledger:
        await mark_broker(settings, ledger)


def start_all(
    supervisor: Supervisor,
    registry: Registry,
    scale: Mapping[str, int] | None = None,
    options: Mapping[str, Sequence[str]] | None = None,
    together: Collection[str] = (),
) -> None:
    """Start the scheduler and, for each kind of worker with job types, as many processes as `scale`
    says, by default one, with `options` of `jobctl worker`. The kinds `together` share one process,
    which has the name and the options of the first of them."""
    kinds = worker_kinds(registry)
    in_one = [kind for kind in kinds if kind in together]
    for kind in kinds:
        if kind in in_one[1:]:
            continue
        served = in_one if kind in in_one else [kind]
        arguments = ("worker", *served, *(options or {}).get(kind, ()))
        for number in range(1, (scale or {}).get(kind, 1) + 1):
            supervisor.start(worker_name(kind, number), *arguments)
    supervisor.start("scheduler", "scheduler")


def worker_name(kind: str, number: int) -> str:
    """Return the name of a worker process and of its log; `number` counts from 1."""
    return f"worker-{kind}" if number == 1 else f"worker-{kind}-{number}"


def parse_scale(texts: Sequence[str], registry: Registry) -> dict[str, int]:
    """Parse `--scale llm=6`. Raises WrongUsage."""
    kinds = worker_kinds(registry)
    scale = {}
    for text in texts:
        kind, _, number = text.partition("=")
        if kind not in kinds:
            raise WrongUsage(f"--scale {text}: there is no {kind!r} among {', '.join(kinds)}")
        if not (number.isascii() and number.isdigit() and int(number) <= MAX_PROCESSES):
            raise WrongUsage(f"--scale {text}: write {kind}=N, with N from 0 to {MAX_PROCESSES}")
        scale[kind] = int(number)
    return scale


def worker_kinds(registry: Registry) -> list[str]:
    """Return the kinds of worker, in the order in which a document needs them."""
    kinds = {job_type.worker for job_type in registry}
    order = [kind for kind in ("ingest", "ocr", "llm", "embed", "link") if kind in kinds]
    return order + sorted(kinds.difference(order))


def variable_name(setting: str) -> str:
    """Name the environment variable of a setting."""
    return f"JOBS_{setting.upper()}"


def _is_inherited(key: str, own_values: Mapping[str, str | None]) -> bool:
    return not any(key.upper() == variable_name(name) for name in own_values)
