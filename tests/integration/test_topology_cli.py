"""`jobctl topology` on a real broker."""

import asyncio
import json
import socket
import sys
from types import ModuleType

import pytest
from typer.testing import CliRunner, Result

from switchyard.cli.system.topology import app
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger.sql import database as database_module
from tests.support.brokers import TestBroker


@pytest.fixture(autouse=True)
def _settings(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", broker.amqp_url)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", broker.management_url)
    monkeypatch.setenv("JOBS_PROFILE", broker.profile)
    for name in ("RETRY_DELAYS", "MODULES"):
        monkeypatch.delenv(f"JOBS_{name}", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_diff_and_apply_from_blank_to_done() -> None:
    before = run("diff")
    assert before.exit_code == 1
    assert "missing" in before.stdout

    applied = run("apply")
    assert applied.exit_code == 0, applied.output
    assert "made exchange jobs.dlx" in applied.stdout

    assert (run("diff").exit_code, run("diff").stdout) == (0, "The broker is as declared.\n")
    assert json.loads(run("diff", "--json").stdout) == []
    assert run("apply").stdout == "The broker is as declared: nothing to do.\n"


def test_a_frozen_ledger_is_waited_for_once_and_the_remedy_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topology is applied nevertheless."""
    monkeypatch.setattr(database_module, "CONNECT_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, answers nothing
        port = silent.getsockname()[1]
        monkeypatch.setenv("JOBS_DATABASE_URL", f"postgresql://me@127.0.0.1:{port}/ledger")
        applied = run("apply")
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert (applied.exit_code, "made exchange jobs.dlx" in applied.stdout) == (0, True)
    assert "the broker is not marked as that of a system: the ledger's database" in applied.stderr
    assert "Once the ledger answers, run `jobctl topology apply` again" in applied.stderr
    assert run("diff").exit_code == 0


def test_a_difference_that_cannot_be_changed_fails_and_extras_do_not(broker: TestBroker) -> None:
    flags = {"durable": True, "auto_delete": False, "arguments": {}}
    asyncio.run(broker.management.put("/queues/{vhost}/hot.old", flags))
    extras = run("apply")
    assert extras.exit_code == 0
    assert "left alone: queue hot.old (0 messages in it) is not declared" in extras.stdout
    assert run("diff").exit_code == 1

    events = "/exchanges/{vhost}/jobs.events"
    asyncio.run(broker.management.delete(events))
    asyncio.run(broker.management.put(events, {**flags, "type": "fanout"}))
    blocked = run("apply")
    assert blocked.exit_code == 1
    assert "not changed: exchange jobs.events has the type fanout" in blocked.stderr
    assert "docs/topology.md" in str(blocked.exception)
    rows = json.loads(run("diff", "--json").stdout)
    assert [(row["problem"], row["kind"], row["name"], row["fixable"]) for row in rows] == [
        ("type", "exchange", "jobs.events", False),
        ("extra", "queue", "hot.old", False),
    ]


def test_an_included_module_adds_its_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic import BaseModel

    from switchyard.services.engine.jobs.registry import job

    class Abstract(BaseModel):
        text: str

    @job("translate_abstract", worker="translator", lanes=["hot"])
    async def translate_abstract(payload: Abstract, ctx: object) -> None:
        raise AssertionError("never run")

    module = ModuleType("own_jobs")
    translate_abstract.__module__ = "own_jobs"
    vars(module)["translate_abstract"] = translate_abstract
    monkeypatch.setitem(sys.modules, "own_jobs", module)
    assert "hot.translate_abstract" not in {r.routing_key for r in Registry.load().routes}

    assert run("apply").exit_code == 0
    applied = run("apply", "--include", "own_jobs")
    assert applied.stdout.splitlines() == [
        "made queue hot.translator",
        "made binding jobs.topic → hot.translator (hot.translate_abstract)",
    ]
    monkeypatch.setenv("JOBS_MODULES", "own_jobs")
    assert run("diff").exit_code == 0


def test_the_advice_on_a_foreign_policy_is_printed_once_for_all_its_queues(
    broker: TestBroker,
) -> None:
    assert run("apply").exit_code == 0
    foreign = {"pattern": "^hot", "definition": {"expires": 60_000_000}, "priority": 999}
    asyncio.run(broker.management.put("/policies/{vhost}/theirs", foreign))
    for command in ("diff", "apply"):
        result = run(command)
        assert result.exit_code == 1
        advice = "Remove policy theirs, narrow its pattern or lower its priority.\n"
        assert result.stderr.count(advice) == 1
        assert result.output.count("is under policy theirs") > 2
    rows = json.loads(run("diff", "--json").stdout)
    assert {row["advice"] for row in rows} == {advice.rstrip(".\n").replace("Rem", "rem")}
