"""What `jobctl up` prints and leaves for another terminal."""

import shlex
from pathlib import Path

import pytest

from switchyard.cli.process.up import _print_addresses
from switchyard.cli.system.assembly import assemble
from switchyard.cli.system.brokers import FoundBroker

AMQP = "amqp://me:s3cret@a:5672,b:5673/jobs"
MANAGEMENT = "http://me:s3cret@a:15672,b:15673"


def test_of_a_cluster_it_shows_every_node_and_keeps_all_that_names_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JOBS_PROFILE", "quorum")
    monkeypatch.setenv("JOBS_DATABASE_URL", "postgresql+asyncpg://me@db/jobs")
    system = assemble(
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
