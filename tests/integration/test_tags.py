"""Tags follow one rule wherever they are given, pass to following jobs, and are indexed."""

from typing import Any

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import InvalidJob, JobRequest
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.states import State
from tests.integration.test_job_actions import RERUN, run_action
from tests.support.api_server import environment_of, serving
from tests.support.brokers import TestBroker
from tests.support.commands import jobctl
from tests.support.jobs import journal
from tests.support.redrives import index, redrive
from tests.support.system import System, open_system

TAGS = {"team": "search", "run.no": "7"}
INVALID_TAGS: list[Any] = [
    {"Team": "a"},
    {"1st": "a"},
    {"team": ""},
    {"team": "a" * 101},
    {"team": "a\x00b"},
    {"a" * 41: "b"},
    {f"t{n}": "a" for n in range(17)},
]


async def find_ids(ledger: Ledger, **filters: Any) -> list[str]:
    return [job.id for job in (await ledger.job_reads.list_jobs(JobFilter(**filters))).items]


async def test_tags_are_kept_by_stages_retries_redrives_and_reruns(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await system.start_worker()
        spread = await system.publish("hot.spread", {"count": 2}, tags=TAGS)
        retried = await system.publish(
            "hot.scripted",
            {"steps": ["retry", "dead", "done"]},
            tags={"team": "search"},
            max_attempts=2,
        )
        untagged = await system.publish("hot.noop")
        await system.wait_for_state(retried, State.DEAD)
        await system.wait_until_all([spread, untagged], State.SUCCEEDED)
        children = await find_ids(system.ledger, parent_id=spread)
        assert len(children) == 2
        assert set(await find_ids(system.ledger, tags=TAGS)) == {spread, *children}
        assert set(await find_ids(system.ledger, tags={"team": "search"})) == {
            spread,
            retried,
            *children,
        }
        assert await find_ids(system.ledger, tags={"team": "other"}) == []
        await index(system)
        await redrive(system)
        await system.wait_for_state(retried, State.SUCCEEDED)
        starts = journal.starts_of(retried)
        assert [start.message.metadata.tags for start in starts] == [{"team": "search"}] * 3
        _, progress = await run_action(
            system, RERUN, JobFilter(tags={"team": "search", "run.no": "7"})
        )
        assert progress.done == 1  # of the first job, not of its next stages
        (note,) = await system.ledger.job_actions.of_job(spread)
        assert (await system.record(note.new_job_id or "")).tags == TAGS
        page = await system.ledger.job_reads.list_jobs(JobFilter(ids=(spread, untagged)))
        assert {job.id: job.tags for job in page.items} == {spread: TAGS, untagged: {}}


@pytest.mark.parametrize("tags", INVALID_TAGS)
async def test_a_tag_that_breaks_the_rule_is_refused(tags: dict[str, str], system: System) -> None:
    with pytest.raises(InvalidJob, match="tags"):
        await system.jobs.publish(JobRequest("hot.noop", {}, tags=tags))


async def test_tags_are_given_and_found_over_http_and_by_jobctl(system: System) -> None:
    async with serving(system.settings) as api:
        body = {"routing_key": "hot.noop", "tags": TAGS}
        job_id = (await api.client.post("/jobs", json=body)).json()["job_id"]
        for tags in INVALID_TAGS:
            answer = await api.client.post("/jobs", json=body | {"tags": tags})
            assert answer.status_code == 422, tags
        environment = environment_of(system.settings)
        options = "--payload {} --tag team=search --tag night=1".split()  # noqa: SIM905
        published = await jobctl("publish", "hot.noop", *options, **environment)
        assert published.returncode == 0, published.stderr
        published_id = published.stdout.strip()
        parameters = {"tag": ["team=search", "run.no=7"]}
        (job,) = (await api.client.get("/jobs", params=parameters)).json()["jobs"]
        assert (job["job_id"], job["tags"]) == (job_id, TAGS)
        assert (await api.client.get("/jobs", params={"tag": "team"})).status_code == 422
        assert (await api.client.get(f"/jobs/{published_id}")).json()["tags"]["night"] == "1"
        listed = await jobctl("jobs", "list", "--tag", "night=1", **environment)
        assert published_id in listed.stdout
        assert "team=search" in listed.stdout
        assert job_id not in listed.stdout
        invalid = await jobctl("jobs", "list", "--tag", "night", **environment)
        assert invalid.returncode == 2
