"""Searches whose index or embedder does not answer fail soon, with an error that names which."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index import document_search
from tests.integration.api.document_server import send, serving
from tests.support.api_server import problem
from tests.support.eventually import eventually
from tests.support.peers import serve_silence
from tests.support.tcp_proxy import TcpProxy

SHORT_TIMEOUT = 1.0
"""Seconds that a search may take in these tests."""
MAX_SECONDS = 4.0
"""Seconds within which the answer comes then, also on a busy machine."""


async def search_and_fail(client: httpx.AsyncClient, **query: str) -> str:
    """Search; assert that a 503 comes within the time limit, and return its detail."""
    began = time.monotonic()
    answer = await client.post("/search", json={"query": "why the tide rises"} | query)
    assert time.monotonic() - began < MAX_SECONDS
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
            monkeypatch.setattr(document_search, "SEARCH_TIMEOUT", SHORT_TIMEOUT)
            proxy.pause()
            # The first search waits on the connection that is open, the second for a new one.
            for mode in ("hybrid", "keyword"):
                assert (await search_and_fail(client, mode=mode)).startswith(
                    "the index does not answer"
                )
            problem(await client.get("/admin/index"), 503, "search-away")
            proxy.resume()

            async def has_results() -> bool:
                answer = await client.post("/search", json={"query": "why the tide rises"})
                return answer.is_success and len(answer.json()["hits"]) == 1

            await eventually(has_results)


async def test_a_search_does_not_wait_for_an_embedding_server_that_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve_silence() as url:
        settings = Settings(data_dir=tmp_path, amqp_url=None, embed_base_url=f"{url}/v1")
        async with serving(settings) as client:
            keyword_search = {"query": "tide", "mode": "keyword"}
            assert (await client.post("/search", json=keyword_search)).status_code == 200
            monkeypatch.setattr(document_search, "SEARCH_TIMEOUT", SHORT_TIMEOUT)
            assert (await search_and_fail(client)).startswith("the embedder does not answer")
