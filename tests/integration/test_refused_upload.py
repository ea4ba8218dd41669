"""A refused upload leaves nothing, and takes nothing from one that was accepted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from switchyard.broker.errors import LaneFull, Unroutable
from switchyard.services.engine.publishing.publisher import JobPublisher
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.documents.document_service import DocumentService
from switchyard.services.pipeline.documents.upload_intake import UploadIntake, UploadMetadata
from tests.support.brokers import TestBroker
from tests.support.publishing import SlowPublisher
from tests.support.system import System, lanes_with, open_system

METADATA = UploadMetadata(filename="tide.md", lane="backfill")


@pytest.fixture
async def system(broker310: TestBroker, database_url: str, tmp_path: Path) -> AsyncIterator[System]:
    lanes = lanes_with(max_length={"backfill": 1})
    async with open_system(
        broker310, database_url, modules=job_modules(), lanes=lanes, data_dir=tmp_path
    ) as opened:
        yield opened


async def stream_text() -> AsyncIterator[bytes]:
    yield b"# The tide\n\nIt rises twice a day, and nobody is asked."


def waiting_files(system: System) -> list[str]:
    folder = system.settings.data_dir / "files" / "uploads" / "incoming"
    return sorted(f"uploads/incoming/{file.name}" for file in folder.iterdir())


async def test_a_refused_upload_stays_if_another_sender_got_its_document(
    system: System,
) -> None:
    await system.publish_foreign("backfill.ingest_document", {"key": "uploads/incoming/x"})
    slow = SlowPublisher(system.wire)
    publisher = JobPublisher(system.registry, system.ledger, slow)
    first = DocumentService(system.ledger, UploadIntake(system.settings, publisher, None))
    second = DocumentService(system.ledger, UploadIntake(system.settings, system.jobs, None))
    first_upload = await first.intake.receive(stream_text())
    sending = asyncio.create_task(first.submit(first_upload, METADATA))
    await slow.answered.wait()
    answer = await second.submit(await second.intake.receive(stream_text()), METADATA)
    assert answer.duplicate
    slow.go_on.set()
    first_answer = await sending
    assert (first_answer.duplicate, first_answer.status.job_id) == (False, answer.status.job_id)
    assert waiting_files(system) == [first_upload.key]
    record = await system.record(str(answer.status.job_id))
    assert (record.state, record.payload["key"]) == (State.PENDING, first_upload.key)


async def test_an_upload_that_is_refused_alone_leaves_nothing(system: System) -> None:
    await system.publish_foreign("backfill.ingest_document", {"key": "uploads/incoming/x"})
    service = DocumentService(system.ledger, UploadIntake(system.settings, system.jobs, None))
    with pytest.raises(LaneFull):
        await service.submit(await service.intake.receive(stream_text()), METADATA)
    assert waiting_files(system) == []
    assert not (await system.ledger.job_reads.list_jobs()).items


async def test_an_upload_for_which_there_is_no_queue_leaves_nothing(system: System) -> None:
    async with system.channel() as channel:
        await channel.queue_delete("backfill.ingest")
    service = DocumentService(system.ledger, UploadIntake(system.settings, system.jobs, None))
    with pytest.raises(Unroutable, match="jobctl topology apply"):
        await service.submit(await service.intake.receive(stream_text()), METADATA)
    assert waiting_files(system) == []
    assert not (await system.ledger.job_reads.list_jobs()).items
    assert await system.letters() == []
