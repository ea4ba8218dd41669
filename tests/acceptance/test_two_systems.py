"""Two systems, one broker: each command is refused, naming both, until the operator decides."""

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


def system_of(jobctl: CommandLine, **environment: str) -> str:
    shown = jobctl.run("system", "show", "--json", **environment)
    assert shown.returncode == 0, shown.stderr
    return str(json.loads(shown.stdout)["system"])


@pytest.mark.long
def test_the_second_system_is_refused_by_every_door_until_it_adopts_the_broker(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    said = jobctl.ok("topology", "apply")
    first = system_of(jobctl)
    assert f"marked the broker as that of the system {first}" in said
    assert "marked" not in jobctl.ok("topology", "apply")
    other = {"JOBS_DATA_DIR": str(tmp_path / "other")}
    assert jobctl.run("db", "upgrade", **other).returncode == 0
    second = system_of(jobctl, **other)
    for command in COMMANDS:
        told = replace(jobctl, environment=jobctl.environment | other).fails(*command)
        assert first in told, command
        assert second in told, command
        assert "jobctl system adopt" in told, command
    doctor = jobctl.run("doctor", **other)
    assert "✗ system" in doctor.stdout
    told = " ".join(doctor.stdout.split())
    assert first in told
    assert second in told
    jobctl.ok("jobs", "list")
    adopted = jobctl.run("system", "adopt", "--yes", **other)
    assert (adopted.returncode, second in adopted.stdout) == (0, True), adopted.stderr
    assert first in jobctl.fails("publish", "hot.work", "--payload", "{}")
    job = jobctl.run("publish", "hot.work", "--payload", "{}", **other)
    assert job.returncode == 0, job.stderr


def test_adopting_asks_first_and_shows_both(jobctl: CommandLine) -> None:
    refused = jobctl.run("system", "adopt", stdin="n\n")
    assert refused.returncode == 1
    assert "Does the broker belong" in refused.stderr
    assert "nobody has marked it" in refused.stdout


def test_adopting_what_is_this_ledgers_already_asks_nothing(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    jobctl.ok("topology", "apply")
    mine = system_of(jobctl)
    assert mine in jobctl.ok("system", "adopt")
    other = {"JOBS_DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'other.db'}"}
    assert jobctl.run("db", "upgrade", **other).returncode == 0
    assert jobctl.run("system", "adopt", "--yes", **other).returncode == 0
    asked = jobctl.run("system", "adopt", stdin="n\n")
    assert (asked.returncode, mine in asked.stdout) == (1, True)
    assert "Does the broker belong" in asked.stderr


async def remove(broker: TestBroker, vhost: str) -> None:
    async with ManagementClient(broker.management_url, vhost) as client:
        await client.delete_vhost()


@pytest.mark.parametrize("older", [False, True], ids=["new", "from before ids"])
async def test_up_takes_a_virtual_host_of_its_own(
    broker310: TestBroker, tmp_path: Path, older: bool
) -> None:
    """Two new systems get two; one that worked in `switchyard` before stays there."""
    found = FoundBroker("it", broker310.amqp_url, broker310.management_url, is_private=False)
    one, two = (Settings(data_dir=tmp_path / name) for name in ("one", "two"))
    vhosts = []
    try:
        if older:
            shared = await permanent_vhost(found, "switchyard")
            vhosts.append("switchyard")
            first = await own_vhost(found, one)  # makes the ledger
            vhosts.append(first.rpartition("/")[2])
            await remove(broker310, vhosts[-1])
            async with await Ledger.open(one.ledger_url) as ledger:
                await mark_broker(one.model_copy(update={"amqp_url": SecretStr(shared)}), ledger)
            assert await own_vhost(found, one) == shared
        addresses = [await own_vhost(found, each) for each in (one, two, one, two)]
        vhosts += [each.rpartition("/")[2] for each in addresses]
    finally:
        for vhost in set(vhosts):
            await remove(broker310, vhost)
    assert addresses[:2] == addresses[2:]
    assert addresses[0] != addresses[1]


async def test_what_up_sets_up_is_refused_on_anothers_broker_unless_told_to_adopt(
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
