"""`/v1/files` and `/v1/batches` as OpenAI's own client uses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings.llm import LlmServer
from switchyard.services.engine.backfill.handler import BackfillHandler
from switchyard.services.engine.backfill.sources import Sources
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.llm import openai_batch_input
from switchyard.services.llm.openai_batch_input import raw_lines
from switchyard.services.llm.openai_batch_service import OpenAiBatchService
from tests.support.api_server import RunningApi, client_of, serving, until_connected
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.llm_server import MODEL, FakeLlmServer, answers, fails, says
from tests.support.system import System

KEY, OTHER_KEY = "a-secret-of-32-characters-00001", "a-secret-of-32-characters-00002"
KEYS = SecretStr(f"{KEY}:publish,{OTHER_KEY}:publish+read")
CHATS: Any = "/v1/chat/completions"
RESPONSES: Any = "/v1/responses"
NO_ENDPOINT: Any = "/v1/moderations"


def request_line(name: str, body: Any = None, **fields: Any) -> dict[str, Any]:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": f"What is {name}?"}]}
    body = chat if body is None else body
    return {"custom_id": name, "method": "POST", "url": CHATS, "body": body} | fields


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


@pytest.fixture
async def api(system: System) -> AsyncIterator[RunningApi]:
    async with serving(system.settings, api_keys=KEYS) as api:
        await until_connected(api)
        yield api


@pytest.fixture
async def client(api: RunningApi) -> AsyncIterator[openai.AsyncOpenAI]:
    async with client_of(api, KEY) as client:
        yield client


@pytest.fixture
def batch_service(system: System) -> OpenAiBatchService:
    return OpenAiBatchService(system.settings, system.ledger, system.registry)


@asynccontextmanager
async def backfilling(system: System) -> AsyncIterator[None]:
    """Run the backfills, as a scheduler does."""
    handler = BackfillHandler(
        system.settings, system.registry, system.ledger, Sources.load(), lanes=system.lanes
    )
    runner = BulkRunner(system.ledger, [handler])
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        runner.stop()
        await asyncio.wait_for(task, MAX_WAIT)


async def submit_batch(client: openai.AsyncOpenAI, content: bytes, **fields: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, completion_window="24h", **{"endpoint": CHATS} | fields
    )


async def wait_for_batch(
    client: openai.AsyncOpenAI, batch_service: OpenAiBatchService, batch_id: str
) -> Any:
    """Return the batch when it has ended; take the scheduler's turns meanwhile."""

    async def ended_batch() -> Any:
        await batch_service.turn()
        batch = await client.batches.retrieve(batch_id)
        return batch if batch.status in ("completed", "failed", "expired", "cancelled") else None

    return await eventually(ended_batch, what="the end of the batch")


async def lines_of(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def test_a_batch_is_answered_request_by_request(
    system: System,
    client: openai.AsyncOpenAI,
    batch_service: OpenAiBatchService,
    llm: FakeLlmServer,
) -> None:
    llm.next(answers("One."), answers("Two."))
    await system.start_worker("llm")
    file = await client.files.create(
        file=("in.jsonl", jsonl(request_line("one"), request_line("two"))), purpose="batch"
    )
    assert (file.filename, file.purpose, file.status) == ("in.jsonl", "batch", "processed")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint=CHATS, completion_window="24h", metadata={"run": "7"}
    )
    assert batch.status == "validating"
    async with backfilling(system):
        batch = await wait_for_batch(client, batch_service, batch.id)
    assert batch.status == "completed"
    assert batch.metadata == {"run": "7"}
    assert batch.request_counts.model_dump() == {"total": 2, "completed": 2, "failed": 0}
    assert batch.error_file_id is None
    assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    lines = await lines_of(client, batch.output_file_id)
    assert [each["custom_id"] for each in lines] == ["one", "two"]
    texts = {each["response"]["body"]["choices"][0]["message"]["content"] for each in lines}
    assert texts == {"One.", "Two."}
    assert {each["response"]["status_code"] for each in lines} == {200}
    records = [await system.ledger.job_reads.require(each["id"][10:]) for each in lines]
    assert {(each.lane, each.source) for each in records} == {("backfill", records[0].source)}
    assert records[0].source is not None
    assert records[0].source.startswith("api:")
    listed = [each.id async for each in await client.files.list()]
    assert listed == [batch.output_file_id, file.id]
    assert [each.id async for each in await client.batches.list()] == [batch.id]


