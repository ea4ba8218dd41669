"""Workers are killed between the stages of a paper's references: the stored results are the same as
without a kill, and no stage is done twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.common.files.storage_keys import links_key, references_key, stage_key
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.records.states import State
from switchyard.services.engine.wings import job_modules
from tests.support.brokers import TestBroker
from tests.support.catalogue_servers import KnownWork, OpenAlexServer
from tests.support.eventually import eventually
from tests.support.system import System, open_system
from tests.support.worker_process import Processes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

COUNT = 30
WORKS = [
    KnownWork(number, f"On tide number {number} of the northern harbours", 1900 + number % 100)
    for number in range(1, COUNT + 1)
]
REFERENCES = "\n".join(
    ["References", *(f"[{w.number}] R. Roe. {w.title}. Oxford Press, {w.year}." for w in WORKS)]
)
BODY = "\n".join(f"The tide rose again as it was said to do [{w.number}]." for w in WORKS)
TEXT = f"# On tides\n\n{BODY}\n\n{REFERENCES}\n"


async def wait_for_result(system: System, job_type: str, pipeline_id: str) -> dict[str, Any]:
    """Wait until the pipeline's job of that type has succeeded; return its result."""

    async def exists() -> bool:
        return any(
            job.job_type == job_type for job in await system.ledger.job_reads.pipeline(pipeline_id)
        )

    await eventually(exists)
    (job,) = [
        job
        for job in await system.ledger.job_reads.pipeline(pipeline_id)
        if job.job_type == job_type
    ]
    record = await system.wait_for_state(job.id, State.SUCCEEDED, timeout=60)
    return dict(record.result or {})


async def test_stages_of_references_whose_workers_are_killed_end_as_without_a_kill(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "paper.md"
    path.write_text(TEXT)
    with OpenAlexServer(WORKS) as openalex:
        async with (
            open_system(
                broker310,
                sqlite_url,
                modules=job_modules(),
                data_dir=tmp_path,
                takeover_after=0.8,
                openalex_base_url=openalex.origin,
                link_catalogues=("openalex",),
                link_interval=0.0,
                link_citations=True,
            ) as system,
            Processes(system.settings, tmp_path) as processes,
        ):
            await system.start_worker("ingest", "llm", "embed")
            job_id = (
                await system.jobs.publish(JobRequest("hot.ingest_document", {"path": str(path)}))
            ).job_id
            document_id = str(
                (await wait_for_result(system, "embed_content", job_id))["document_id"]
            )
            files = tmp_path / "files"
            extracted = files / stage_key(document_id, "extract_references")
            parsed = files / stage_key(document_id, "parse_references")
            request = JobRequest("hot.process_references", {"document_id": document_id})
            references_job_id = (await system.jobs.publish(request)).job_id
            links = files / links_key(document_id)
            stored_at: dict[Path, float] = {}
            kill_moments: list[tuple[str, Callable[[], bool]]] = [
                ("once the references are cut out", extracted.exists),
                ("once they are cut into fields", parsed.exists),
                ("once works are linked", links.exists),
            ]
            for description, is_reached in kill_moments:
                victim = await processes.start("worker", kind="link", slots=2)
                await eventually(is_reached, what=description)
                victim.kill()
                await victim.ended()
                for file in (extracted, parsed):
                    if file.exists():
                        assert (
                            stored_at.setdefault(file, file.stat().st_mtime) == file.stat().st_mtime
                        )
            await processes.start("worker", kind="link", slots=2)
            linked = await wait_for_result(system, "link_citations", references_job_id)
            assert linked["linked"] == COUNT, linked
            stored_references = json.loads((files / references_key(document_id)).read_text())
            assert (
                len(stored_references["references"]) == len(stored_references["citations"]) == COUNT
            )
            stored_links = json.loads(links.read_text())
            assert (stored_links["references_hash"], len(stored_links["links"])) == (
                stored_references["hash"],
                COUNT,
            )
            assert stored_at == {file: file.stat().st_mtime for file in (extracted, parsed)}
            assert (
                len(openalex.answered_questions) == len(set(openalex.answered_questions)) == COUNT
            )
