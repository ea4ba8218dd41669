"""`jobctl mcp` as an agent's client uses it, over standard input and output."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from switchyard.cli.process.mcp import MAX_FIELD, shorten_field
from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.ledger import Ledger
from tests.integration.api.document_server import send
from tests.support.agents import called

READ_TOOLS = {
    "search_documents",
    "get_document_text",
    "get_job",
    "list_dead_groups",
    "plan_redrive",
}


@asynccontextmanager
async def agent(url: str, *arguments: str, key: str = "") -> AsyncIterator[Client]:
    """Yield a client of the command, which runs as a process of its own."""
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "switchyard.cli.main", "mcp", *arguments],
        env={"JOBS_API_URL": url, "JOBS_API_KEY": key},
    )
    # The default `errlog` is the sys.stderr of import time, which pytest has replaced since then.
    async with Client(stdio_client(command, errlog=sys.stderr)) as client:
        yield client


async def test_an_agent_searches_documents_and_reads_their_text(
    own_client: httpx.AsyncClient,
) -> None:
    text = b"# On tides\n\nThe tide rises twice a day."
    sent = (await send(own_client, text, name="tides.md")).json()
    async with agent(str(own_client.base_url)) as client:
        listed = await client.list_tools()
        assert {each.name for each in listed.tools} == {*READ_TOOLS, "publish_job"}
        assert all(each.description for each in listed.tools)
        ok, results = await called(client, "search_documents", query="tide")
        assert ok, results
        assert results["hits"][0]["document_id"] == sent["document_id"]
        ok, read = await called(client, "get_document_text", document_id=sent["document_id"])
        assert ok, read
        assert "The tide rises twice a day." in read["text"]
        assert read["next_offset"] is None
        ok, from_offset = await called(
            client, "get_document_text", document_id=sent["document_id"], offset=5
        )
        assert ok
        assert from_offset["text"] == read["text"][5:]
        for tool, bad_arguments in (
            ("search_documents", {"query": "tide", "limit": 10_000}),
            ("search_documents", {"query": ""}),
            ("get_document_text", {"document_id": "no-such-document"}),
            ("get_document_text", {"document_id": sent["document_id"], "offset": -1}),
            ("get_job", {"job_id": "../admin/dead"}),
            ("plan_redrive", {}),
        ):
            ok, answer = await called(client, tool, **bad_arguments)
            assert not ok, (tool, bad_arguments)
            assert "Traceback" not in answer
        job = {"lane": "hot", "job_type": "classify", "payload": {}}
        ok, answer = await called(client, "publish_job", **job, idempotency_key="a\r\nb")
        assert not ok
        assert "Idempotency-Key" in answer


async def test_the_scopes_of_the_key_hold_for_the_tools(
    own_client: httpx.AsyncClient, own_settings: Settings
) -> None:
    async with await Ledger.open(own_settings.ledger_url) as ledger:
        reader = await create_key(ledger, "agent", [Scope.READ])
    url = str(own_client.base_url)
    async with agent(url, key=reader.key) as client:
        ok, results = await called(client, "search_documents", query="tide")
        assert ok, results
        for tool, arguments in (
            ("publish_job", {"lane": "hot", "job_type": "classify", "payload": {}}),
            ("plan_redrive", {"job_type": "classify"}),
        ):
            ok, answer = await called(client, tool, **arguments)
            assert not ok
            assert "scope" in answer
    async with agent(url, "--read-only", key=reader.key) as client:
        assert {each.name for each in (await client.list_tools()).tools} == READ_TOOLS
    async with agent(url, key="a-wrong-key-of-enough-characters") as client:
        ok, answer = await called(client, "get_job", job_id="x")
        assert not ok
        assert "JOBS_API_KEY" in answer


def test_a_long_field_of_a_job_is_cut_for_the_agent() -> None:
    long_payload = {"text": "a" * MAX_FIELD}
    assert shorten_field({"text": "a"}) == {"text": "a"}
    assert shorten_field(long_payload).startswith('{"text": "aaa')
    assert len(shorten_field(long_payload)) < MAX_FIELD + 50