async def test_a_batch_of_the_responses_api_needs_a_server_that_has_it(
    system: System, client: openai.AsyncOpenAI, llm: FakeLlmServer
) -> None:
    body = {"model": MODEL, "input": "What is a tide?", "instructions": "Be short."}
    content = jsonl(
        request_line("a", body, url=RESPONSES),
        request_line("b", {**body, "background": True}, url=RESPONSES),
    )
    refused = await submit_batch(client, content, endpoint=RESPONSES)
    batch_service = OpenAiBatchService(system.settings, system.ledger, system.registry)
    refused = await wait_for_batch(client, batch_service, refused.id)
    assert refused.errors is not None
    assert {each.code for each in refused.errors.data or []} == {"responses_not_supported"}

    own = LlmServer(name="own", base_url=llm.url, model=MODEL, responses=True)
    system.settings = system.settings.model_copy(update={"llm_providers": (own,)})
    part = {"type": "output_text", "text": "The sea rises.", "annotations": []}
    item = {"id": "m1", "type": "message", "role": "assistant", "content": [part]}
    answer = {"id": "resp_1", "object": "response", "status": "completed", "output": [item]}
    llm.next(says(json.dumps(answer).encode()))
    await system.start_worker("llm")
    batch = await submit_batch(client, content, endpoint=RESPONSES)
    batch_service = OpenAiBatchService(system.settings, system.ledger, system.registry)
    async with backfilling(system):
        batch = await wait_for_batch(client, batch_service, batch.id)
    assert batch.request_counts.model_dump() == {"total": 2, "completed": 1, "failed": 1}
    (answered,) = await lines_of(client, batch.output_file_id)
    assert answered["response"]["body"]["output"] == [item]
    assert (llm.requests[-1].path, llm.requests[-1].json) == (RESPONSES, body)
    (failed,) = await lines_of(client, batch.error_file_id)
    assert "X-Job-Background" in failed["response"]["body"]["error"]["message"]


async def test_requests_that_fail_are_in_the_error_file_with_their_reason(
    system: System,
    client: openai.AsyncOpenAI,
    batch_service: OpenAiBatchService,
    llm: FakeLlmServer,
) -> None:
    llm.next(fails(400, "temperature is out of range"))
    await system.start_worker("llm")
    no_messages = request_line("not valid", {"model": MODEL})
    batch = await submit_batch(client, jsonl(request_line("refused"), no_messages))
    async with backfilling(system):
        batch = await wait_for_batch(client, batch_service, batch.id)
    assert batch.status == "completed"
    assert batch.request_counts.model_dump() == {"total": 2, "completed": 0, "failed": 2}
    assert batch.output_file_id is None
    refused, invalid = await lines_of(client, batch.error_file_id)
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("refused", 400)
    error = refused["response"]["body"]["error"]
    assert error["code"] == "invalid_request"
    assert "temperature is out of range" in error["message"]
    assert (invalid["custom_id"], invalid["response"]["status_code"]) == ("not valid", 400)
    assert "messages" in invalid["response"]["body"]["error"]["message"]


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (jsonl(request_line("a")) + b"{no json\n", "invalid_json_line", 2),
        (b"[]\n", "invalid_json_line", 1),
        (b"\n" + jsonl(request_line("a"), request_line("a")), "duplicate_custom_id", 3),
        (jsonl(request_line("a", custom_id=7)), "invalid_custom_id", 1),
        (jsonl(request_line("a", method="GET")), "invalid_method", 1),
        (jsonl(request_line("a", url="/v1/embeddings")), "invalid_url", 1),
        (jsonl(request_line("a", body=[])), "invalid_body", 1),
        (jsonl(request_line("a", {"model": MODEL, "stream": True})), "invalid_body", 1),
        (jsonl(request_line("a", {"model": "gpt-9"})), "model_not_found", 1),
        (b"\n \n", "empty_file", None),
        (b"[" * 2_000_000 + b"\n", "invalid_json_line", 1),
        (b"x" * 3_000_000 + b"\n" + jsonl(request_line("a")), "line_too_long", 1),
        (jsonl(*(request_line(str(n)) for n in range(6))), "too_many_tasks", None),
    ],
)
async def test_a_batch_whose_input_is_not_valid_fails_and_names_the_line(
    client: openai.AsyncOpenAI,
    batch_service: OpenAiBatchService,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    code: str,
    line: int | None,
) -> None:
    monkeypatch.setattr(openai_batch_input, "MAX_REQUESTS", 5)
    batch = await submit_batch(client, content)
    batch = await wait_for_batch(client, batch_service, batch.id)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    (error,) = batch.errors.data or []
    assert (error.code, error.line) == (code, line)


