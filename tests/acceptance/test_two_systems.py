"""Two systems on one broker: each command is refused with both ids, until the operator decides."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.broker.errors import WrongSystem
from switchyard.broker.management.client import ManagementClient
from switchyard.cli.system.local_broker import FoundBroker
from switchyard.cli.system.local_system import make_system, prepare
from switchyard.cli.system.vhosts import own_vhost, permanent_vhost
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.broker import mark_broker
from switchyard.services.engine.ledger import Ledger
from tests.acceptance.conftest import CommandLine
from tests.support.brokers import TestBroker

COMMANDS = (
    ("publish", "hot.work", "--payload", "{}"),
    ("worker", "tester"),
    ("scheduler",),
    ("api", "--port", "0"),
    ("dead", "list"),
    ("dead", "redrive", "--all", "--yes"),
    ("topology", "apply"),
)


def read_system_id(jobctl: CommandLine, **environment: str) -> str:
    completed = jobctl.run("system", "show", "--json", **environment)
    assert completed.returncode == 0, completed.stderr
    return str(json.loads(completed.stdout)["system"])


@pytest.mark.long
def test_every_command_of_the_second_system_is_refused_until_it_adopts_the_broker(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    output = jobctl.ok("topology", "apply")
    first_id = read_system_id(jobctl)
    assert f"marked the broker as that of the system {first_id}" in output
    assert "marked" not in jobctl.ok("topology", "apply")
    second_system = {"JOBS_DATA_DIR": str(tmp_path / "other")}
    assert jobctl.run("db", "upgrade", **second_system).returncode == 0
    second_id = read_system_id(jobctl, **second_system)
    for command in COMMANDS:
        error_text = replace(jobctl, environment=jobctl.environment | second_system).fails(*command)
        assert first_id in error_text, command
        assert second_id in error_text, command
        assert "jobctl system adopt" in error_text, command
    doctor = jobctl.run("doctor", **second_system)
    assert "✗ system" in doctor.stdout
    doctor_text = " ".join(doctor.stdout.split())
    assert first_id in doctor_text
    assert second_id in doctor_text
    jobctl.ok("jobs", "list")
    adopted = jobctl.run("system", "adopt", "--yes", **second_system)
    assert (adopted.returncode, second_id in adopted.stdout) == (0, True), adopted.stderr
    assert first_id in jobctl.fails("publish", "hot.work", "--payload", "{}")
    job = jobctl.run("publish", "hot.work", "--payload", "{}", **second_system)
    assert job.returncode == 0, job.stderr


def test_adopting_a_broker_asks_first_and_shows_its_owner(jobctl: CommandLine) -> None:
    refused = jobctl.run("system", "adopt", stdin="n\n")
    assert refused.returncode == 1
    assert "Does the broker belong" in refused.stderr
    assert "nobody has marked it" in refused.stdout


def test_adopting_a_broker_of_this_ledger_asks_nothing(jobctl: CommandLine, tmp_path: Path) -> None:
    jobctl.ok("topology", "apply")
    own_id = read_system_id(jobctl)
    assert own_id in jobctl.ok("system", "adopt")
    second_system = {"JOBS_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'other.db'}"}
    assert jobctl.run("db", "upgrade", **second_system).returncode == 0
    assert jobctl.run("system", "adopt", "--yes", **second_system).returncode == 0
    refused = jobctl.run("system", "adopt", stdin="n\n")
    assert (refused.returncode, own_id in refused.stdout) == (1, True)
    assert "Does the broker belong" in refused.stderr


async def delete_vhost(broker: TestBroker, vhost: str) -> None:
    async with ManagementClient(broker.management_url, vhost) as client:
        await client.delete_vhost()


@pytest.mark.parametrize("is_older", [False, True], ids=["new", "from before ids"])
async def test_up_takes_a_virtual_host_of_its_own(
    broker310: TestBroker, tmp_path: Path, is_older: bool
) -> None:
    """Each new system gets another one; an older system that used `switchyard` keeps that."""
    found_broker = FoundBroker("it", broker310.amqp_url, broker310.management_url, is_private=False)
    first_settings, second_settings = (
        Settings(data_dir=tmp_path / name) for name in ("one", "two")
    )
    vhosts = []
    try:
        if is_older:
            shared = await permanent_vhost(found_broker, "switchyard")
            vhosts.append("switchyard")
            new_url = await own_vhost(found_broker, first_settings)  # makes the ledger
            vhosts.append(new_url.rpartition("/")[2])
            await delete_vhost(broker310, vhosts[-1])
            async with await Ledger.open(first_settings.ledger_url) as ledger:
                await mark_broker(
                    first_settings.model_copy(update={"amqp_url": SecretStr(shared)}), ledger
                )
            assert await own_vhost(found_broker, first_settings) == shared
        addresses = [
            await own_vhost(found_broker, settings)
            for settings in (first_settings, second_settings, first_settings, second_settings)
        ]
        vhosts += [address.rpartition("/")[2] for address in addresses]
    finally:
        for vhost in set(vhosts):
            await delete_vhost(broker310, vhost)
    assert addresses[:2] == addresses[2:]
    assert addresses[0] != addresses[1]


async def test_up_is_refused_on_the_broker_of_another_system_unless_it_adopts_it(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    jobctl.ok("topology", "apply")
    system = make_system(
        amqp_url=jobctl.environment["JOBS_AMQP_URL"],
        management_url=jobctl.environment["JOBS_MANAGEMENT_URL"],
        data_dir=tmp_path / "up",
        only_in_data_dir=True,
    )
    with pytest.raises(WrongSystem, match="is of the system"):
        await prepare(system)
    await prepare(system, adopt=True)
    await prepare(system)
    jobctl.fails("publish", "hot.work", "--payload", "{}")
