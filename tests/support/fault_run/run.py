"""Runs one fault run from beginning to end."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import SecretStr

from switchyard.broker.lanes import LANES
from switchyard.cli.system.free_ports import LOOPBACK, free_port
from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.wings import job_modules
from tests.support.brokers import TestBroker, new_node
from tests.support.chaos import open_chaos
from tests.support.eventually import eventually
from tests.support.fault_run.account import Account, count_open_jobs, make_account
from tests.support.fault_run.chronicle import Chronicle
from tests.support.fault_run.doors import Api
from tests.support.fault_run.faults import Faults
from tests.support.fault_run.keeper import Keeper
from tests.support.fault_run.load import Load
from tests.support.fault_run.report import describe_faults, format_table
from tests.support.postgres import PostgresServer
from tests.support.system import System
from tests.support.tcp_proxy import TcpProxy

JOBS_MODULE = "tests.support.fault_run.jobs"
RETRY_DELAYS = (0.5, 1.0, 2.0)
"""Seconds of the retry levels."""
API_PROCESSES = 2
PROCESSES = {
    "llm-1": ("worker", "llm"),
    "llm-2": ("worker", "llm"),
    "stages-1": ("worker", "ingest", "embed", "link"),
    "stages-2": ("worker", "ingest", "embed", "link"),
    "ocr-1": ("worker", "ocr"),
    "scheduler-1": ("scheduler",),
    "scheduler-2": ("scheduler",),
}
START_TIMEOUT = 120.0
"""Seconds within which the API must answer, on a busy machine."""
QUIET_TIMEOUT = 180.0
"""Seconds after the last fault within which all jobs must have ended."""
BROKER_VERSIONS: dict[str, str] = {"classic": "3.10", "quorum": "4.3"}


@dataclass
class Plan:
    """Options of a fault run."""

    minutes: float = 4
    seed: int = 1
    profile: Literal["classic", "quorum"] = "classic"
    ledger: Literal["sqlite", "postgresql"] = "sqlite"


@dataclass
class Infrastructure:
    """Broker and database of the system, and the proxies before them."""

    system: System
    node: LocalNode
    proxy: TcpProxy
    postgres: PostgresServer | None = None
    postgres_proxy: TcpProxy | None = None
    urls: dict[str, SecretStr] = field(default_factory=dict)
    """Settings with the addresses of the proxies."""


@asynccontextmanager
async def start_infrastructure(plan: Plan, directory: Path) -> AsyncIterator[Infrastructure]:
    """Run a private broker and database, each behind a proxy."""
    async with AsyncExitStack() as stack:
        node = new_node(BROKER_VERSIONS[plan.profile], directory / "node")
        stack.callback(node.kill)
        await asyncio.to_thread(node.start)
        proxy = await stack.enter_async_context(TcpProxy(LOOPBACK, node.amqp_port))
        urls = {"amqp_url": SecretStr(proxy.url(node.amqp_url))}
        postgres = postgres_proxy = None
        url = f"sqlite+aiosqlite:///{directory / 'ledger.db'}"
        if plan.ledger == "postgresql":
            # Not below `directory`, which PostgreSQL's own user may not enter.
            postgres_folder = stack.enter_context(
                TemporaryDirectory(prefix="switchyard-fault-run-")
            )
            postgres = PostgresServer(Path(postgres_folder))
            stack.callback(postgres.stop)
            await asyncio.to_thread(postgres.start)
            url = postgres.create_database()
            postgres_proxy = await stack.enter_async_context(TcpProxy(LOOPBACK, postgres.port))
            urls["database_url"] = SecretStr(postgres_proxy.url(url))
        broker = TestBroker(BROKER_VERSIONS[plan.profile], plan.profile, "/", node)
        system = await stack.enter_async_context(
            open_chaos(
                broker,
                url,
                directory,
                modules=(*job_modules(), JOBS_MODULE),
                lanes=LANES,
                retry_delays=RETRY_DELAYS,
                log_format="json",
            )
        )
        yield Infrastructure(system, node, proxy, postgres, postgres_proxy, urls)


async def run(plan: Plan, directory: Path) -> bool:
    """Run system, load and faults; print the account and all errors. Return whether
    there were none."""
    print(f"Fault run: {plan.minutes:g} min, {plan.profile}, {plan.ledger}, seed {plan.seed}")
    print(f"Logs: {directory}", flush=True)
    chronicle = Chronicle()
    async with (
        start_infrastructure(plan, directory) as infrastructure,
        Keeper(_settings(infrastructure), directory, chronicle) as keeper,
    ):
        ports = [free_port() for _ in range(API_PROCESSES)]
        for number, port in enumerate(ports, start=1):
            keeper.start(f"api-{number}", "api", "--port", str(port))
        for name, arguments in PROCESSES.items():
            keeper.start(name, *arguments)
        api = Api([f"http://{LOOPBACK}:{port}" for port in ports], Random(plan.seed), chronicle)
        account = await _under_load(plan, infrastructure, keeper, api, chronicle)
        await api.close()
        await keeper.stop()
    (directory / "chronicle.log").write_text(
        "".join(f"{chronicle.at(moment)} {text}\n" for moment, text in chronicle.events)
    )
    _print(plan, account, chronicle, [process.log for process in keeper.processes])
    return account.is_good and not chronicle.faults_found


def _settings(infrastructure: Infrastructure) -> Settings:
    """Return the settings of every process: all connections lead through the proxies."""
    return infrastructure.system.settings.model_copy(
        update={**infrastructure.urls, "modules": (JOBS_MODULE,)}
    )


async def _under_load(
    plan: Plan, infrastructure: Infrastructure, keeper: Keeper, api: Api, chronicle: Chronicle
) -> Account:
    settings = _settings(infrastructure)
    registry = Registry.load((*job_modules(), JOBS_MODULE))
    system = infrastructure.system
    with suppress(TimeoutError):  # if the API does not answer, the account shows it
        async with asyncio.timeout(START_TIMEOUT):
            await asyncio.gather(
                *(
                    api.request_until_answered("GET", "/health/live")
                    for _ in range(2 * API_PROCESSES)
                )
            )
    async with await Ledger.open(settings.ledger_url) as ledger:
        load = Load(plan.seed, settings, registry, ledger, api, chronicle)
        faults = Faults(
            Random(plan.seed),
            keeper,
            chronicle,
            node=infrastructure.node,
            broker_proxy=infrastructure.proxy,
            fill_lane=load.fill_lane,
            sqlite=None if infrastructure.postgres else settings.ledger_url.partition(":///")[2],
            postgres=infrastructure.postgres,
            postgres_proxy=infrastructure.postgres_proxy,
        )
        loading, breaking = asyncio.create_task(load.run()), asyncio.create_task(faults.run())
        try:
            ended_tasks, _ = await asyncio.wait(
                [loading, breaking], timeout=plan.minutes * 60, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in ended_tasks:
                task.result()  # neither ends before it is stopped: this raises its error
            faults.stop()
            load.stop()
            await breaking
        except BaseException:
            loading.cancel()
            breaking.cancel()
            raise
        chronicle.note("nothing is broken any more")
        try:
            await asyncio.wait_for(loading, QUIET_TIMEOUT)
        except TimeoutError:
            chronicle.blame(f"not all was accepted {QUIET_TIMEOUT:g} s after the last fault")
        try:
            await eventually(lambda: _is_quiet(system), QUIET_TIMEOUT, "the end of all jobs")
        except AssertionError as error:
            chronicle.blame(str(error))
        documents = {
            each: await _document_state(api, each) for each in sorted(load.accepted.documents)
        }
        print(f"Refused by a full lane: {load.refused}")
        return await make_account(system, load.accepted, documents, chronicle)


async def _is_quiet(system: System) -> bool:
    await asyncio.sleep(0.5)
    return await count_open_jobs(system) == 0


async def _document_state(api: Api, document_id: str) -> str:
    """Ask the API until it answers: the last fault may have ended its process."""
    try:
        answer = await eventually(lambda: api.request_once("GET", f"/documents/{document_id}"))
    except AssertionError:
        return "no answer"
    return str(answer.json()["state"])


def _print(plan: Plan, account: Account, chronicle: Chronicle, logs: list[Path]) -> None:
    print(format_table(account))
    print("faults:", ", ".join(f"{name} {count}" for name, count in chronicle.faults.most_common()))
    print(
        "answers:", ", ".join(f"{name} {count}" for name, count in chronicle.answers.most_common())
    )
    for line in describe_faults(account, chronicle, logs):
        print(line)
    is_good = account.is_good and not chronicle.faults_found
    print(f"{'All is accounted for' if is_good else 'NOT as it must be'}; seed {plan.seed}")
    sys.stdout.flush()
