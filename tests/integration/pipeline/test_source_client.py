"""Requests to the server of any source: caching, limits and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger, leases
from switchyard.services.pipeline.sources import throttle as throttling
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceBusy,
    SourceNotFound,
    SourceRefused,
    SourceUnavailable,
)
from tests.support import site as behaviours
from tests.support.eventually import eventually
from tests.support.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        site.pages["/api/thing"] = behaviours.with_etag({"name": "thing"}, '"one"')
        yield site


@pytest.fixture
def source(site: Site) -> SourceServer:
    return SourceServer("things", label="Things", base_url=f"{site.origin}/api", interval=0)


@pytest.fixture
async def client(
    source: SourceServer, settings: Settings, ledger: Ledger
) -> AsyncIterator[SourceClient]:
    async with open_client(source, settings, ledger) as client:
        yield client


@asynccontextmanager
async def open_client(
    source: SourceServer, settings: Settings, ledger: Ledger | None, **options: Any
) -> AsyncIterator[SourceClient]:
    async with SourceClient.connect(source, settings, ledger, **options) as client:
        yield client


async def test_a_cached_answer_is_revalidated_by_its_etag(client: SourceClient, site: Site) -> None:
    first = await client.get("/thing", conditional=True)
    second = await client.get("/thing", conditional=True)
    assert [first.json(), second.json()] == [{"name": "thing"}] * 2
    assert [first.unchanged, second.unchanged] == [False, True]
    assert [each.headers.get("if-none-match") for each in site.requests] == [None, '"one"']
    site.pages["/api/thing"] = behaviours.with_etag({"name": "other"}, '"two"')
    third = await client.get("/thing", conditional=True)
    assert (third.json(), third.unchanged) == ({"name": "other"}, False)


async def test_a_cached_answer_without_an_etag_is_revalidated_by_its_date(
    client: SourceClient, site: Site
) -> None:
    date_header = {"Last-Modified": "Mon, 05 Jan 2026 09:00:00 GMT"}
    site.pages["/api/thing"] = behaviours.says({"name": "dated"}, headers=date_header)
    await client.get("/thing", conditional=True)
    site.next(behaviours.says(b"", status=304))
    assert (await client.get("/thing", conditional=True)).json() == {"name": "dated"}
    assert site.requests[-1].headers["if-modified-since"] == date_header["Last-Modified"]


async def test_a_removed_or_damaged_cache_file_is_fetched_again(
    client: SourceClient, site: Site, settings: Settings
) -> None:
    await client.get("/thing", conditional=True)
    [cached_file] = [
        path for path in (settings.data_dir / "files/sources").rglob("*") if path.is_file()
    ]
    for damaged in (b"nonsense", b"[]\n", b'{"url": 1}\n'):
        cached_file.write_bytes(damaged)
        assert (await client.get("/thing", conditional=True)).json() == {"name": "thing"}
        assert "if-none-match" not in site.requests[-1].headers
    cached_file.unlink()
    assert (await client.get("/thing", conditional=True)).unchanged is False


async def test_not_modified_in_answer_to_an_unconditional_request_is_invalid(
    client: SourceClient, site: Site
) -> None:
    site.next(behaviours.says(b"", status=304))
    with pytest.raises(InvalidSourceResponse, match="304"):
        await client.get("/thing")


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        (behaviours.says({"message": "No such\nthing"}, status=404), SourceNotFound, "404"),
        (behaviours.says(b"", status=410), SourceNotFound, "410"),
        (behaviours.says({"message": "Bad creds"}, status=401), SourceRefused, "401: Bad creds"),
        (behaviours.says({"error": "Gated"}, status=403), SourceRefused, "403: Gated"),
        (behaviours.says(b'{"message": 7}', status=422), SourceRefused, "with 422$"),
        (behaviours.fails(500), SourceUnavailable, "answers 500"),
        (behaviours.fails(503), SourceUnavailable, "answers 503"),
        (behaviours.fails(408), SourceUnavailable, "answers 408"),
        (behaviours.cut(), SourceUnavailable, "can't be reached"),
        (behaviours.cut_in_the_middle(), SourceUnavailable, "can't be reached"),
        (behaviours.says(b"<html>"), InvalidSourceResponse, 'no JSON, but "<html>"'),
        (behaviours.says(b"<p>Back\nsoon", status=503), SourceUnavailable, '503: "<p>Back soon"'),
        (behaviours.says(b"[" * 100_000), InvalidSourceResponse, "no JSON"),
        (behaviours.endless(), InvalidSourceResponse, "exceeds"),
        (behaviours.packed(), SourceUnavailable, "compresses its answer"),
        (behaviours.moved("http://127.0.0.1:9/elsewhere"), SourceUnavailable, "301 to http"),
        (behaviours.moved("http://[/"), SourceUnavailable, "301 to"),
    ],
)
async def test_each_kind_of_bad_answer_raises_its_own_error(
    client: SourceClient,
    site: Site,
    behaviour: behaviours.Behaviour,
    error: type[Exception],
    message: str,
) -> None:
    client.server = replace(client.server, max_bytes=300_000)
    site.next(behaviour)
    with pytest.raises(error, match=message):
        (await client.get("/thing")).json()
    assert len(site.requests) == 1


async def test_a_request_that_is_due_is_sent_however_long_the_ledger_took(ledger: Ledger) -> None:
    throttle = throttling.FleetThrottle(
        ledger, "things", label="Things", interval=0, max_wait=0, waits_for_place=False
    )
    async with throttle.turn(takes=1):
        pass


async def test_redirects_are_followed_and_loops_are_given_up(
    client: SourceClient, site: Site
) -> None:
    site.pages["/api/old"] = behaviours.moved("/api/thing")
    assert (await client.get("/old", conditional=True)).json() == {"name": "thing"}
    site.pages["/api/round"] = behaviours.moved("/api/round")
    with pytest.raises(SourceUnavailable, match="301"):
        await client.get("/round")
    assert site.paths.count("/api/round") == 4


async def test_a_secret_goes_to_the_server_alone(
    source: SourceServer, settings: Settings, site: Site
) -> None:
    source_with_secret = replace(source, headers={"Authorization": "Bearer s3cret"})
    assert "s3cret" not in repr(source_with_secret)
    with Site() as elsewhere:
        site.pages["/api/gone"] = behaviours.moved(f"{elsewhere.origin}/api/thing")
        async with open_client(source_with_secret, settings, None) as client:
            with pytest.raises(SourceUnavailable):
                await client.get("/gone")
            with pytest.raises(ValueError, match="no address of Things"):
                await client.get(f"{elsewhere.origin}/api/thing")
            await client.get(f"{site.origin}/api/thing")
        assert elsewhere.requests == []
    assert site.requests[-1].headers["authorization"] == "Bearer s3cret"


async def test_a_request_names_its_sender(
    source: SourceServer, settings: Settings, site: Site
) -> None:
    settings_with_contact = settings.model_copy(update={"contact": "mailto:ops@example.org"})
    async with open_client(source, settings_with_contact, None) as client:
        await client.get("/thing")
    assert site.requests[0].headers["user-agent"] == "switchyard (mailto:ops@example.org)"


LIMIT_ANSWERS = [
    (behaviours.throttled(100), 100),
    (behaviours.throttled(100, status=403), 100),
    (behaviours.throttled(100, status=503), 100),
    (behaviours.says(b"You have exceeded a secondary rate limit", status=403), 60),
    (behaviours.throttled(None), 60),
    (behaviours.throttled(10**8), 3600),
    (
        behaviours.says(
            b"", status=403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "70"}
        ),
        71,
    ),
]


@pytest.mark.parametrize(("limit_answer", "pause"), LIMIT_ANSWERS)
async def test_a_limit_pauses_the_whole_fleet(
    client: SourceClient,
    source: SourceServer,
    settings: Settings,
    site: Site,
    limit_answer: behaviours.Behaviour,
    pause: float,
) -> None:
    site.next(limit_answer)
    with pytest.raises(SourceBusy) as busy:
        await client.get("/thing")
    assert busy.value.wait == pause
    assert not busy.value.counts
    async with (
        await Ledger.open(settings.ledger_url) as other_ledger,
        open_client(source, settings, other_ledger) as second_client,
    ):
        with pytest.raises(SourceBusy, match="whole fleet") as busy:
            await second_client.get("/thing")
    assert pause - 5 < busy.value.wait <= pause
    assert len(site.requests) == 1


async def test_the_last_allowed_request_is_answered_and_later_ones_pause(
    client: SourceClient, site: Site
) -> None:
    site.next(behaviours.says({"n": 1}, headers={"RateLimit": '"api";r=0;t=57'}))
    assert (await client.get("/thing")).json() == {"n": 1}
    with pytest.raises(SourceBusy) as busy:
        await client.get("/thing")
    assert 50 < busy.value.wait <= 58
    assert len(site.requests) == 1


async def test_a_pause_of_one_server_holds_up_no_other(
    client: SourceClient, source: SourceServer, settings: Settings, ledger: Ledger, site: Site
) -> None:
    site.next(behaviours.throttled(100))
    with pytest.raises(SourceBusy):
        await client.get("/thing")
    async with open_client(replace(source, name="others"), settings, ledger) as other_client:
        assert (await other_client.get("/thing")).status == 200


async def test_the_turn_of_a_killed_process_is_free_within_seconds_whatever_its_time_limit(
    source: SourceServer, settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_source = replace(source, timeout=3600)
    async with (
        open_client(slow_source, settings, ledger) as client,
        client.throttle.turn(takes=3600),
    ):
        for lease in ("things.connection", "things.place.1"):
            assert 0 < await ledger.leases.lease_remaining(lease) <= 6
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
    for lease in ("things.connection", "things.place.1", "things.place.2"):
        assert await ledger.leases.acquire_lease(lease, "killed")
    async with open_client(slow_source, settings, ledger, max_wait=10) as client:
        assert (await client.get("/thing")).json() == {"name": "thing"}


async def test_the_turn_of_a_living_process_lasts_as_long_as_its_request_may(
    source: SourceServer, settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(throttling, "_MARGIN", 0.0)
    async with (
        open_client(source, settings, ledger, max_wait=0.1) as slow_client,
        open_client(source, settings, ledger, max_wait=0.6) as other_client,
    ):
        async with slow_client.throttle.turn(takes=60):
            with pytest.raises(SourceBusy, match="others are waiting"):
                await other_client.get("/thing")
        async with slow_client.throttle.turn(takes=0.3):  # its request takes longer than it may

            async def is_free() -> bool:
                return not await ledger.leases.lease_remaining("things.connection")

            await eventually(is_free)
            assert (await other_client.get("/thing")).json() == {"name": "thing"}


async def test_a_hot_job_gets_the_next_turn_however_many_others_wait(
    source: SourceServer, settings: Settings, ledger: Ledger
) -> None:
    source = replace(source, interval=4)  # a job waits for two intervals
    places = ("things.place.1", "things.place.2")
    for place in places:
        assert await ledger.leases.acquire_lease(place, "backfill")
    async with (
        open_client(source, settings, ledger, lane="hot") as hot_client,
        open_client(source, settings, ledger, lane="backfill") as other_client,
    ):
        hot_request = asyncio.create_task(hot_client.get("/thing"))

        async def is_hot_request_waiting() -> bool:
            return await ledger.leases.lease_remaining("things.hot") > 0

        await eventually(is_hot_request_waiting)
        for place in places:
            assert await ledger.leases.release_lease(place, "backfill")
        with pytest.raises(SourceBusy, match="others are waiting"):
            await other_client.get("/thing")
        assert (await hot_request).json() == {"name": "thing"}
