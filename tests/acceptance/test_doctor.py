"""`jobctl doctor`: with a healthy system, and with one thing wrong in each test."""

import json
from pathlib import Path

from tests.acceptance.conftest import CommandLine
from tests.acceptance.doctor import commands, findings
from tests.support.brokers import TestBroker


def run_doctor(jobctl: CommandLine, code: int) -> dict[str, str]:
    """Run the doctor, which must exit with `code`; return the status of each check by name."""
    completed = jobctl.run("doctor", "--json")
    assert completed.returncode == code, completed.stdout + completed.stderr
    return {check["name"]: check["status"] for check in json.loads(completed.stdout)}


def test_every_check_is_ok_with_a_worker_and_a_scheduler(jobctl: CommandLine) -> None:
    jobctl.ok("topology", "apply")  # marks the broker as this ledger's
    with jobctl.started("scheduler"), jobctl.worker():
        jobctl.ok("publish", "hot.work", "--payload", "{}", "--delay", "100ms", "--wait")
        assert set(run_doctor(jobctl, 0).values()) == {"ok"}
        assert "Everything is as it must be." in jobctl.ok("doctor")


def test_a_missing_topology_and_a_missing_ledger_are_found(bare: CommandLine) -> None:
    statuses = run_doctor(bare, 1)
    assert (statuses["broker"], statuses["management"]) == ("ok", "ok")
    assert (statuses["topology"], statuses["ledger"]) == ("wrong", "wrong")
    text = bare.run("doctor").stdout
    assert "→ run `jobctl topology apply`" in text
    assert "`jobctl db upgrade` creates" in " ".join(text.split())


def test_a_broker_that_is_away_is_found(jobctl: CommandLine) -> None:
    jobctl.environment["JOBS_AMQP_URL"] = "amqp://localhost:1/"
    statuses = run_doctor(jobctl, 1)
    assert statuses["broker"] == "wrong"
    assert statuses["ledger"] == "ok"


def test_a_misspelt_setting_is_found(jobctl: CommandLine) -> None:
    jobctl.environment["JOBS_STORAGE_URI"] = "s3://secret"
    check = findings(jobctl)["setting-unknown"]
    assert check["detail"] == "JOBS_STORAGE_URI is no setting: JOBS_STORAGE_URL?"


def test_an_incomplete_file_of_classes_is_found(jobctl: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    jobctl.environment["JOBS_CLASSES"] = str(path)
    path.write_text('[kinds.tone]\nby = "rules"\n[kinds.tone.labels.x]\nkeywords = {a = 1}')
    assert run_doctor(jobctl, 1)["classes"] == "wrong"
    path.write_text(path.read_text() + "\nat_least = 1")
    assert run_doctor(jobctl, 1)["classes"] == "ok"


def test_missing_processes_and_a_profile_for_another_broker_version_are_found(
    jobctl: CommandLine,
) -> None:
    jobctl.publish()
    statuses = run_doctor(jobctl, 1)
    assert (statuses["consumers"], statuses["scheduler"], statuses["workers"]) == ("wrong",) * 3
    jobctl.environment["JOBS_PROFILE"] = "quorum"
    assert run_doctor(jobctl, 1)["version"] == "wrong"


async def test_a_foreign_policy_that_overrides_a_lanes_policy_is_found(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    from switchyard.broker.management.client import ManagementClient
    from switchyard.broker.management.model import Policy
    from switchyard.services.common.settings import Settings

    settings = Settings()
    async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
        await client.put_policy(Policy("ours-now", ".*", {"max-length": 5}, priority=99))
    statuses = run_doctor(jobctl, 1)
    assert (statuses["topology"], statuses["policies"]) == ("ok", "wrong")
    check = findings(jobctl)["policy-overridden"]
    ((_, *command),) = commands(check, "rabbitmqctl")
    broker310.node.rabbitmqctl(*command)
    assert "policy-overridden" not in findings(jobctl)