async def test_a_cancelled_batch_has_its_answers_and_names_the_unasked_requests(
    system: System,
    client: openai.AsyncOpenAI,
    batch_service: OpenAiBatchService,
    llm: FakeLlmServer,
) -> None:
    batch = await submit_batch(client, jsonl(request_line("one"), request_line("two")))
    async with backfilling(system):
        await batch_service.turn()
        await batch_service.turn()

        async def is_in_lane() -> bool:
            return await system.ledger.bulk_jobs.count_open_bulk_jobs(operation, at_most=2) == 2

        (open_batch,) = await batch_service._repository.open_batches()
        operation = open_batch.operation_id
        await eventually(is_in_lane, what="its jobs")
        batch = await client.batches.cancel(batch.id)
        assert batch.status == "cancelling"
        batch = await wait_for_batch(client, batch_service, batch.id)
    assert batch.status == "cancelled"
    assert batch.request_counts.model_dump() == {"total": 2, "completed": 0, "failed": 2}
    lines = await lines_of(client, batch.error_file_id)
    assert {each["error"]["code"] for each in lines} == {"batch_cancelled"}
    assert llm.requests == []
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(batch.id)


async def test_a_batch_cancelled_before_its_start_sends_no_request(
    client: openai.AsyncOpenAI, batch_service: OpenAiBatchService
) -> None:
    batch = await submit_batch(client, jsonl(request_line("one")))
    await client.batches.cancel(batch.id)
    batch = await wait_for_batch(client, batch_service, batch.id)
    assert (batch.status, batch.error_file_id) == ("cancelled", None)


async def test_a_batch_expires_at_the_end_of_its_window(
    system: System, client: openai.AsyncOpenAI, batch_service: OpenAiBatchService
) -> None:
    batch = await submit_batch(client, jsonl(request_line("one")))
    await batch_service.turn()
    await _set_content_field(system, "openai_batches", "expires_at", batch.expires_at, 1.0)
    batch = await wait_for_batch(client, batch_service, batch.id)
    assert batch.status == "expired"
    (line,) = await lines_of(client, batch.error_file_id)
    assert line["error"]["code"] == "batch_expired"


async def _set_content_field(system: System, table: str, name: str, old: float, new: float) -> None:
    statement = text(
        f"UPDATE {table} SET content = json_set(content, '$.{name}', :new) "
        f"WHERE json_extract(content, '$.{name}') >= :old"
    )
    await system.ledger.core.database.write(
        lambda connection: connection.execute(statement, {"new": new, "old": old})
    )


