"""Bulk actions over HTTP and by `jobctl`: planned, started, watched, undone, refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from switchyard.services.engine.actions.handler import action_handlers
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.records.states import State
from tests.support.api_server import RunningApi, environment_of
from tests.support.commands import jobctl
from tests.support.eventually import eventually
from tests.support.system import System


@asynccontextmanager
async def acting(system: System) -> AsyncIterator[None]:
    """Run bulk actions, as the scheduler does."""
    runner = BulkRunner(
        system.ledger,
        action_handlers(system.settings, system.registry, system.ledger, lanes=system.lanes),
    )
    task = asyncio.create_task(runner.run())
    yield
    runner.stop()
    await asyncio.wait_for(task, 20)


async def test_an_action_is_planned_started_shown_and_undone_over_http(
    system: System, api: RunningApi
) -> None:
    ids = [await system.publish("hot.noop", {"n": n}, source="night") for n in range(6)]
    body = {"action": "move", "filter": {"source": "night"}, "lane": "backfill"}
    planned = await api.client.post("/jobs/actions", json=body | {"dry_run": True})
    assert planned.status_code == 200
    assert planned.json()["matched"] == 6
    assert planned.json()["examples"][0]["job_id"] == ids[0]
    assert await system.state(ids[0]) is State.QUEUED

    async with acting(system):
        started = await api.client.post("/jobs/actions", json=body | {"reason": "hot is full"})
        assert started.status_code == 202
        location = started.headers["Location"]

        async def is_completed(path: str = location) -> bool:
            return bool((await api.client.get(path)).json()["state"] == "completed")

        await eventually(is_completed)
        shown = (await api.client.get(location)).json()
        assert (shown["action"], shown["done"], shown["reason"]) == ("move", 6, "hot is full")
        (listed,) = (await api.client.get("/jobs/actions")).json()["actions"]
        assert listed == shown
        found = await api.client.get("/jobs", params={"acted_by": shown["id"]})
        assert {job["lane"] for job in found.json()["jobs"]} == {"backfill"}
        job = (await api.client.get(f"/jobs/{ids[0]}")).json()
        (note,) = job["actions"]
        assert note["operation_id"] == shown["id"]
        assert note["before"] == {"lane": "hot", "priority": job["priority"]}

        undone = await api.client.post(f"{location}/undo")
        assert undone.status_code == 202

        async def is_undone() -> bool:
            return await is_completed(undone.headers["Location"])

        await eventually(is_undone)
        assert {(await system.record(each)).lane for each in ids} == {"hot"}


INVALID: dict[str, dict[str, object]] = {
    "which jobs": {"action": "cancel"},
    "no dead job": {"action": "cancel", "filter": {"state": "dead"}},
    "cancel": {"action": "burn", "filter": {"state": "dead"}},
    "where to": {"action": "move", "filter": {"lane": "hot"}},
    "warm": {"action": "move", "filter": {"lane": "hot"}, "lane": "warm"},
    "PATH=VALUE": {"action": "rerun", "filter": {"payload": "no path"}},
    "2026-01-05": {"action": "rerun", "filter": {"since": 5}},
    "letters": {"action": "rerun", "filter": {"ids": ["a b"]}},
    "no such field": {"action": "rerun", "filter": {"lane": "hot"}, "change": {"jq": "."}},
}
"""Invalid requests, by a text in the error that they get."""


async def test_an_invalid_action_is_refused(shared_api: RunningApi) -> None:
    for error_text, body in INVALID.items():
        answer = await shared_api.client.post("/jobs/actions", json=body)
        assert (answer.status_code, error_text in answer.text) == (422, True), answer.text


async def test_slow_jobs_of_a_source_are_rerun_by_one_command(system: System) -> None:
    await system.start_worker()
    steps = {"steps": ["done"]}
    ids = [await system.publish("hot.scripted", steps, source="night") for _ in range(2)]
    job_of_day = await system.publish("hot.scripted", steps, source="day")
    await system.wait_until_all([*ids, job_of_day], State.SUCCEEDED)
    environment = environment_of(system.settings)
    filters = "--source night --since 1h --slower-than 0s"
    planned = await jobctl(*f"jobs rerun {filters} --dry-run --json".split(), **environment)
    assert json.loads(planned.stdout)["matched"] == 2, planned.stderr
    refused = await jobctl(*f"jobs rerun {filters}".split(), **environment)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    rerun = await jobctl(*f"jobs rerun {filters} --yes --why slow --json".split(), **environment)
    assert rerun.returncode == 0, rerun.stderr
    action = json.loads(rerun.stdout)
    assert (action["done"], action["reason"], action["state"]) == (2, "slow", "completed")
    listed = await jobctl("jobs", "list", "--operation", action["id"], "--json", **environment)
    new_jobs = json.loads(listed.stdout)
    await system.wait_until_all([job["job_id"] for job in new_jobs], State.SUCCEEDED)
    old_record = json.loads((await jobctl("jobs", "show", ids[0], "--json", **environment)).stdout)
    rerun_id = old_record["actions"][0]["new_job_id"]
    assert rerun_id in {job["job_id"] for job in new_jobs}
    text = (await jobctl("jobs", "show", rerun_id, **environment)).stdout
    assert f"rerun of {ids[0]}" in " ".join(text.split()), text


async def test_ids_that_cannot_be_changed_fail_the_command(system: System) -> None:
    environment = environment_of(system.settings)
    job_id = await system.publish("hot.noop", delay=900)
    answer = await jobctl("jobs", "cancel", job_id, "nobody", "--yes", **environment)
    assert answer.returncode == 1
    assert "1 of these ids can't be cancelled" in answer.stderr
    assert await system.state(job_id) is State.CANCELLED
    ids_and_filter = await jobctl("jobs", "move", job_id, "--lane", "hot", "--to-lane", "backfill")
    assert ids_and_filter.returncode == 2
