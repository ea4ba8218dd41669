"""Requests to a server: caching, limits and errors, as they hold for every source."""

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
from tests.support import site as server
from tests.support.eventually import eventually
from tests.support.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as opened:
        opened.pages["/api/thing"] = server.with_etag({"name": "thing"}, '"one"')
        yield opened


@pytest.fixture
def things(site: Site) -> SourceServer:
    return SourceServer("things", label="Things", base_url=f"{site.origin}/api", interval=0)


@pytest.fixture
async def client(
    things: SourceServer, settings: Settings, ledger: Ledger
) -> AsyncIterator[SourceClient]:
    async with opened(things, settings, ledger) as connected:
        yield connected


@asynccontextmanager
async def opened(
    things: SourceServer, settings: Settings, ledger: Ledger | None, **options: Any
) -> AsyncIterator[SourceClient]:
    async with SourceClient.connect(things, settings, ledger, **options) as connected:
        yield connected


async def test_a_cached_answer_is_revalidated_by_its_etag(client: SourceClient, site: Site) -> None:
    first = await client.get("/thing", conditional=True)
    again = await client.get("/thing", conditional=True)
    assert [first.json(), again.json()] == [{"name": "thing"}] * 2
    assert [first.unchanged, again.unchanged] == [False, True]
    assert [each.headers.get("if-none-match") for each in site.requests] == [None, '"one"']
    site.pages["/api/thing"] = server.with_etag({"name": "other"}, '"two"')
    third = await client.get("/thing", conditional=True)
    assert (third.json(), third.unchanged) == ({"name": "other"}, False)


async def test_a_cached_answer_without_an_etag_is_revalidated_by_its_date(
    client: SourceClient, site: Site
) -> None:
    stamp = {"Last-Modified": "Mon, 05 Jan 2026 09:00:00 GMT"}
    site.pages["/api/thing"] = server.says({"name": "dated"}, headers=stamp)
    await client.get("/thing", conditional=True)
    site.next(server.says(b"", status=304))
    assert (await client.get("/thing", conditional=True)).json() == {"name": "dated"}
    assert site.requests[-1].headers["if-modified-since"] == stamp["Last-Modified"]


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
    site.next(server.says(b"", status=304))
    with pytest.raises(InvalidSourceResponse, match="304"):
        await client.get("/thing")


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        (server.says({"message": "No such\nthing"}, status=404), SourceNotFound, "404"),
        (server.says(b"", status=410), SourceNotFound, "410"),
        (server.says({"message": "Bad creds"}, status=401), SourceRefused, "401: Bad creds"),
        (server.says({"error": "Gated"}, status=403), SourceRefused, "403: Gated"),
        (server.says(b'{"message": 7}', status=422), SourceRefused, "with 422$"),
        (server.fails(500), SourceUnavailable, "answers 500"),
        (server.fails(503), SourceUnavailable, "answers 503"),
        (server.fails(408), SourceUnavailable, "answers 408"),
        (server.cut(), SourceUnavailable, "can't be reached"),
        (server.cut_in_the_middle(), SourceUnavailable, "can't be reached"),
        (server.says(b"<html>"), InvalidSourceResponse, 'no JSON, but "<html>"'),
        (server.says(b"<p>Back\nsoon", status=503), SourceUnavailable, '503: "<p>Back soon"'),
        (server.says(b"[" * 100_000), InvalidSourceResponse, "no JSON"),
        (server.endless(), InvalidSourceResponse, "exceeds"),
        (server.packed(), SourceUnavailable, "compresses its answer"),
        (server.moved("http://127.0.0.1:9/elsewhere"), SourceUnavailable, "301 to http"),
        (server.moved("http://[/"), SourceUnavailable, "301 to"),
    ],
)
async def test_each_kind_of_bad_answer_raises_its_own_error(
    client: SourceClient,
    site: Site,
    behaviour: server.Behaviour,
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
    site.pages["/api/old"] = server.moved("/api/thing")
    assert (await client.get("/old", conditional=True)).json() == {"name": "thing"}
    site.pages["/api/round"] = server.moved("/api/round")
    with pytest.raises(SourceUnavailable, match="301"):
        await client.get("/round")
    assert site.paths.count("/api/round") == 4


async def test_a_secret_goes_to_the_server_alone(
    things: SourceServer, settings: Settings, site: Site
) -> None:
    secret = replace(things, headers={"Authorization": "Bearer s3cret"})
    assert "s3cret" not in repr(secret)
    with Site() as elsewhere:
        site.pages["/api/gone"] = server.moved(f"{elsewhere.origin}/api/thing")
        async with opened(secret, settings, None) as client:
            with pytest.raises(SourceUnavailable):
                await client.get("/gone")
            with pytest.raises(ValueError, match="no address of Things"):
                await client.get(f"{elsewhere.origin}/api/thing")
            await client.get(f"{site.origin}/api/thing")
        assert elsewhere.requests == []
    assert site.requests[-1].headers["authorization"] == "Bearer s3cret"


async def test_a_request_names_its_sender(
    things: SourceServer, settings: Settings, site: Site
) -> None:
    identified = settings.model_copy(update={"contact": "mailto:ops@example.org"})
    async with opened(things, identified, None) as client:
        await client.get("/thing")
    assert site.requests[0].headers["user-agent"] == "switchyard (mailto:ops@example.org)"


LIMITS = [
    (server.throttled(100), 100),
    (server.throttled(100, status=403), 100),
    (server.throttled(100, status=503), 100),
    (server.says(b"You have exceeded a secondary rate limit", status=403), 60),
    (server.throttled(None), 60),
    (server.throttled(10**8), 3600),
    (
        server.says(
            b"", status=403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "70"}
        ),
        71,
    ),
]


