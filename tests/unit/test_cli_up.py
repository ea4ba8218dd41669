"""What `jobctl up` prints and leaves for another terminal."""

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


def test_of_a_cluster_it_shows_every_node_and_keeps_all_that_names_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBS_PROFILE", "quorum")
    monkeypatch.setenv("JOBS_DATABASE_URL", "postgresql+asyncpg://me@db/jobs")
    system = make_system(
        amqp_url=AMQP, management_url=MANAGEMENT, data_dir=tmp_path, only_in_data_dir=False
    )
    found = FoundBroker("a broker", AMQP, MANAGEMENT, is_private=False)
    _print_addresses(found, system, tmp_path)
    shown = capsys.readouterr().out
    assert "Management  http://a:15672,b:15673\n" in shown
    assert "s3cret" not in shown
    lines = [shlex.split(line) for line in (tmp_path / "env").read_text().splitlines()]
    kept = dict(line[1].split("=", 1) for line in lines)
    assert kept["JOBS_AMQP_URL"] == AMQP
    assert kept["JOBS_PROFILE"] == "quorum"
    assert kept["JOBS_DATABASE_URL"] == "postgresql+asyncpg://me@db/jobs"


def test_another_terminal_means_the_same_servers_prices_and_budgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.toml").write_text("[models.m]\ninput = 1\noutput = 1")
    given = {
        "JOBS_LLM_BASE_URL": "http://gpu:8000/v1",
        "JOBS_LLM_MODEL": "m",
        "JOBS_LLM_BUDGET_PER_DAY": "20",
        "JOBS_LIMITS": '{"openai": {"concurrency": 10}}',
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JOBS_LLM_PRICES", "prices.toml")
    system = make_system(
        amqp_url=AMQP, management_url=MANAGEMENT, data_dir=tmp_path, only_in_data_dir=False
    )
    _print_addresses(FoundBroker("a broker", AMQP, MANAGEMENT, is_private=False), system, tmp_path)
    lines = [shlex.split(line) for line in (tmp_path / "env").read_text().splitlines()]
    kept = dict(line[1].split("=", 1) for line in lines)
    assert {name: kept.get(name) for name in given} == given
    assert kept["JOBS_LLM_PRICES"] == str(tmp_path / "prices.toml")
    assert "JOBS_LOG_FORMAT" not in kept


def test_an_api_that_starts_late_is_told_of_and_told_again_when_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("switchyard.cli.process.up.API_START_TIMEOUT", 0.01)
    supervisor = Supervisor(tmp_path, {})
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        api = ApiStart(*server.getsockname())
        await_api(api, supervisor)
        told = f"The HTTP API is still starting; its log: {tmp_path / 'api.log'}\n"
        assert capsys.readouterr().err == told
        server.listen()
        assert [api.has_just_started(), api.has_just_started()] == [True, False]
        assert capsys.readouterr().err == ""
        await_api(ApiStart(*server.getsockname()), supervisor)
        assert capsys.readouterr().err == ""
