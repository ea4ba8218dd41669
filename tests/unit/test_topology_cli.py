"""`jobctl topology` without a broker: what it prints, and how it fails."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from switchyard.broker.errors import BrokerError
from switchyard.broker.lanes import retry_name
from switchyard.broker.topology.build import build
from switchyard.broker.topology.definitions import render_text
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.system.topology import app
from switchyard.services.engine.jobs.registry import Registry, RegistryError

NO_BROKER = "amqp://someone:s3cret@127.0.0.1:1/"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AMQP_URL", "MANAGEMENT_URL", "PROFILE", "RETRY_DELAYS", "MODULES"):
        monkeypatch.delenv(f"JOBS_{name}", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def failure(result: Result) -> str:
    """What is said about the error; `jobctl` itself makes a line on stderr of it."""
    assert result.stdout == ""
    assert isinstance(result.exception, CommandFailed | BrokerError | RegistryError)
    text = str(result.exception)
    assert "\n" not in text
    return text


def test_render_prints_the_definitions_of_the_built_in_jobs() -> None:
    routes = Registry.load().routes
    assert run("render").stdout == render_text(build("classic", routes))
    assert run("render", "--profile", "quorum").stdout == render_text(build("quorum", routes))


def test_render_follows_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_PROFILE", "quorum")
    monkeypatch.setenv("JOBS_RETRY_DELAYS", "0.5")
    monkeypatch.setenv("JOBS_AMQP_URL", "amqp://localhost/pipe%2Flines")
    definitions = json.loads(run("render").stdout)
    assert definitions["vhosts"] == [{"name": "pipe/lines"}]
    names = {queue["name"]: queue["arguments"] for queue in definitions["queues"]}
    assert names["hot.llm"] == {"x-queue-type": "quorum"}
    assert [name for name in names if "retry" in name] == [retry_name(0.5)]
    assert json.loads(run("render", "--vhost", "/").stdout)["vhosts"] == [{"name": "/"}]


@pytest.mark.parametrize("command", ["diff", "apply"])
def test_a_broker_that_cannot_be_reached_is_one_line_that_says_what_to_do(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", NO_BROKER)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", "http://127.0.0.1:1")
    line = failure(run(command))
    assert line.startswith("can't reach the management API at http://127.0.0.1:1")
    assert "rabbitmq-plugins enable rabbitmq_management" in line
    assert "s3cret" not in line


@pytest.mark.parametrize("command", ["diff", "apply"])
def test_without_an_address_it_says_which_setting_is_missing(command: str) -> None:
    assert "set JOBS_MANAGEMENT_URL or JOBS_AMQP_URL" in failure(run(command))


def test_a_setting_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_RETRY_DELAYS", "10,5")
    assert "JOBS_RETRY_DELAYS" in failure(run("render"))


def test_a_module_that_cannot_be_imported_is_named() -> None:
    assert "can't import the job module 'no_such_jobs'" in failure(
        run("render", "--include", "no_such_jobs")
    )


def test_wrong_usage_has_the_exit_code_2() -> None:
    assert run("render", "--profile", "mirrored").exit_code == 2
    assert run("destroy").exit_code == 2


def test_importing_the_commands_imports_nothing_heavy() -> None:
    heavy = {
        "pydantic",
        "httpx",
        "rich.table",
        "aio_pika",
        "switchyard.services.engine.jobs.registry",
        "switchyard.broker.topology.build",
    }
    code = f"import sys, switchyard.cli.system.topology; print({heavy!r} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "set()"
