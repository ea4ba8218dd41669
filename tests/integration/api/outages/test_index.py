"""Searches whose index or embedder does not answer fail soon, with an error that names which."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index import document_search as searching
from tests.integration.api.document_server import send, serving
from tests.support.api_server import problem
from tests.support.eventually import eventually
from tests.support.peers import silence
from tests.support.tcp_proxy import TcpProxy

SOON, AT_MOST = 1.0, 4.0
"""Seconds that a search may take here, and within which its answer is there on a busy machine."""


async def refused(client: httpx.AsyncClient, **query: str) -> str:
    """Search, and return the detail of the 503, which comes within the time limit."""
    began = time.monotonic()
    answer = await client.post("/search", json={"query": "why the tide rises"} | query)
    assert time.monotonic() - began < AT_MOST
    assert int(answer.headers["retry-after"]) >= 1
    return str(problem(answer, 503, "search-away")["detail"])


@pytest.mark.postgres
async def test_a_search_does_not_wait_for_a_database_that_is_frozen(
    pgvector_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(pgvector_url).port
    assert port is not None
    async with TcpProxy("127.0.0.1", port) as proxy:
        index_url = SecretStr(proxy.url(pgvector_url))
        settings = Settings(data_dir=tmp_path, amqp_url=None, index_url=index_url)
        async with serving(settings) as client:
            sent = await send(client, b"The tide rises twice a day.", name="tide.txt")
            assert sent.status_code == 201, sent.text
            monkeypatch.setattr(searching, "SEARCH_TIMEOUT", SOON)
            proxy.pause()
            # The first one waits on a connection that there was, the second for a new one.
            for mode in ("hybrid", "keyword"):
                assert (await refused(client, mode=mode)).startswith("the index does not answer")
            problem(await client.get("/admin/index"), 503, "search-away")
            proxy.resume()

            async def has_results() -> bool:
                answer = await client.post("/search", json={"query": "why the tide rises"})
                return answer.is_success and len(answer.json()["hits"]) == 1

            await eventually(has_results)


async def test_a_search_does_not_wait_for_an_embedding_server_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with silence() as url:
        settings = Settings(data_dir=tmp_path, amqp_url=None, embed_base_url=f"{url}/v1")
        async with serving(settings) as client:
            by_words = {"query": "tide", "mode": "keyword"}
            assert (await client.post("/search", json=by_words)).status_code == 200
            monkeypatch.setattr(searching, "SEARCH_TIMEOUT", SOON)
            assert (await refused(client)).startswith("the embedder does not answer")