async def test_files_and_batches_are_seen_by_their_key_alone(
    api: RunningApi, client: openai.AsyncOpenAI, batch_service: OpenAiBatchService
) -> None:
    batch = await submit_batch(client, jsonl(request_line("one")))
    file_id = batch.input_file_id
    async with client_of(api, OTHER_KEY) as other:
        attempts: list[Callable[[], Awaitable[Any]]] = [
            lambda: other.files.retrieve(file_id),
            lambda: other.files.content(file_id),
            lambda: other.files.delete(file_id),
            lambda: other.batches.retrieve(batch.id),
            lambda: other.batches.cancel(batch.id),
            lambda: other.batches.create(
                input_file_id=file_id, endpoint=CHATS, completion_window="24h"
            ),
        ]
        for attempt in attempts:
            with pytest.raises(openai.NotFoundError):
                await attempt()
        assert [each async for each in await other.files.list()] == []
        assert [each async for each in await other.batches.list()] == []
    with pytest.raises(openai.ConflictError):  # a batch reads it
        await client.files.delete(file_id)
    await client.batches.cancel(batch.id)
    await wait_for_batch(client, batch_service, batch.id)
    assert (await client.files.delete(file_id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.content(file_id)


async def test_an_invalid_batch_is_refused(client: openai.AsyncOpenAI) -> None:
    refused = openai.BadRequestError
    purpose: Any = "fine-tune"
    with pytest.raises(refused, match="purpose"):
        await client.files.create(file=("in.jsonl", b"{}\n"), purpose=purpose)
    assert [each async for each in await client.files.list()] == []
    file = await client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    window: Any
    for window in ("0h", "24", "1000h", "9999999999h", "²h"):
        with pytest.raises(refused, match="completion_window"):
            await client.batches.create(
                input_file_id=file.id, endpoint=CHATS, completion_window=window
            )
    with pytest.raises(refused, match="endpoint"):
        await client.batches.create(
            input_file_id=file.id, endpoint=NO_ENDPOINT, completion_window="24h"
        )
    with pytest.raises(openai.NotFoundError):
        await client.batches.create(input_file_id="file-0", endpoint=CHATS, completion_window="24h")


async def test_a_repeated_creation_makes_one_batch(client: openai.AsyncOpenAI) -> None:
    file = await client.files.create(file=("in.jsonl", jsonl(request_line("a"))), purpose="batch")
    created = [
        await client.batches.create(
            input_file_id=file.id,
            endpoint=CHATS,
            completion_window="24h",
            extra_headers={"Idempotency-Key": "k1"},
        )
        for _ in range(2)
    ]
    assert created[0].id == created[1].id


async def test_old_files_and_batches_are_deleted(
    system: System, client: openai.AsyncOpenAI, batch_service: OpenAiBatchService
) -> None:
    batch = await submit_batch(client, b"")
    await wait_for_batch(client, batch_service, batch.id)
    await submit_batch(client, jsonl(request_line("a")))
    settings = system.settings.model_copy(update={"keep_openai_files": 0.0})
    expire_files = text("UPDATE openai_files SET expires_at = 1.0")
    await system.ledger.core.database.write(lambda connection: connection.execute(expire_files))
    service = OpenAiBatchService(settings, system.ledger, system.registry)
    assert await service.delete_old() == 1  # an open batch reads the other
    assert len([each async for each in await client.files.list()]) == 1
    assert len([each async for each in await client.batches.list()]) == 1
    stored = [each async for each in Storage(system.settings.files_url).list_async("openai")]
    assert len(stored) == 1


async def test_lines_are_the_same_wherever_the_reader_begins(system: System) -> None:
    storage = Storage(system.settings.files_url)
    raw_input = [b"a" * 40_000, b"", b"b", b"c" * (openai_batch_input.MAX_LINE_BYTES + 1), b"d"]
    await storage.put_async("openai/x.jsonl", b"\n".join(raw_input))
    lines = [each async for each in raw_lines(storage, "openai/x.jsonl")]
    assert [line for line, _ in lines] == [*raw_input[:3], None, b"d"]
    for index, (_, end) in enumerate(lines[:-1]):
        rest = [each async for each in raw_lines(storage, "openai/x.jsonl", start=end)]
        assert rest == lines[index + 1 :]


async def test_a_file_is_stored_for_as_long_as_its_owner_says(client: openai.AsyncOpenAI) -> None:
    async def lifetime(seconds: Any) -> int:
        file = await client.files.create(
            file=("in.jsonl", jsonl(request_line("one"))),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": seconds},
        )
        assert file.expires_at is not None
        return file.expires_at - file.created_at

    assert await lifetime(7200) == 7200
    for invalid in (3599, 10**9 + 1, "000000003600" + "9" * 20, "9" * 5_000, "x"):
        with pytest.raises(openai.BadRequestError, match="3600 to 1,000,000,000"):
            await lifetime(invalid)
