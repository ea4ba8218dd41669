"""Each program of examples/ runs as the comment at its top says.

A shell runs the commands of that comment in a copy of the folder. What examples/README.md starts in
the first terminal runs here as well, with what is exported there, in processes that all tests of
this file share: forks (tests/support/commands.py) instead of those of `jobctl up`. Only ports and
the delays of retries are other ones.
"""

import ast
import asyncio
import importlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from switchyard.broker.topology.build import build
from switchyard.cli.base.common import load_registry
from switchyard.services.common.settings import Settings
from switchyard.testing import open_worker, run_job
from tests.acceptance.conftest import ROOT, clean_environment, ending
from tests.conftest import broker_of
from tests.support.brokers import TestBroker
from tests.support.commands import commands, write_jobctl
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.ledgers import make_ledger

pytestmark = pytest.mark.timeout(240)  # on a busy machine the processes take a while to start
FOLDER = ROOT / "examples"
PORTS = ("9000", "9001", "9002")
"""Those that the comments name."""
RETRY_DELAYS = (1.0, 2.0, 4.0)
PROCESSES = (("scheduler",), ("worker", "all"))


def free_ports(number: int) -> list[str]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [str(probe.getsockname()[1]) for probe in probes]


def exported(page: str) -> dict[str, str]:
    """What examples/README.md exports before it starts the system."""
    first, _ = re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert first.endswith("\njobctl up\n")
    return dict(re.findall(r"^export (\w+)=(\S+)$", first, re.MULTILINE))


def commands_of(program: Path) -> str:
    """The indented lines of the comment at its top."""
    comment = ast.get_docstring(ast.parse(program.read_text())) or ""
    lines = re.findall(r"^ {4}.*$", comment, re.MULTILINE)
    assert lines, f"{program.name} does not say how to run it"
    return textwrap.dedent("\n".join(lines))


@dataclass
class Shell:
    """The second terminal of examples/README.md."""

    folder: Path
    environment: dict[str, str]
    ports: dict[str, str]
    """By the port that the comments name, the one that is used here."""

    @contextmanager
    def running(self, program: str) -> Iterator[Callable[[], str]]:
        """Run what the comment of a program says, to the end; what it began in the background runs
        on while the context lasts. Gives what was printed so far."""
        log = self.folder / f"{program}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-eu", "-o", "pipefail", "-c", commands_of(self.folder / program)],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                assert process.wait(60) == 0, log.read_text()
                yield log.read_text
            finally:
                with suppress(ProcessLookupError):  # nothing runs in the background
                    os.killpg(process.pid, signal.SIGKILL)

    def state_of(self, job_id: str) -> str | None:
        with closing(sqlite3.connect(Path(self.environment["JOBS_DATA_DIR"]) / "ledger.db")) as db:
            found = db.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return found and str(found[0])


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A system that knows the jobs of the examples, and a shell beside it."""
    folder = tmp_path_factory.mktemp("run") / "examples"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    *own, api_port = free_ports(len(PORTS) + 1)
    ports = dict(zip(PORTS, own, strict=True))
    for path in folder.rglob("*.*"):
        path.write_text(re.sub("|".join(PORTS), lambda port: ports[port[0]], path.read_text()))
    with ExitStack() as stack:
        broker = stack.enter_context(contextmanager(broker_of)("3.10", "classic"))
        environment = clean_environment(
            amqp_url=broker.amqp_url,
            management_url=broker.management_url,
            data_dir=str(folder / "data"),
            retry_delays=",".join(map(str, RETRY_DELAYS)),
            api_port=api_port,
            api_url=f"http://127.0.0.1:{api_port}",
        ) | exported((folder / "README.md").read_text())
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            for name in environment.keys() - os.environ.keys():
                patch.setenv(name, environment[name])
            settings = Settings()
            routes = load_registry(settings).routes
        asyncio.run(broker.declare(build(broker.profile, routes, retry_delays=RETRY_DELAYS)))
        settings.data_dir.mkdir()
        asyncio.run(make_ledger(settings.ledger_url))
        for command in (("api",), *PROCESSES):
            log = stack.enter_context((folder / f"{command[0]}.log").open("wb"))
            process = commands().start(
                list(command), env=environment, cwd=folder, output=log.fileno()
            )
            stack.enter_context(process)
            stack.enter_context(ending(process))
        programs = write_jobctl(tmp_path_factory.mktemp("programs")).parent
        search = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield Shell(folder, environment | {"PATH": search}, ports)


def ids_in(text: str) -> list[str]:
    return re.findall(r"^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$", text, re.MULTILINE)


async def test_a_link_is_checked_again_when_its_server_is_there(shell: Shell) -> None:
    with shell.running("check_link.py") as printed:
        early, *_ = ids_in(printed())
        await eventually(lambda: shell.state_of(early) == "succeeded", what="the first job")
        assert "is dead (permanent): the server answers 404" in printed()


async def test_a_pika_script_publishes_jobs_that_run(shell: Shell) -> None:
    with shell.running("publish_with_pika.py") as printed:
        jobs = ids_in(printed())
        assert len(jobs) == 2
        for job_id in jobs:
            await eventually(partial(shell.state_of, job_id), what=f"a record of {job_id}")


async def test_a_web_service_shows_how_far_its_job_is(shell: Shell) -> None:
    with shell.running("report_service.py") as printed:
        assert "writing about stock" in printed()
        assert '"state": "succeeded"' in printed()
        unknown = f"http://127.0.0.1:{shell.ports['9001']}/reports/unknown"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(unknown)).status_code == 404


async def test_a_backfill_of_ones_own_source_makes_a_job_of_each_row(shell: Shell) -> None:
    with shell.running("orders_source.py") as printed:
        assert "completed" in printed()
        assert "100" in printed()


async def test_a_receiver_hears_of_the_end_and_believes_no_forged_notice(shell: Shell) -> None:
    with shell.running("receive_notices.py") as printed:
        await eventually(lambda: re.search("^write_report .* completed$", printed(), re.M))
        async with httpx.AsyncClient(trust_env=False) as client:
            address = f"http://127.0.0.1:{shell.ports['9002']}/"
            forged = await client.post(address, content=b"{}")
            assert forged.status_code == 401
            large = await client.post(address, content=b" " * 300_000)
            assert large.status_code == 413


async def test_documents_in_and_search_out(shell: Shell) -> None:
    with shell.running("search_documents.py") as printed:
        assert "README.md, page 1" in printed()


@pytest.fixture
def moved_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of the application that was moved from Celery, and the file that its till is."""
    monkeypatch.syspath_prepend(FOLDER / "from_celery")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "till.json"


