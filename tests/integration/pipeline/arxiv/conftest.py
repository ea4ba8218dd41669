"""An arXiv with one paper, and a pipeline that asks it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.integration.pipeline.arxiv.papers import ID
from tests.integration.pipeline.conftest import Pipeline
from tests.support.arxiv_server import ArxivServer, Paper


@pytest.fixture
def site() -> Iterator[ArxivServer]:
    with ArxivServer([Paper(ID, comment="20 pages", doi="10.1000/182")]) as server:
        yield server


@pytest.fixture
def arxiv_pipeline(pipeline: Pipeline, site: ArxivServer) -> Pipeline:
    """Return a pipeline whose arXiv is the test's server, without arXiv's limits on requests."""
    update = {"arxiv_base_url": site.url, "arxiv_interval": 0.0}
    return replace(pipeline, settings=pipeline.settings.model_copy(update=update))
