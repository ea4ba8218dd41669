"""Each program of examples/ runs as the comment at its top says.

A shell runs the commands of that comment in a copy of the folder. The system that
examples/README.md starts in the first terminal runs here, too, with the variables exported there,
in processes that all tests of this file share: forks (tests/support/commands.py) instead of those
of `jobctl up`. Only ports and retry delays differ.
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
"""Ports that the comments name."""
RETRY_DELAYS = (1.0, 2.0, 4.0)
PROCESSES = (("scheduler",), ("worker", "all"))


def free_ports(number: int) -> list[str]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [str(probe.getsockname()[1]) for probe in probes]


def exports_of(page: str) -> dict[str, str]:
    """Return the variables that examples/README.md exports before it starts the system."""
    first_terminal, _ = re.findall(r"^```\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert first_terminal.endswith("\njobctl up\n")
    return dict(re.findall(r"^export (\w+)=(\S+)$", first_terminal, re.MULTILINE))


def commands_of(program: Path) -> str:
    """Return the indented lines of the comment at the program's top."""
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
    """The ports used here, by those that the comments name."""

    @contextmanager
    def running(self, program: str) -> Iterator[Callable[[], str]]:
        """Run the commands of a program's comment to their end; background jobs run on while the
        context lasts. Yields a function that returns the output so far."""
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
            row = db.execute("SELECT state FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return row and str(row[0])


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A system that knows the jobs of the examples, and a shell beside it."""
    folder = tmp_path_factory.mktemp("run") / "examples"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    *used_ports, api_port = free_ports(len(PORTS) + 1)
    ports = dict(zip(PORTS, used_ports, strict=True))
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
        ) | exports_of((folder / "README.md").read_text())
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
        search_path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield Shell(folder, environment | {"PATH": search_path}, ports)


def ids_in(text: str) -> list[str]:
    return re.findall(r"^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$", text, re.MULTILINE)


async def test_a_link_is_checked_again_when_its_server_is_there(shell: Shell) -> None:
    with shell.running("check_link.py") as read_output:
        early_id, *_ = ids_in(read_output())
        await eventually(lambda: shell.state_of(early_id) == "succeeded", what="the first job")
        assert "is dead (permanent): the server answers 404" in read_output()


async def test_a_pika_script_publishes_jobs_that_run(shell: Shell) -> None:
    with shell.running("publish_with_pika.py") as read_output:
        job_ids = ids_in(read_output())
        assert len(job_ids) == 2
        for job_id in job_ids:
            await eventually(partial(shell.state_of, job_id), what=f"a record of {job_id}")


async def test_a_web_service_shows_the_progress_of_its_job(shell: Shell) -> None:
    with shell.running("report_service.py") as read_output:
        assert "writing about stock" in read_output()
        assert '"state": "succeeded"' in read_output()
        unknown = f"http://127.0.0.1:{shell.ports['9001']}/reports/unknown"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(unknown)).status_code == 404


async def test_a_backfill_from_a_source_of_ones_own_makes_a_job_of_each_row(shell: Shell) -> None:
    with shell.running("orders_source.py") as read_output:
        assert "completed" in read_output()
        assert "100" in read_output()


async def test_a_webhook_receiver_gets_notices_and_refuses_forged_and_large_ones(
    shell: Shell,
) -> None:
    with shell.running("receive_notices.py") as read_output:
        await eventually(lambda: re.search("^write_report .* completed$", read_output(), re.M))
        async with httpx.AsyncClient(trust_env=False) as client:
            address = f"http://127.0.0.1:{shell.ports['9002']}/"
            forged = await client.post(address, content=b"{}")
            assert forged.status_code == 401
            large = await client.post(address, content=b" " * 300_000)
            assert large.status_code == 413


async def test_uploaded_documents_are_found_by_search(shell: Shell) -> None:
    with shell.running("search_documents.py") as read_output:
        assert "README.md, page 1" in read_output()


@pytest.fixture
def till_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the till's file; the module moved from Celery can be imported beside it."""
    monkeypatch.syspath_prepend(FOLDER / "from_celery")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "till.json"


async def test_the_jobs_moved_from_celery_run_to_their_end(
    broker310: TestBroker, till_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", broker310.amqp_url)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", broker310.management_url)
    till_file.write_text('{"ada": [3, 4.5], "bob": [8], "eve": []}')
    async with open_worker("shop_switchyard") as worker:
        await worker.run("hot.close_month", {"month": "2026-10"}, timeout=MAX_WAIT)
        run_counts = Counter(run.job_type for run in worker.runs)
        assert run_counts == {
            "close_month": 1,
            "write_invoice": 3,
            "bind_invoices": 1,
            "send_mail": 1,
        }
        [invoice_book] = [run.payload for run in worker.runs if run.job_type == "send_mail"]
        assert invoice_book["invoices"] == [
            "2026-10 ada: 7.50",
            "2026-10 bob: 8.00",
            "2026-10 eve: 0.00",
        ]


async def test_the_jobs_moved_from_celery_retry_as_before(till_file: Path) -> None:
    shop = importlib.import_module("shop_switchyard")
    payload = {"customer": "zed", "month": "2026-10"}
    assert (await run_job(shop.write_invoice, payload)).state == "retrying"  # the till is away
    assert (await run_job(shop.write_invoice, payload, attempt=5)).reason == "exhausted"
    till_file.write_text("{}")
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
