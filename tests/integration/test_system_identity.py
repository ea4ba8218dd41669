"""Ledger, broker, storage and index know their system: a mismatch is refused, naming both."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from switchyard.broker.errors import PublishError, WrongSystem
from switchyard.broker.lanes import SYSTEM_EXCHANGE
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.topology.build import build
from switchyard.broker.topology.differences import diff
from switchyard.broker.topology.system_mark import MarkUnreadable, SystemMark, read_mark, write_mark
from switchyard.broker.wire.connection import connected, underlying
from switchyard.services.common.settings import Settings
from switchyard.services.engine.identity.broker import (
    begin_generation,
    mark_broker,
    read_broker,
    require_same_system,
)
from switchyard.services.engine.identity.claiming import claiming
from switchyard.services.engine.identity.storage_identity import MARKER, WrongStorage, claim_places
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.system import SystemRecord
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.ledgers import make_ledger


def make_settings(broker: TestBroker, directory: Path, database_url: str | None = None) -> Settings:
    return Settings(
        amqp_url=broker.amqp_url,
        management_url=broker.management_url,
        profile=broker.profile,
        data_dir=directory,
        database_url=database_url,
    )


async def make_and_open_ledger(settings: Settings) -> Ledger:
    await make_ledger(settings.ledger_url)
    return await Ledger.open(settings.ledger_url, check=True)


async def test_two_systems_on_one_broker_are_refused_by_both_names(
    broker: TestBroker, tmp_path: Path, database_url: str
) -> None:
    first_settings = make_settings(broker, tmp_path / "one", database_url)
    second_settings = make_settings(broker, tmp_path / "two")
    async with (
        await make_and_open_ledger(first_settings) as first,
        await make_and_open_ledger(second_settings) as second,
    ):
        # A broker without a mark is accepted, as in a half upgraded system.
        await require_same_system(second_settings, second)
        assert await mark_broker(first_settings, first) is True
        assert await mark_broker(first_settings, first) is False
        await require_same_system(first_settings, first)
        for call in (
            require_same_system(second_settings, second),
            mark_broker(second_settings, second),
        ):
            with pytest.raises(WrongSystem) as error:
                await call
            for name in (await first.system.system(), await second.system.system()):
                assert str(name) in str(error.value)
            assert "jobctl system adopt" in str(error.value)
        assert await mark_broker(second_settings, second, take=True)
        await require_same_system(second_settings, second)
        with pytest.raises(WrongSystem):
            await require_same_system(first_settings, first)


async def test_a_restored_ledger_is_refused_until_it_is_adopted(
    broker: TestBroker, tmp_path: Path
) -> None:
    settings = make_settings(broker, tmp_path)
    async with await make_and_open_ledger(settings) as ledger:
        await mark_broker(settings, ledger)
    shutil.copy(tmp_path / "ledger.db", tmp_path / "copy.db")
    async with await Ledger.open(settings.ledger_url) as ledger:
        await begin_generation(settings, ledger)
        await require_same_system(settings, ledger)
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    shutil.move(tmp_path / "copy.db", tmp_path / "ledger.db")
    async with await Ledger.open(settings.ledger_url) as restored:
        for call in (
            require_same_system(settings, restored),
            begin_generation(settings, restored),
            mark_broker(settings, restored),
        ):
            with pytest.raises(WrongSystem, match=r"is an old copy of the system .* has gone on"):
                await call
        await mark_broker(settings, restored, take=True)
        await require_same_system(settings, restored)


async def test_a_copy_made_seconds_ago_is_refused_once_its_scheduler_has_ended(
    broker: TestBroker, tmp_path: Path
) -> None:
    """A scheduler begins a generation at its end, too: a job recorded since the copy would be
    missing in it."""
    settings = make_settings(broker, tmp_path)
    registry = Registry.load()
    await broker.declare(build(broker.profile, registry.routes))
    copy = tmp_path / "copy.db"
    async with await make_and_open_ledger(settings) as ledger:
        await mark_broker(settings, ledger)
        marked_generation = (await ledger.system.system()).generation
        scheduler = Scheduler(settings, registry, ledger, intervals=SchedulerIntervals(turn=0.05))
        running = asyncio.create_task(scheduler.run())

        async def has_advanced() -> bool:
            mark = await read_broker(settings)
            return mark is not None and mark.generation > marked_generation

        await eventually(has_advanced, what="the scheduler's first generation")
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        scheduler.stop()
        await asyncio.wait_for(running, MAX_WAIT)
        await require_same_system(settings, ledger)  # the ledger itself is not refused
    copy_settings = make_settings(broker, tmp_path, f"sqlite+aiosqlite:///{copy}")
    async with await Ledger.open(copy_settings.ledger_url) as restored:
        with pytest.raises(WrongSystem, match=r"is an old copy of the system .* has gone on"):
            await require_same_system(copy_settings, restored)


async def test_the_generation_is_on_the_ledgers_disk_before_the_broker_has_it(
    broker310: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(broker310, tmp_path)
    async with await make_and_open_ledger(settings) as ledger:
        await mark_broker(settings, ledger)
        before = await read_broker(settings)
        synced: list[str] = []

        def fail(descriptor: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            raise OSError("the disk is gone")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(LedgerUnavailable, match="the disk is gone"):
                await begin_generation(settings, ledger)
        assert synced == [f"{tmp_path / 'ledger.db'}-wal"]
        assert await read_broker(settings) == before
        await require_same_system(settings, ledger)


async def test_a_ledger_that_is_newer_than_the_mark_is_the_same_system(
    broker310: TestBroker, tmp_path: Path
) -> None:
    settings = make_settings(broker310, tmp_path)
    async with await make_and_open_ledger(settings) as ledger:
        await mark_broker(settings, ledger)
        await ledger.system.advance_system()  # as by a crash before the broker was told
        await require_same_system(settings, ledger)


async def test_generations_only_grow_and_only_of_a_marked_broker(
    broker310: TestBroker, tmp_path: Path
) -> None:
    settings = make_settings(broker310, tmp_path)
    async with await make_and_open_ledger(settings) as ledger:
        await begin_generation(settings, ledger)
        assert await read_broker(settings) is None
        await mark_broker(settings, ledger)
        generations = [(await ledger.system.system()).generation]
        for _ in range(3):
            await begin_generation(settings, ledger)
            mark = await read_broker(settings)
            assert mark is not None
            generations.append(mark.generation)
        assert generations == sorted(set(generations))


async def test_a_scheduler_ends_when_its_broker_has_become_another_systems(
    broker310: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.services.engine.scheduler.duties.GENERATION_INTERVAL", 3.0)
    first_settings, second_settings = (
        make_settings(broker310, tmp_path / name) for name in ("one", "two")
    )
    registry = Registry.load()
    await broker310.declare(build(broker310.profile, registry.routes))
    async with (
        await make_and_open_ledger(first_settings) as first,
        await make_and_open_ledger(second_settings) as second,
    ):
        await mark_broker(first_settings, first)
        before = await read_broker(first_settings)
        assert before is not None
        scheduler = Scheduler(
            first_settings, registry, first, intervals=SchedulerIntervals(turn=0.05)
        )
        running = asyncio.create_task(scheduler.run())

        async def has_advanced() -> bool:
            mark = await read_broker(first_settings)
            return mark is not None and mark.generation > before.generation

        await eventually(has_advanced, what="the scheduler's first generation")
        await mark_broker(second_settings, second, take=True)
        with pytest.raises(WrongSystem, match="is of the system"):
            await asyncio.wait_for(running, 20)
        assert not scheduler.is_active.is_set()


async def test_a_publisher_sends_nothing_to_another_systems_broker(
    broker310: TestBroker, tmp_path: Path
) -> None:
    first_settings, second_settings = (
        make_settings(broker310, tmp_path / name) for name in ("one", "two")
    )
    registry = Registry.load()
    topology = build(broker310.profile, registry.routes)
    await broker310.declare(topology)
    async with (
        await make_and_open_ledger(first_settings) as first,
        await make_and_open_ledger(second_settings) as second,
    ):
        await mark_broker(first_settings, first)
        async with JobPublisher.opened(second_settings) as publisher:
            request = JobRequest("hot.ingest_document", {"path": "/tmp/a.pdf"})
            with pytest.raises(PublishError, match="is of the system"):
                await publisher.publish(request)
        assert not (await second.job_reads.list_jobs()).items
        async with JobPublisher.opened(first_settings) as publisher:
            await publisher.publish(request)


async def test_the_mark_is_no_leftover_and_goes_with_exported_definitions(
    broker: TestBroker, tmp_path: Path
) -> None:
    settings = make_settings(broker, tmp_path)
    topology = build(broker.profile, Registry.load().routes)
    await broker.declare(topology)
    async with await make_and_open_ledger(settings) as ledger:
        await mark_broker(settings, ledger)
        system_name = str(await ledger.system.system())
    url, vhost = settings.require_management_url(), settings.vhost
    async with ManagementClient(url, vhost) as client:
        assert diff(topology, await client.fetch()) == []
        exported = await client.get("/definitions")
        mark_exchanges = [
            exchange
            for exchange in exported["exchanges"]
            if exchange["name"] == SYSTEM_EXCHANGE and exchange["vhost"] == vhost
        ]
        await client.delete_vhost()
        await client.put_vhost(str(urlsplit(broker.amqp_url).username))
        await client.import_definitions({"exchanges": mark_exchanges})
    assert str(await read_broker(settings)) == system_name


async def test_readers_and_writers_of_the_mark_at_once_never_see_a_wrong_one(
    broker310: TestBroker,
) -> None:
    async with connected(broker310.amqp_url, "test") as connection:
        transport = underlying(connection)
        await write_mark(transport, SystemMark("0123456789ab", 1, "a@b"))

        async def write(number: int) -> None:
            for generation in range(20):
                await write_mark(
                    transport, SystemMark("0123456789ab", number * 20 + generation, "a@b")
                )

        async def read() -> None:
            for _ in range(40):
                mark = await read_mark(transport)
                assert mark is None or (mark.id, mark.name) == ("0123456789ab", "a@b")

        await asyncio.gather(write(1), read(), read())


async def test_a_broker_that_is_adopted_during_an_advance_stays_adopted(
    broker: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_settings, second_settings = (
        make_settings(broker, tmp_path / name) for name in ("one", "two")
    )
    async with (
        await make_and_open_ledger(first_settings) as first,
        await make_and_open_ledger(second_settings) as second,
    ):
        await mark_broker(first_settings, first)
        has_read, may_write = asyncio.Event(), asyncio.Event()
        advance = first.system.advance_system

        async def advance_slowly(*, least: int = 0) -> SystemRecord:
            has_read.set()
            await may_write.wait()
            return await advance(least=least)

        monkeypatch.setattr(first.system, "advance_system", advance_slowly)
        going_on = asyncio.create_task(begin_generation(first_settings, first))
        await has_read.wait()
        adopting = asyncio.create_task(mark_broker(second_settings, second, take=True))
        await asyncio.wait((adopting,), timeout=0.5)  # it waits for its turn
        may_write.set()
        await asyncio.gather(going_on, adopting)
        await require_same_system(second_settings, second)
        with pytest.raises(WrongSystem):
            await begin_generation(first_settings, first)


async def test_of_systems_that_mark_a_new_broker_at_once_one_has_it(
    broker310: TestBroker, tmp_path: Path
) -> None:
    all_settings = [make_settings(broker310, tmp_path / name) for name in ("one", "two", "three")]
    ledgers = [await make_and_open_ledger(settings) for settings in all_settings]
    answers = await asyncio.gather(
        *(
            mark_broker(settings, ledger)
            for settings, ledger in zip(all_settings, ledgers, strict=True)
        ),
        return_exceptions=True,
    )
    refused = [answer for answer in answers if isinstance(answer, WrongSystem)]
    assert (answers.count(True), len(refused)) == (1, 2)
    for ledger in ledgers:
        await ledger.close()


async def test_an_exchange_of_somebody_elses_making_is_no_mark(broker310: TestBroker) -> None:
    async with connected(broker310.amqp_url, "test") as connection:
        channel = await connection.channel()
        await channel.declare_exchange(SYSTEM_EXCHANGE, "topic", durable=True)
        with pytest.raises(MarkUnreadable, match="does not say whose"):
            await read_mark(underlying(connection))


async def test_storage_and_index_are_of_one_system(broker310: TestBroker, tmp_path: Path) -> None:
    first_settings, second_settings = (
        make_settings(broker310, tmp_path / name) for name in ("one", "two")
    )
    async with (
        await make_and_open_ledger(first_settings) as first,
        await make_and_open_ledger(second_settings) as second,
    ):
        await claim_places(first_settings, first)
        await claim_places(first_settings, first)
        for setting, value in (
            ("storage_url", first_settings.files_url),
            ("index_url", SecretStr(first_settings.vectors_url)),
        ):
            wrong_settings = second_settings.model_copy(update={setting: value})
            with pytest.raises(WrongStorage) as error:
                await claim_places(wrong_settings, second)
            for name in (await first.system.system(), await second.system.system()):
                assert str(name) in str(error.value)
            assert f"JOBS_{setting.upper()}" in str(error.value)
        (tmp_path / "one" / "files" / MARKER).write_bytes(b"[" * 900)
        with pytest.raises(WrongStorage, match="can't be read"):
            await claim_places(first_settings, first)
        await claim_places(first_settings, first, take=True)
        await claim_places(first_settings, first)


async def test_storage_is_claimed_as_soon_as_the_ledger_is_there(
    broker310: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_settings, second_settings = (
        make_settings(broker310, tmp_path / name) for name in ("one", "two")
    )
    async with (
        await make_and_open_ledger(first_settings) as first,
        await make_and_open_ledger(second_settings) as second,
    ):
        await claim_places(first_settings, first)
        read_system, is_away = second.system.system, True

        async def system() -> SystemRecord:
            if is_away:
                raise LedgerUnavailable("it is away")
            return await read_system()

        monkeypatch.setattr(second.system, "system", system)
        marker, stopped = tmp_path / "two" / "files" / MARKER, asyncio.Event()
        async with claiming(second_settings, second, stopped.set, retry_interval=0.05):
            assert not marker.exists()
            is_away = False
            await eventually(marker.exists)
        assert not stopped.is_set()
        is_away = True
        wrong_settings = second_settings.model_copy(
            update={"storage_url": first_settings.files_url}
        )

        async def use_wrong_storage() -> None:
            nonlocal is_away
            async with claiming(wrong_settings, second, stopped.set, retry_interval=0.05):
                is_away = False
                await asyncio.wait_for(stopped.wait(), MAX_WAIT)

        with pytest.raises(WrongStorage, match="JOBS_STORAGE_URL"):
            await use_wrong_storage()


async def test_an_index_in_postgresql_is_of_one_system(
    broker310: TestBroker, tmp_path: Path, pgvector_url: str
) -> None:
    update = {"index_url": SecretStr(pgvector_url)}
    first_settings, second_settings = (
        make_settings(broker310, tmp_path / name).model_copy(update=update)
        for name in ("one", "two")
    )
    async with (
        await make_and_open_ledger(first_settings) as first,
        await make_and_open_ledger(second_settings) as second,
    ):
        await claim_places(first_settings, first)
        await claim_places(first_settings, first)
        with pytest.raises(WrongStorage) as error:
            await claim_places(second_settings, second)
        for text in (
            str(await first.system.system()),
            str(await second.system.system()),
            "JOBS_INDEX_URL",
        ):
            assert text in str(error.value)
        assert "test:" not in str(error.value)  # the password is not shown
        await claim_places(second_settings, second, take=True)
        with pytest.raises(WrongStorage):
            await claim_places(first_settings, first)
