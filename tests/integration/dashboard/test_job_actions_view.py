"""Bulk actions from the page of jobs: counted, started and undone by forms, without a script."""

import re
from functools import partial

from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.records.states import State
from tests.integration.api.test_job_actions_api import acting
from tests.integration.dashboard.test_signing_in import sign_in
from tests.support.api_server import RunningApi
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.statements import record_statements
from tests.support.system import System

JOBS = "/dashboard/jobs"
INJECTION = "<img src=x onerror=alert(1)>"


async def test_matching_jobs_are_counted_moved_and_moved_back(
    system: System, api: RunningApi
) -> None:
    ids = [await system.publish("hot.noop", {"n": n}, tags={"team": INJECTION}) for n in range(3)]
    await system.publish("hot.noop", source="other")
    filters = {"tag": "", "type": "noop", "source": "user"}
    page = (await api.client.get(JOBS, params=filters)).text
    assert INJECTION not in page
    (link,) = re.findall(rf'href="({JOBS}/act\?[^"]+)"', page)
    link = link.replace("&amp;", "&")
    counted = (await api.client.get(link)).text
    assert "3 jobs match" in counted
    (csrf,) = set(re.findall(r'name="csrf" value="([^"]*)"', counted))
    form = {"csrf": csrf, "action": "move", "lane": "backfill", "why": INJECTION}
    async with acting(system):
        started = await api.client.post(link, data=form)
        assert started.status_code == 303, started.text
        location = started.headers["Location"]

        async def is_completed(path: str = location) -> bool:
            return "completed" in (await api.client.get(path)).text

        await eventually(is_completed)
        shown = (await api.client.get(location)).text
        assert INJECTION not in shown
        assert "onerror" in shown
        assert {(await system.record(each)).lane for each in ids} == {"backfill"}
        assert "Moved" in (await api.client.get(f"{JOBS}/{ids[0]}")).text
        assert location.rpartition("/")[2] in (await api.client.get(f"{JOBS}/actions")).text
        undone = await api.client.post(f"{location}/undo", data={"csrf": csrf})

        async def is_undone() -> bool:
            return await is_completed(undone.headers["Location"])

        await eventually(is_undone)
        assert {await system.state(each) for each in ids} == {State.QUEUED}
        assert {(await system.record(each)).lane for each in ids} == {"hot"}


async def test_jobs_are_counted_once_before_somebody_acts_on_them(
    system: System, api: RunningApi
) -> None:
    old = await system.publish("hot.noop", tags={"team": "red"})
    await system.ledger.jobs.cancel(old, system.ledger.clock.time())
    await system.publish("hot.noop", tags={"team": "red"})
    with record_statements() as executed:
        page = (await api.client.get(f"{JOBS}/act", params={"tag": "team=red"})).text
    assert "2 jobs match" in page
    assert re.findall(r"> (Cancel|Rerun|Move) 1<", page) == ["Cancel", "Rerun", "Move"]
    job_queries = [each for each in executed if "FROM jobs" in each]
    assert len(job_queries) == 2, job_queries  # the count and the list


async def test_the_new_jobs_of_a_rerun_are_found_from_its_page(
    system: System, api: RunningApi
) -> None:
    old = await system.publish("hot.noop", source="user")
    await system.ledger.jobs.cancel(old, system.ledger.clock.time())
    link = f"{JOBS}/act?source=user"
    counted = (await api.client.get(link)).text
    assert 'value="rerun" required checked' in counted  # the only possible action
    (csrf,) = set(re.findall(r'name="csrf" value="([^"]*)"', counted))
    async with acting(system):
        started = await api.client.post(link, data={"csrf": csrf, "action": "rerun"})
        location = started.headers["Location"]

        async def is_completed() -> bool:
            return "Its new jobs" in (await api.client.get(location)).text

        await eventually(is_completed)
    (new_jobs,) = re.findall(
        rf'href="({JOBS}\?operation=[^"]+)"', (await api.client.get(location)).text
    )
    listed = re.findall(rf'href="{JOBS}/([0-9a-f-]{{36}})"', (await api.client.get(new_jobs)).text)
    assert [(await system.record(each)).rerun_of for each in listed] == [old]


async def test_a_rerun_continues_only_after_its_canary_has_succeeded(
    system: System, api: RunningApi
) -> None:
    for _ in range(3):
        old = await system.publish("hot.gated", source="user")
        await system.ledger.jobs.cancel(old, system.ledger.clock.time())
    link = f"{JOBS}/act?source=user"
    counted = (await api.client.get(link)).text
    assert re.findall(r'name="canary" value="(\d*)"', counted) == ["", "1"]  # less than all
    (csrf,) = set(re.findall(r'name="csrf" value="([^"]*)"', counted))
    form = {"csrf": csrf, "action": "rerun", "canary": "1"}
    for canary in ("0", "many"):
        refused = await api.client.post(link, data={**form, "canary": canary})
        assert refused.status_code == 422, canary
    await system.start_worker("llm")
    async with acting(system):
        location = (await api.client.post(link, data=form)).headers["Location"]

        async def page_says(text: str) -> bool:
            return text in (await api.client.get(location)).text

        await eventually(lambda: len(journal.starts) == 1, what="the canary")
        await eventually(partial(page_says, "canary: 0 of 1 have succeeded"))
        assert await page_says("<dt>Canary</dt><dd>1</dd>")
        journal.release_all()
        await eventually(partial(page_says, "completed"))
    assert len(journal.starts) == 3


async def test_a_reader_sees_no_action_and_can_start_none(system: System, api: RunningApi) -> None:
    await system.publish("hot.noop", source="user")
    key = await create_key(system.ledger, "reader", [Scope.READ])
    await sign_in(api, key.key)
    page = (await api.client.get(JOBS, params={"source": "user"})).text
    assert f"{JOBS}/act" not in page
    refused = await api.client.get(f"{JOBS}/act", params={"source": "user"})
    assert refused.status_code in (303, 403)
    posted = await api.client.post(f"{JOBS}/act?source=user", data={"action": "cancel"})
    assert posted.status_code in (303, 403)
    assert (await system.ledger.bulk.list_bulk()).items == ()
