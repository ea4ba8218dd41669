"""An installation in somebody else's project, which has folders of our names itself."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.conftest import ROOT, clean_environment
from tests.support.brokers import TestBroker

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
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """A wheel of a clone without the four links, in an environment that has such packages."""
    base = tmp_path_factory.mktemp("foreign")
    clone = base / "clone"
    clone.mkdir()
    shutil.copy(ROOT / "pyproject.toml", clone)
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(base), str(clone))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", base / "env"], check=True)
    site = Path(
        sysconfig.get_path("purelib", "venv", vars={"base": str(base / "env")})  # lib/python…
    )
    # A .pth file in a directory that a .pth file names is not read: our clone is not in the path.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in OUR_FOLDERS:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"OWNER = 'somebody else, in {name}'\n")
    made = Installation(base / "env/bin", site, {})
    made.there_before = made.files()
    (wheel,) = base.glob("switchyard-*.whl")
    _pip("--python", str(made.bin / "python"), "install", "--no-deps", str(wheel))
    return made


def _pip(*arguments: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True)


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
    done = [each["id"] for each in json.loads(listing) if each["state"] == "succeeded"]
    return {
        each: json.loads(ran("jobctl", "jobs", "show", each, "--json"))["result"]["total"]
        for each in done
    }
