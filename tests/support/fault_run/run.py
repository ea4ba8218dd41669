"""One fault run from beginning to end."""

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
from tests.support.fault_run.account import Account, open_jobs, settle
from tests.support.fault_run.chronicle import Chronicle
from tests.support.fault_run.doors import Api
from tests.support.fault_run.faults import Faults
from tests.support.fault_run.keeper import Keeper
from tests.support.fault_run.load import Load
from tests.support.fault_run.report import story, table
from tests.support.postgres import PostgresServer
from tests.support.system import System
from tests.support.tcp_proxy import TcpProxy

MODULE = "tests.support.fault_run.jobs"
RETRY_DELAYS = (0.5, 1.0, 2.0)
APIS = 2
PROCESSES = {
    "llm-1": ("worker", "llm"),
    "llm-2": ("worker", "llm"),
    "stages-1": ("worker", "ingest", "embed", "link"),
    "stages-2": ("worker", "ingest", "embed", "link"),
    "ocr-1": ("worker", "ocr"),
    "scheduler-1": ("scheduler",),
    "scheduler-2": ("scheduler",),
}
START = 120.0
"""Seconds in which the API must answer; on a machine that is busy with other things."""
QUIET = 180.0
"""Seconds in which everything must have come to its end once nothing is broken any more."""
VERSIONS: dict[str, str] = {"classic": "3.10", "quorum": "4.3"}


@dataclass
class Plan:
    """What is asked for."""

    minutes: float = 4
    seed: int = 1
    profile: Literal["classic", "quorum"] = "classic"
    ledger: Literal["sqlite", "postgresql"] = "sqlite"


@dataclass
class Ground:
    """What the system stands on."""

    system: System
    node: LocalNode
    proxy: TcpProxy
    postgres: PostgresServer | None = None
    postgres_proxy: TcpProxy | None = None
    urls: dict[str, SecretStr] = field(default_factory=dict)
    """The settings that lead through the proxies."""


@asynccontextmanager
async def ground(plan: Plan, directory: Path) -> AsyncIterator[Ground]:
    """Run a private broker and database, each behind a proxy."""
    async with AsyncExitStack() as stack:
        node = new_node(VERSIONS[plan.profile], directory / "node")
        stack.callback(node.kill)
        await asyncio.to_thread(node.start)
        proxy = await stack.enter_async_context(TcpProxy(LOOPBACK, node.amqp_port))
        urls = {"amqp_url": SecretStr(proxy.url(node.amqp_url))}
        postgres = postgres_proxy = None
        url = f"sqlite+aiosqlite:///{directory / 'ledger.db'}"
        if plan.ledger == "postgresql":
            # Not below ours, where PostgreSQL's own user may not go.
            place = stack.enter_context(TemporaryDirectory(prefix="switchyard-fault-run-"))
            postgres = PostgresServer(Path(place))
            stack.callback(postgres.stop)
            await asyncio.to_thread(postgres.start)
            url = postgres.create_database()
            postgres_proxy = await stack.enter_async_context(TcpProxy(LOOPBACK, postgres.port))
            urls["database_url"] = SecretStr(postgres_proxy.url(url))
        broker = TestBroker(VERSIONS[plan.profile], plan.profile, "/", node)
        system = await stack.enter_async_context(
            open_chaos(
                broker,
                url,
                directory,
                modules=(*job_modules(), MODULE),
                lanes=LANES,
                retry_delays=RETRY_DELAYS,
                log_format="json",
            )
        )
        yield Ground(system, node, proxy, postgres, postgres_proxy, urls)


async def run(plan: Plan, directory: Path) -> bool:
    """Run it all, print the account and what went wrong, and return whether everything was as it
    must be."""
    print(f"Fault run: {plan.minutes:g} min, {plan.profile}, {plan.ledger}, seed {plan.seed}")
    print(f"Logs: {directory}", flush=True)
    told = Chronicle()
    async with ground(plan, directory) as stage, Keeper(_settings(stage), directory, told) as keep:
        ports = [free_port() for _ in range(APIS)]
        for number, port in enumerate(ports, start=1):
            keep.start(f"api-{number}", "api", "--port", str(port))
        for name, arguments in PROCESSES.items():
            keep.start(name, *arguments)
        api = Api([f"http://{LOOPBACK}:{port}" for port in ports], Random(plan.seed), told)
        account = await _under_load(plan, stage, keep, api, told)
        await api.close()
        await keep.stop()
    (directory / "chronicle.log").write_text(
        "".join(f"{told.at(moment)} {text}\n" for moment, text in told.events)
    )
    _print(plan, account, told, [each.log for each in keep.kept])
    return account.is_good and not told.wrong


def _settings(stage: Ground) -> Settings:
    """Return the settings of every process: all connections lead through the proxies."""
    return stage.system.settings.model_copy(update={**stage.urls, "modules": (MODULE,)})


async def _under_load(
    plan: Plan, stage: Ground, keep: Keeper, api: Api, told: Chronicle
) -> Account:
    settings = _settings(stage)
    registry = Registry.load((*job_modules(), MODULE))
    system = stage.system
    with suppress(TimeoutError):  # the answers are looked at below
        async with asyncio.timeout(START):
            await asyncio.gather(*(api.insist("GET", "/health/live") for _ in range(2 * APIS)))
    async with await Ledger.open(settings.ledger_url) as ledger:
        load = Load(plan.seed, settings, registry, ledger, api, told)
        faults = Faults(
            Random(plan.seed),
            keep,
            told,
            node=stage.node,
            broker_proxy=stage.proxy,
            fill_lane=load.fill_lane,
            sqlite=None if stage.postgres else settings.ledger_url.partition(":///")[2],
            postgres=stage.postgres,
            postgres_proxy=stage.postgres_proxy,
        )
        loading, breaking = asyncio.create_task(load.run()), asyncio.create_task(faults.run())
        try:
            done, _ = await asyncio.wait(
                [loading, breaking], timeout=plan.minutes * 60, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()  # neither ends by itself
            faults.stop()
            load.stop()
            await breaking
        except BaseException:
            loading.cancel()
            breaking.cancel()
            raise
        told.note("nothing is broken any more")
        try:
            await asyncio.wait_for(loading, QUIET)
        except TimeoutError:
            told.blame(f"not all was accepted {QUIET:g} s after the last fault")
        try:
            await eventually(lambda: _is_quiet(system), QUIET, "the end of all jobs")
        except AssertionError as error:
            told.blame(str(error))
        documents = {
            each: await _document_state(api, each) for each in sorted(load.accepted.documents)
        }
        print(f"Refused by a full lane: {load.refused}")
        return await settle(system, load.accepted, documents, told)


async def _is_quiet(system: System) -> bool:
    await asyncio.sleep(0.5)
    return await open_jobs(system) == 0


async def _document_state(api: Api, document_id: str) -> str:
    """Ask until the API answers: the last fault may have ended its process."""
    try:
        answer = await eventually(lambda: api.once("GET", f"/documents/{document_id}"))
    except AssertionError:
        return "no answer"
    return str(answer.json()["state"])


def _print(plan: Plan, account: Account, told: Chronicle, logs: list[Path]) -> None:
    print(table(account))
    print("faults:", ", ".join(f"{name} {count}" for name, count in told.faults.most_common()))
    print("answers:", ", ".join(f"{name} {count}" for name, count in told.answers.most_common()))
    for line in story(account, told, logs):
        print(line)
    good = account.is_good and not told.wrong
    print(f"{'All is accounted for' if good else 'NOT as it must be'}; seed {plan.seed}")
    sys.stdout.flush()
