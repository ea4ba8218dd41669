"""What `jobctl up` prints, and the file `env` that it writes for other terminals."""

import shlex
import socket
from pathlib import Path

import pytest

from switchyard.cli.process.up import ApiStart, _print_addresses, await_api
from switchyard.cli.system.local_broker import FoundBroker
from switchyard.cli.system.local_system import make_system
from switchyard.cli.system.supervisor import Supervisor

AMQP = "amqp://me:s3cret@a:5672,b:5673/jobs"
MANAGEMENT = "http://me:s3cret@a:15672,b:15673"


def test_all_nodes_of_a_cluster_are_shown_and_the_env_file_names_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBS_PROFILE", "quorum")
    monkeypatch.setenv("JOBS_DATABASE_URL", "postgresql+asyncpg://me@db/jobs")
    system = make_system(
        amqp_url=AMQP, management_url=MANAGEMENT, data_dir=tmp_path, only_in_data_dir=False
    )
    broker = FoundBroker("a broker", AMQP, MANAGEMENT, is_private=False)
    _print_addresses(broker, system, tmp_path)
    output = capsys.readouterr().out
    assert "Management  http://a:15672,b:15673\n" in output
    assert "s3cret" not in output
    lines = [shlex.split(line) for line in (tmp_path / "env").read_text().splitlines()]
    exported = dict(line[1].split("=", 1) for line in lines)
    assert exported["JOBS_AMQP_URL"] == AMQP
    assert exported["JOBS_PROFILE"] == "quorum"
    assert exported["JOBS_DATABASE_URL"] == "postgresql+asyncpg://me@db/jobs"


def test_the_env_file_holds_servers_prices_and_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.toml").write_text("[models.m]\ninput = 1\noutput = 1")
    environment = {
        "JOBS_LLM_BASE_URL": "http://gpu:8000/v1",
        "JOBS_LLM_MODEL": "m",
        "JOBS_LLM_BUDGET_PER_DAY": "20",
        "JOBS_LIMITS": '{"openai": {"concurrency": 10}}',
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JOBS_LLM_PRICES", "prices.toml")
    system = make_system(
        amqp_url=AMQP, management_url=MANAGEMENT, data_dir=tmp_path, only_in_data_dir=False
    )
    _print_addresses(FoundBroker("a broker", AMQP, MANAGEMENT, is_private=False), system, tmp_path)
    lines = [shlex.split(line) for line in (tmp_path / "env").read_text().splitlines()]
    exported = dict(line[1].split("=", 1) for line in lines)
    assert {name: exported.get(name) for name in environment} == environment
    assert exported["JOBS_LLM_PRICES"] == str(tmp_path / "prices.toml")
    assert "JOBS_LOG_FORMAT" not in exported


def test_an_api_that_starts_late_is_reported_and_its_start_noticed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("switchyard.cli.process.up.API_START_TIMEOUT", 0.01)
    supervisor = Supervisor(tmp_path, {})
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        api = ApiStart(*server.getsockname())
        await_api(api, supervisor)
        message = f"The HTTP API is still starting; its log: {tmp_path / 'api.log'}\n"
        assert capsys.readouterr().err == message
        server.listen()
        assert [api.has_just_started(), api.has_just_started()] == [True, False]
        assert capsys.readouterr().err == ""
        await_api(ApiStart(*server.getsockname()), supervisor)
        assert capsys.readouterr().err == ""
