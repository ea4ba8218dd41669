"""The source that docs/sources.md shows works as it stands there."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.engine.jobs.outcomes import Snooze
from switchyard.services.engine.jobs.registry import Registry, RegistryError
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.sources.document_source import (
    DocumentSource,
    FoundDocument,
    SourceItem,
)
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse
from switchyard.services.pipeline.workers.ingest.source_jobs import ingest_job
from tests.integration.pipeline.conftest import Pipeline
from tests.support import site as server
from tests.support.site import Site

SOURCES_DOC = (Path(__file__).parents[3] / "docs/sources.md").read_text()
RECORD = {
    "id": 7,
    "metadata": {
        "title": "Tides of Oldport",
        "description": "The tide in the harbour rises twice a day and follows the moon.",
        "publication_date": "2026-01-05",
        "doi": "10.5281/zenodo.7",
    },
}


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        site.pages["/records/7"] = server.with_etag(RECORD, '"1"')
        yield site


@pytest.fixture
def zenodo_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline, site: Site
) -> Iterator[Pipeline]:
    [example] = re.findall(r"```python\n# zenodo\.py\n(.*?)```", SOURCES_DOC, re.DOTALL)
    assert len(example.splitlines()) <= 40
    (tmp_path / "zenodo.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("zenodo")
    monkeypatch.setattr(module.Zenodo, "base_url", site.origin)
    monkeypatch.setattr(module.Zenodo, "interval", 0.0)
    registry = Registry.load((*job_modules(), "zenodo"))
    yield replace(pipeline, registry=registry)
    del sys.modules["zenodo"]


async def test_the_source_of_the_docs_ingests_documents(
    zenodo_pipeline: Pipeline, site: Site
) -> None:
    job_types = await zenodo_pipeline.run("ingest_zenodo", {"id": 7})
    assert job_types[0] == "ingest_zenodo"
    assert job_types[-1] == "link_content"
    assert await zenodo_pipeline.run("ingest_zenodo", {"id": 7}) == ["ingest_zenodo"]
    assert site.requests[-1].headers["if-none-match"] == '"1"'
    site.pages["/records/7"] = server.says({"id": 7})
    with pytest.raises(InvalidSourceResponse):
        await zenodo_pipeline.run_job("ingest_zenodo", {"id": 7})
    site.next(server.throttled(30))
    assert isinstance(await zenodo_pipeline.run_job("ingest_zenodo", {"id": 7}), Snooze)


def test_the_handler_of_the_docs_source_can_be_pickled(zenodo_pipeline: Pipeline) -> None:
    import pickle

    handler = zenodo_pipeline.registry.get("ingest_zenodo").handler
    assert pickle.loads(pickle.dumps(handler)) is handler


def test_a_source_that_can_not_work_is_refused_where_it_is_declared() -> None:
    class Slow(DocumentSource):
        name = "slow"
        label = "Slow"
        interval = 60.0

        async def find(self, item: SourceItem, client: Any) -> FoundDocument:
            raise NotImplementedError

    class Untyped(Slow):
        name = "untyped"
        interval = 1.0

        async def find(self, item, client):
            raise NotImplementedError

    class Misnamed(Slow):
        name = "Mis-named"

    for source in (Slow(), Untyped(), Misnamed()):
        with pytest.raises(RegistryError):
            ingest_job(source)
