"""`jobctl doctor`: everything as it must be, and each thing that can be wrong."""

import json
from pathlib import Path

from tests.acceptance.conftest import CommandLine
from tests.acceptance.doctor import commands, findings
from tests.support.brokers import TestBroker


def statuses(jobctl: CommandLine, code: int) -> dict[str, str]:
    done = jobctl.run("doctor", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return {check["name"]: check["status"] for check in json.loads(done.stdout)}


def test_all_is_well_with_a_worker_and_a_scheduler(jobctl: CommandLine) -> None:
    jobctl.ok("topology", "apply")  # marks the broker as this ledger's
    with jobctl.started("scheduler"), jobctl.worker():
        jobctl.ok("publish", "hot.work", "--payload", "{}", "--delay", "100ms", "--wait")
        assert set(statuses(jobctl, 0).values()) == {"ok"}
        assert "Everything is as it must be." in jobctl.ok("doctor")


def test_nothing_set_up(bare: CommandLine) -> None:
    found = statuses(bare, 1)
    assert (found["broker"], found["management"]) == ("ok", "ok")
    assert (found["topology"], found["ledger"]) == ("wrong", "wrong")
    text = bare.run("doctor").stdout
    assert "→ run `jobctl topology apply`" in text
    assert "`jobctl db upgrade` creates" in " ".join(text.split())


def test_no_broker(jobctl: CommandLine) -> None:
    jobctl.environment["JOBS_AMQP_URL"] = "amqp://localhost:1/"
    found = statuses(jobctl, 1)
    assert found["broker"] == "wrong"
    assert found["ledger"] == "ok"


def test_a_setting_that_is_misspelt(jobctl: CommandLine) -> None:
    jobctl.environment["JOBS_STORAGE_URI"] = "s3://secret"
    found = findings(jobctl)["setting-unknown"]
    assert found["detail"] == "JOBS_STORAGE_URI is no setting: JOBS_STORAGE_URL?"


def test_a_file_of_classes_that_says_nothing(jobctl: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    jobctl.environment["JOBS_CLASSES"] = str(path)
    path.write_text('[kinds.tone]\nby = "rules"\n[kinds.tone.labels.x]\nkeywords = {a = 1}')
    assert statuses(jobctl, 1)["classes"] == "wrong"
    path.write_text(path.read_text() + "\nat_least = 1")
    assert statuses(jobctl, 1)["classes"] == "ok"


def test_jobs_that_nobody_works_no_scheduler_and_a_profile_for_another_version(
    jobctl: CommandLine,
) -> None:
    jobctl.publish()
    found = statuses(jobctl, 1)
    assert (found["consumers"], found["scheduler"], found["workers"]) == ("wrong",) * 3
    jobctl.environment["JOBS_PROFILE"] = "quorum"
    assert statuses(jobctl, 1)["version"] == "wrong"


async def test_a_policy_of_somebody_else_that_rules_a_lane(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    from switchyard.broker.management.client import ManagementClient
    from switchyard.broker.management.model import Policy
    from switchyard.services.common.settings import Settings

    settings = Settings()
    async with ManagementClient(settings.require_management_url(), settings.vhost) as client:
        await client.put_policy(Policy("ours-now", ".*", {"max-length": 5}, priority=99))
    found = statuses(jobctl, 1)
    assert (found["topology"], found["policies"]) == ("ok", "wrong")
    remedy = findings(jobctl)["policy-overridden"]
    ((_, *command),) = commands(remedy, "rabbitmqctl")
    broker310.node.rabbitmqctl(*command)
    assert "policy-overridden" not in findings(jobctl)