@pytest.mark.parametrize(("limited", "wait"), LIMITS)
async def test_a_limit_pauses_the_whole_fleet(
    client: SourceClient,
    things: SourceServer,
    settings: Settings,
    site: Site,
    limited: server.Behaviour,
    wait: float,
) -> None:
    site.next(limited)
    with pytest.raises(SourceBusy) as busy:
        await client.get("/thing")
    assert busy.value.wait == wait
    assert not busy.value.counts
    async with (
        await Ledger.open(settings.ledger_url) as other,
        opened(things, settings, other) as second,
    ):
        with pytest.raises(SourceBusy, match="whole fleet") as busy:
            await second.get("/thing")
    assert wait - 5 < busy.value.wait <= wait
    assert len(site.requests) == 1


async def test_the_last_request_that_is_allowed_is_answered_and_pauses_those_after_it(
    client: SourceClient, site: Site
) -> None:
    site.next(server.says({"n": 1}, headers={"RateLimit": '"api";r=0;t=57'}))
    assert (await client.get("/thing")).json() == {"n": 1}
    with pytest.raises(SourceBusy) as busy:
        await client.get("/thing")
    assert 50 < busy.value.wait <= 58
    assert len(site.requests) == 1


async def test_servers_do_not_wait_for_each_other(
    client: SourceClient, things: SourceServer, settings: Settings, ledger: Ledger, site: Site
) -> None:
    site.next(server.throttled(100))
    with pytest.raises(SourceBusy):
        await client.get("/thing")
    async with opened(replace(things, name="others"), settings, ledger) as other:
        assert (await other.get("/thing")).status == 200


async def test_the_turn_of_a_killed_process_is_free_within_seconds_whatever_its_time_limit(
    things: SourceServer, settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(things, timeout=3600)
    async with opened(slow, settings, ledger) as client, client.throttle.turn(takes=3600):
        for lease in ("things.connection", "things.place.1"):
            assert 0 < await ledger.leases.lease_remaining(lease) <= 6
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
    for lease in ("things.connection", "things.place.1", "things.place.2"):
        assert await ledger.leases.acquire_lease(lease, "killed")
    async with opened(slow, settings, ledger, max_wait=10) as client:
        assert (await client.get("/thing")).json() == {"name": "thing"}


async def test_the_turn_of_a_living_process_lasts_as_long_as_its_request_may(
    things: SourceServer, settings: Settings, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(throttling, "_MARGIN", 0.0)
    async with (
        opened(things, settings, ledger, max_wait=0.1) as slow,
        opened(things, settings, ledger, max_wait=0.6) as other,
    ):
        async with slow.throttle.turn(takes=60):
            with pytest.raises(SourceBusy, match="others are waiting"):
                await other.get("/thing")
        async with slow.throttle.turn(takes=0.3):  # and it hangs

            async def is_free() -> bool:
                return not await ledger.leases.lease_remaining("things.connection")

            await eventually(is_free)
            assert (await other.get("/thing")).json() == {"name": "thing"}


async def test_a_hot_job_is_next_however_many_others_ask(
    things: SourceServer, settings: Settings, ledger: Ledger
) -> None:
    things = replace(things, interval=4)  # a job waits for two intervals
    places = ("things.place.1", "things.place.2")
    for place in places:
        assert await ledger.leases.acquire_lease(place, "backfill")
    async with (
        opened(things, settings, ledger, lane="hot") as hot,
        opened(things, settings, ledger, lane="backfill") as other,
    ):
        waiting = asyncio.create_task(hot.get("/thing"))

        async def is_noted() -> bool:
            return await ledger.leases.lease_remaining("things.hot") > 0

        await eventually(is_noted)
        for place in places:
            assert await ledger.leases.release_lease(place, "backfill")
        with pytest.raises(SourceBusy, match="others are waiting"):
            await other.get("/thing")
        assert (await waiting).json() == {"name": "thing"}