async def test_what_was_moved_from_celery_runs_to_its_end(
    broker310: TestBroker, moved_shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", broker310.amqp_url)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", broker310.management_url)
    moved_shop.write_text('{"ada": [3, 4.5], "bob": [8], "eve": []}')
    async with open_worker("shop_switchyard") as worker:
        await worker.run("hot.close_month", {"month": "2026-10"}, timeout=MAX_WAIT)
        ran = Counter(run.job_type for run in worker.runs)
        assert ran == {"close_month": 1, "write_invoice": 3, "bind_invoices": 1, "send_mail": 1}
        [book] = [run.payload for run in worker.runs if run.job_type == "send_mail"]
        assert book["invoices"] == ["2026-10 ada: 7.50", "2026-10 bob: 8.00", "2026-10 eve: 0.00"]


async def test_what_was_moved_from_celery_retries_as_before(moved_shop: Path) -> None:
    shop = importlib.import_module("shop_switchyard")
    payload = {"customer": "zed", "month": "2026-10"}
    assert (await run_job(shop.write_invoice, payload)).state == "retrying"  # the till is away
    assert (await run_job(shop.write_invoice, payload, attempt=5)).reason == "exhausted"
    moved_shop.write_text("{}")
    assert (await run_job(shop.write_invoice, payload)).reason == "permanent"


def test_the_page_on_celery_quotes_these_programs() -> None:
    page = (ROOT / "docs" / "from-celery.md").read_text()
    programs = {
        line.strip()
        for program in (FOLDER / "from_celery").glob("*.py")
        for line in program.read_text().splitlines()
    }
    quoted = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert "autoretry_for" in quoted
    assert [line for line in quoted.splitlines() if line.strip() not in programs] == []


def test_each_program_is_run_here_and_listed() -> None:
    page = (FOLDER / "README.md").read_text()
    for program in FOLDER.glob("*.py"):
        assert f'"{program.name}"' in Path(__file__).read_text()
        assert f"]({program.name})" in page
