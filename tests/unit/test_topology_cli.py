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


def error_line(result: Result) -> str:
    """Return the text of the error, which `jobctl` prints as a line on stderr."""
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
    arguments_by_queue = {queue["name"]: queue["arguments"] for queue in definitions["queues"]}
    assert arguments_by_queue["hot.llm"] == {"x-queue-type": "quorum"}
    assert [name for name in arguments_by_queue if "retry" in name] == [retry_name(0.5)]
    assert json.loads(run("render", "--vhost", "/").stdout)["vhosts"] == [{"name": "/"}]


@pytest.mark.parametrize("command", ["diff", "apply"])
def test_the_error_for_an_unreachable_broker_is_one_line_with_advice(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", NO_BROKER)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", "http://127.0.0.1:1")
    line = error_line(run(command))
    assert line.startswith("can't reach the management API at http://127.0.0.1:1")
    assert "rabbitmq-plugins enable rabbitmq_management" in line
    assert "s3cret" not in line


@pytest.mark.parametrize("command", ["diff", "apply"])
def test_without_an_address_the_error_names_the_missing_setting(command: str) -> None:
    assert "set JOBS_MANAGEMENT_URL or JOBS_AMQP_URL" in error_line(run(command))


def test_a_setting_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_RETRY_DELAYS", "10,5")
    assert "JOBS_RETRY_DELAYS" in error_line(run("render"))


def test_a_module_that_cannot_be_imported_is_named() -> None:
    assert "can't import the job module 'no_such_jobs'" in error_line(
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
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert result.stdout.strip() == "set()"
