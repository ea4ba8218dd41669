"""`switchyard.testing.open_worker`: a real worker in a test, on a broker that is there."""

import pytest

from switchyard.broker.management.client import ManagementClient
from switchyard.services.engine.records.states import State
from switchyard.testing import open_worker
from tests.support.brokers import TestBroker
from tests.support.jobs import journal


async def test_open_worker_publishes_waits_and_tells_what_ran(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", broker.amqp_url)
    monkeypatch.setenv("JOBS_MANAGEMENT_URL", broker.management_url)
    monkeypatch.setenv("JOBS_PROFILE", broker.profile)
    journal.clear()
    async with open_worker("tests.support.jobs") as worker:
        succeeded = await worker.run("hot.noop", {"n": 1})
        assert (succeeded.state, succeeded.result) == (State.SUCCEEDED, {"n": 1})
        dead = await worker.run("hot.scripted", {"steps": ["retry", "permanent"]})
        assert (dead.state, dead.reason) == (State.DEAD, "permanent")
        assert [(run.job_id, run.job_type, run.attempt) for run in worker.runs] == [
            (succeeded.id, "noop", 1),
            (dead.id, "scripted", 1),
            (dead.id, "scripted", 2),
        ]
        vhost = worker.settings.vhost
        assert vhost != broker.vhost
    async with ManagementClient(broker.management_url, vhost) as client:
        assert await client.get(f"/vhosts/{vhost}", missing="gone") == "gone"
