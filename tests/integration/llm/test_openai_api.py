"""`/v1` as OpenAI's own client uses it, in front of the lanes and in direct mode."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from pydantic import SecretStr

from switchyard.services.common.settings.llm import LlmServer
from switchyard.services.engine.ledger.job_reads import JobReads
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from tests.support.api_server import RunningApi, client_of, serving, until_connected
from tests.support.eventually import eventually
from tests.support.llm_server import ANSWER, MODEL, FakeLlmServer, answers, fails, says, streams
from tests.support.site import Behaviour, Exchange, Request
from tests.support.system import System

UNSERVED = [
    ("post", "/audio/speech", "not_found"),
    ("get", "/chat/completions", "method_not_allowed"),
    ("get", "/chat/completions/chatcmpl-1/messages", "not_found"),
    ("get", "/responses/resp-1", "not_found"),
    ("post", "/responses/compact", "not_found"),
    ("delete", "/models/llama", "method_not_allowed"),
]
"""Requests to endpoints that the API does not have, and the codes of their errors."""
KEY = "a-secret-of-32-characters-00000"
CHAT: Any = [{"role": "user", "content": "What is a tide?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "tide_at",
            "parameters": {"type": "object", "properties": {"port": {"type": "string"}}},
        },
    }
]


@pytest.fixture(params=["lanes", "direct", "direct first"])
async def api(request: pytest.FixtureRequest, system: System) -> AsyncIterator[RunningApi]:
    calls = 8 if request.param == "direct first" else 0
    async with serve_api(
        system, direct=request.param == "direct", llm_direct_calls=calls
    ) as opened:
        yield opened


@pytest.fixture
async def queued_api(system: System) -> AsyncIterator[RunningApi]:
    async with serve_api(system) as opened:
        yield opened


@asynccontextmanager
async def serve_api(
    system: System, *, direct: bool = False, **changes: Any
) -> AsyncIterator[RunningApi]:
    if not direct:
        await system.start_worker("llm")
    async with serving(system.settings, llm_direct=direct, **changes) as api:
        await until_connected(api)
        yield api


def completes(*choices: dict[str, Any], **fields: Any) -> Behaviour:
    """Answer with a completion of these choices."""
    answer_body = {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": choices,
        **fields,
    }
    return says(json.dumps(answer_body).encode())


async def test_a_chat_is_answered_as_the_server_answers_it(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    message = {
        "role": "assistant",
        "content": "The sea rises.",
        "reasoning_content": "The moon pulls.",
        "annotations": [{"type": "x"}],
    }
    logprobs = {"content": [{"token": "The", "logprob": -0.1, "bytes": None, "top_logprobs": []}]}
    first = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    second = {"index": 1, "message": {"role": "assistant", "content": "It falls."}}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    llm.next(completes(first, second, usage=usage, system_fingerprint="fp"))
    parameters: dict[str, Any] = {
        "n": 2,
        "logprobs": True,
        "seed": 7,
        "stop": ["\n"],
        "temperature": 0.7,
        "max_completion_tokens": 50,
        "response_format": {"type": "json_object"},
        "user": "me",
    }
    async with client_of(api) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=CHAT, extra_body={"top_k": 5, "odd": {"a": [1]}}, **parameters
        )
    answer = raw.parse()
    assert [each.message.content for each in answer.choices] == ["The sea rises.", "It falls."]
    assert answer.choices[0].message.model_extra == {"reasoning_content": "The moon pulls."}
    assert answer.choices[0].logprobs is not None
    assert answer.choices[1].finish_reason == "stop"  # where the server says nothing
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7
    assert (answer.id, answer.system_fingerprint) == ("c1", "fp")
    assert raw.headers["x-cache"] == "MISS"
    sent = llm.requests[-1].json
    assert sent.pop("stream") is True
    assert sent.pop("stream_options") == {"include_usage": True}
    assert sent == {"model": MODEL, "messages": CHAT, "top_k": 5, "odd": {"a": [1]}, **parameters}


async def test_the_server_gets_only_the_parameters_of_the_client(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    async with client_of(api) as client:
        await client.chat.completions.create(model="org/small", messages=CHAT)
    sent = llm.requests[-1].json
    assert sent.keys() == {"model", "messages", "stream", "stream_options"}
    assert sent["model"] == MODEL  # the server does not know our alias


async def test_an_equal_question_is_paid_for_once_unless_the_cache_is_bypassed(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    async with client_of(api) as client:
        create = client.chat.completions.with_raw_response.create
        first = await create(model=MODEL, messages=CHAT)
        second = await create(model="small", messages=CHAT)
        assert second.headers["x-cache"] == "HIT"
        assert second.headers["x-job-id"] != first.headers["x-job-id"]
        assert second.parse().choices == first.parse().choices
        assert len(llm.requests) == 1
        anew = await create(model=MODEL, messages=CHAT, extra_headers={"Cache-Control": "no-cache"})
        assert anew.headers["x-cache"] == "MISS"
        assert len(llm.requests) == 2


async def test_a_waiting_client_reads_the_record_once_after_the_end_event(
    system: System, llm: FakeLlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, reads = JobReads.get, list[str]()

    async def count_reads(self: JobReads, job_id: str) -> JobRecord | None:
        reads.append(job_id)
        return await get(self, job_id)

    monkeypatch.setattr(JobReads, "get", count_reads)
    async with serve_api(system) as queued_api, client_of(queued_api) as client:
        for number in (1, 2):  # the second request is the same job, which has ended
            headers = {"Idempotency-Key": "one"}
            await client.chat.completions.create(
                model=MODEL, messages=CHAT, extra_headers=headers, timeout=10
            )
            assert len(reads) == number
    assert len(llm.requests) == 1


CALL_PIECES = (
    {"role": "assistant", "content": None},
    {
        "tool_calls": [
            {
                "index": 0,
                "id": "a",
                "type": "function",
                "function": {"name": "tide_at", "arguments": ""},
            }
        ]
    },
    {"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": '{"port": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Brest"}'}}]},
    {
        "tool_calls": [
            {
                "index": 1,
                "id": "b",
                "type": "function",
                "function": {"name": "tide_at", "arguments": "{}"},
            }
        ]
    },
)


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_are_called(api: RunningApi, llm: FakeLlmServer, stream: bool) -> None:
    llm.next(streams(*CALL_PIECES, finish_reason="tool_calls"))
    async with client_of(api) as client:
        if stream:
            async with client.chat.completions.stream(
                model=MODEL, messages=CHAT, tools=TOOLS
            ) as events:
                answer: Any = await events.get_final_completion()
        else:
            answer = await client.chat.completions.create(model=MODEL, messages=CHAT, tools=TOOLS)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        calls = [
            (each.id, each.function.name, each.function.arguments)
            for each in choice.message.tool_calls
        ]
        assert calls == [("a", "tide_at", '{"port": "Brest"}'), ("b", "tide_at", "{}")]
        assert llm.requests[-1].json["tools"] == TOOLS

        tool_calls = [each.model_dump(exclude_none=True) for each in choice.message.tool_calls]
        for each in tool_calls:
            each.pop("index", None)
            each["function"].pop("parsed_arguments", None)
        results: Any = [
            {"role": "assistant", "content": None, "tool_calls": tool_calls},
            {"role": "tool", "tool_call_id": "a", "content": "high"},
        ]
        await client.chat.completions.create(model=MODEL, messages=[*CHAT, *results], tools=TOOLS)
        assert llm.requests[-1].json["messages"][1:] == results


async def test_pictures_are_sent(api: RunningApi, llm: FakeLlmServer) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What?"}, picture]}]
    async with client_of(api) as client:
        await client.chat.completions.create(model=MODEL, messages=messages)
    assert llm.requests[-1].json["messages"] == messages


def writes(*deltas: dict[str, Any], wait: threading.Event) -> Behaviour:
    """Write a stream that waits for the test after its first piece."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Type", "text/event-stream")
        exchange.end_headers()
        exchange.close_connection = True
        for number, delta in enumerate([*deltas, {}]):
            reason = "stop" if number == len(deltas) else None
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            exchange.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            exchange.wfile.flush()
            if number == 0:
                assert wait.wait(60)
        usage = {"prompt_tokens": 5, "completion_tokens": 6}
        exchange.wfile.write(b"data: " + json.dumps({"usage": usage, "choices": []}).encode())
        exchange.wfile.write(b"\n\ndata: [DONE]\n\n")

    return behave


async def test_values_that_json_can_not_express_are_replaced_in_streams(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    """A pair of surrogates that is cut between two pieces is joined, half a pair is replaced, and
    an infinite number, as some servers give for a log probability, is null."""
    logprobs = {"content": [{"token": "a", "logprob": float("-inf")}]}
    chunk = {"index": 0, "delta": {}, "finish_reason": None, "logprobs": logprobs}
    llm.next(
        streams(
            {"content": "high \ud83c"},
            {"content": "\udf0a and \ud800low"},
            begin=b"\xef\xbb\xbfdata: %s\n\n" % json.dumps({"choices": [chunk]}).encode(),
        )
    )
    parameters = {"model": MODEL, "messages": CHAT, "stream": True}
    async with httpx.AsyncClient(base_url=api.url, timeout=60, trust_env=False) as client:
        answer = await client.post("/v1/chat/completions", json=parameters)
    lines = [each.removeprefix("data: ") for each in answer.text.split("\n\n") if each]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(each, parse_constant=pytest.fail)["choices"][0] for each in lines]
    text = "".join(each["delta"].get("content", "") for each in choices)
    assert text == "high \N{WATER WAVE} and \ufffdlow"
    (sent_logprobs,) = [each["logprobs"] for each in choices if each.get("logprobs")]
    assert sent_logprobs["content"] == [{"token": "a", "logprob": None}]


async def test_an_answer_is_streamed_while_it_is_written(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    first_piece_read = threading.Event()
    llm.next(writes({"content": "The tide "}, {"content": "rises."}, wait=first_piece_read))
    text, usages, reasons = "", [], []
    async with client_of(api) as client:
        chunks = await client.chat.completions.create(
            model=MODEL, messages=CHAT, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in chunks:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
            if text:
                first_piece_read.set()  # the server waits until its first words were read
            usages.append(chunk.usage)
        assert text == "The tide rises."
        assert reasons[-1] == "stop"
        assert usages[-1] is not None
        assert usages[-1].completion_tokens == 6

        repeated = await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
        parts = [each.choices[0].delta.content or "" async for each in repeated if each.choices]
        assert "".join(parts) == "The tide rises."
        assert len(llm.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "error", "code"),
    [
        (
            fails(400, "This model's maximum context length is 4096 tokens"),
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        (fails(400, "no such format"), openai.BadRequestError, "invalid_request"),
        (
            fails(400, "the request exceeds the available context size. try increasing it"),
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        (
            lambda exchange, _: exchange.send_json(
                400, {"error": {"message": "no: maximum of 3 tokens", "code": "content_filter"}}
            ),
            openai.BadRequestError,
            "content_filter",
        ),
        (fails(401, "bad key sk-1: context too long"), openai.InternalServerError, "model_failed"),
    ],
)
async def test_the_refusal_of_a_server_is_an_openai_error(
    queued_api: RunningApi,
    llm: FakeLlmServer,
    stream: bool,
    behaviour: Behaviour,
    error: type[openai.APIStatusError],
    code: str,
) -> None:
    llm.next(behaviour)
    async with client_of(queued_api) as client:
        with pytest.raises(error) as caught:
            await client.chat.completions.create(model=MODEL, messages=CHAT, stream=stream)
    assert caught.value.code == code
    assert caught.value.response.headers["x-should-retry"] == "false"


async def test_a_request_that_is_not_answered_in_time_is_a_timeout(system: System) -> None:
    async with serving(system.settings) as api, client_of(api) as client:
        await until_connected(api)  # no worker is there
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(
                model=MODEL, messages=CHAT, extra_headers={"X-Job-Expires-In": "0.5"}
            )
    assert caught.value.status_code == 504
    assert caught.value.code == "not_answered"


async def test_an_invalid_request_is_refused_as_openai_does(
    queued_api: RunningApi, llm: FakeLlmServer
) -> None:
    async with client_of(queued_api) as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="other", messages=CHAT)
        assert unknown.value.code == "model_not_found"
        assert "llama, small" in unknown.value.message
        invalid_chat: Any = [{"role": "king", "content": "x"}]
        with pytest.raises(openai.BadRequestError) as invalid:
            await client.chat.completions.create(model=MODEL, messages=invalid_chat)
        assert invalid.value.param == "messages.0.role"
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model=MODEL, messages=[])
        for method, path, code in UNSERVED:
            with pytest.raises(openai.APIStatusError) as unserved:
                await getattr(client, method)(path, cast_to=object)
            assert unserved.value.code == code, path
        headers = {"X-Job-Priority": "11"}
        with pytest.raises(openai.BadRequestError) as priority:
            await client.chat.completions.create(model=MODEL, messages=CHAT, extra_headers=headers)
        assert priority.value.param == "x-job-priority"
    assert llm.requests == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_reads_an_answer_and_a_stream(
    queued_api: RunningApi, llm: FakeLlmServer
) -> None:
    async def curl(**fields: Any) -> str:
        body = json.dumps({"model": MODEL, "messages": CHAT, **fields})
        command = ("curl", "-sSfN", "--noproxy", "*", "-H", "Content-Type: application/json", "-d")
        program = await asyncio.create_subprocess_exec(
            *command, body, f"{queued_api.url}/v1/chat/completions", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await program.communicate()
        assert program.returncode == 0
        return output.decode()

    assert json.loads(await curl())["choices"][0]["message"]["content"] == ANSWER
    lines = [line for line in (await curl(stream=True)).split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(x["choices"][0]["delta"].get("content", "") for x in chunks) == ANSWER


async def test_models_are_those_of_the_settings(queued_api: RunningApi) -> None:
    async with client_of(queued_api) as client:
        listed = [(each.id, each.owned_by) async for each in client.models.list()]
        assert listed == [(MODEL, "own"), ("small", "own"), ("org/small", "own")]
        assert (await client.models.retrieve("org/small")).id == "org/small"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other")


async def test_a_request_goes_to_the_server_of_its_model(
    system: System, llm: FakeLlmServer
) -> None:
    with FakeLlmServer() as other:
        small_server = LlmServer(name="one", base_url=llm.url, model=MODEL)
        large_server = LlmServer(name="two", base_url=other.url, model="large", order=1)
        system.settings = system.settings.model_copy(
            update={"llm_providers": (small_server, large_server)}
        )
        other.next(answers("from the large one"))
        async with serve_api(system) as api, client_of(api) as client:
            answer = await client.chat.completions.create(model="large", messages=CHAT)
            assert answer.choices[0].message.content == "from the large one"
            await client.chat.completions.create(model=MODEL, messages=CHAT)
        assert [len(llm.requests), len(other.requests)] == [1, 1]


async def test_lane_priority_and_source_become_the_jobs(system: System) -> None:
    async with (
        serving(system.settings, api_keys=SecretStr(f"{KEY}:publish")) as api,
        client_of(api, KEY) as client,
    ):
        await until_connected(api)
        headers = {"X-Job-Expires-In": "0.5", "X-Job-Background": "true"}
        for lane, requested, priority in (
            ("backfill", "3", 3),
            ("backfill", "", 1),
            ("hot", "", 5),
        ):
            request_headers = (
                headers
                | {"X-Job-Lane": lane}
                | ({"X-Job-Priority": requested} if requested else {})
            )
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(
                    model=MODEL, messages=CHAT, extra_headers=request_headers
                )
            job = await system.ledger.job_reads.get(caught.value.response.headers["x-job-id"])
            assert job is not None
            assert (job.lane, job.priority) == (lane, priority)
            assert job.source is not None
            assert job.source.startswith("api:")
        async with client_of(api, "another") as stranger:
            with pytest.raises(openai.AuthenticationError) as refused:
                await stranger.models.list()
            assert refused.value.code == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_cancels_its_request(system: System, stream: bool) -> None:
    async with serving(system.settings) as api:
        await until_connected(api)

        async def states() -> list[State]:
            page = await system.ledger.job_reads.list_jobs(limit=10)
            return [each.state for each in page.items]

        for background, end in ((False, State.CANCELLED), (True, State.QUEUED)):
            headers = {"X-Job-Background": str(background)}
            before = len(await states())
            async with client_of(api) as client:
                asking = asyncio.create_task(
                    client.chat.completions.create(
                        model=MODEL, messages=CHAT, stream=stream, extra_headers=headers
                    )
                )

                async def is_asked(before: int = before) -> bool:
                    return len(await states()) > before

                await eventually(is_asked, what="the job")
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking

            async def has_ended(end: State = end) -> bool:
                return (await states())[0] is end

            await eventually(has_ended, what=f"a job that is {end}")


async def test_a_running_request_is_stopped_when_its_stream_is_left(
    queued_api: RunningApi, llm: FakeLlmServer, system: System
) -> None:
    never_set = threading.Event()
    llm.next(writes({"content": "The"}, {"content": " end"}, wait=never_set))
    async with client_of(queued_api) as client:
        chunks = await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
        assert (await anext(aiter(chunks))).choices[0].delta.content == "The"
        await chunks.close()

    async def is_cancelled() -> bool:
        page = await system.ledger.job_reads.list_jobs(limit=1)
        return page.items[0].state is State.CANCELLED

    await eventually(is_cancelled, what="the end of the job")
    never_set.set()


def vectors(*vector_list: list[float]) -> Behaviour:
    data = [
        {"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(vector_list)
    ]
    usage = {"prompt_tokens": 5, "total_tokens": 5}
    answer_body = {"object": "list", "model": "m", "data": data, "usage": usage}
    return says(json.dumps(answer_body).encode())


async def test_texts_become_vectors_and_are_paid_for_once(
    api: RunningApi, llm: FakeLlmServer
) -> None:
    llm.next(vectors([0.123, -1.0], [0.5, 2.0]))
    async with client_of(api) as client:
        create = client.embeddings.with_raw_response.create
        # Without a format, the client asks for base64 and unpacks it.
        raw = await create(model=MODEL, input=["a", "b"], dimensions=2)
        answer = raw.parse()
        assert [each.index for each in answer.data] == [0, 1]
        assert answer.data[0].embedding == pytest.approx([0.123, -1.0])
        assert answer.usage.prompt_tokens == 5
        assert raw.headers["x-cache"] == "MISS"
        exact = await create(model="small", input=["a", "b"], dimensions=2, encoding_format="float")
        assert exact.headers["x-cache"] == "HIT"
        assert exact.parse().data[0].embedding == [0.123, -1.0]
    (request,) = llm.requests
    assert request.path == "/v1/embeddings"
    sent = {"model": MODEL, "input": ["a", "b"], "dimensions": 2, "encoding_format": "float"}
    assert request.json == sent


@pytest.mark.parametrize("texts", ["a text", [1, 2, 3], [[1, 2], [3]]])
async def test_tokens_and_single_texts_are_sent_as_they_are(
    queued_api: RunningApi, llm: FakeLlmServer, texts: Any
) -> None:
    count = 2 if texts == [[1, 2], [3]] else 1
    llm.next(vectors(*[[1.0]] * count))
    async with client_of(queued_api) as client:
        answer = await client.embeddings.create(model=MODEL, input=texts)
    assert len(answer.data) == count
    assert llm.requests[-1].json["input"] == texts


@pytest.mark.parametrize("texts", [[], [[]], [1, "a"], [-1], {"a": 1}, ["a"] * 2049])
async def test_invalid_input_is_refused(
    queued_api: RunningApi, llm: FakeLlmServer, texts: Any
) -> None:
    async with client_of(queued_api) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model=MODEL, input=texts)
    assert str(caught.value.param).startswith("input")
    assert llm.requests == []


@pytest.mark.parametrize(
    "behaviour", [vectors([1.0]), vectors([1.0], []), says(b'{"data": [{}, {}]}'), says(b"[")]
)
async def test_invalid_vectors_of_a_server_are_an_error(
    system: System, llm: FakeLlmServer, behaviour: Behaviour
) -> None:
    llm.next(*[behaviour] * 9)
    async with serve_api(system, direct=True) as api, client_of(api) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.embeddings.create(
                model=MODEL, input=["a", "b"], extra_headers={"X-Job-Expires-In": "2"}
            )
    assert caught.value.code in ("model_failed", "not_answered")


async def test_the_embedding_model_of_the_search_is_served_too(
    system: System, llm: FakeLlmServer
) -> None:
    overrides = {"embed_base_url": llm.url, "embed_model": "nomic"}
    system.settings = system.settings.model_copy(update=overrides)
    async with serve_api(system) as api, client_of(api) as client:
        assert "nomic" in [each.id async for each in client.models.list()]
        answer = await client.embeddings.create(model="nomic", input="a")
        assert answer.data[0].embedding
        assert llm.requests[-1].json["model"] == "nomic"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nomic", messages=CHAT)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_is_continued(api: RunningApi, llm: FakeLlmServer, stream: bool) -> None:
    choices = [{"index": 0, "text": " rises.", "finish_reason": "stop", "logprobs": None}]
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    answer_body = {"id": "c", "object": "text_completion", "created": 1, "choices": choices}
    llm.next(says(json.dumps({**answer_body, "model": "m", "usage": usage}).encode()))
    parameters: dict[str, Any] = {
        "model": MODEL,
        "prompt": "The tide",
        "max_tokens": 5,
        "echo": False,
    }
    async with client_of(api) as client:
        if stream:
            chunks = await client.completions.create(
                **parameters, stream=True, stream_options={"include_usage": True}
            )
            pieces = [each async for each in chunks]
            text = "".join(each.choices[0].text for each in pieces if each.choices)
            usage = pieces[-1].usage
        else:
            answer = await client.completions.create(**parameters)
            text, usage = answer.choices[0].text, answer.usage
    assert text == " rises."
    assert usage.completion_tokens == 3
    assert llm.requests[-1].path == "/v1/completions"
    assert llm.requests[-1].json == parameters


RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "m",
    "output": [
        {"id": "r1", "type": "reasoning", "summary": []},
        {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "The sea rises.", "annotations": []}],
        },
        {"id": "f1", "type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 14,
    },
}


async def test_a_response_comes_from_a_server_with_the_responses_api(
    system: System, llm: FakeLlmServer
) -> None:
    with FakeLlmServer() as other:
        chat_server = LlmServer(name="own", base_url=llm.url, model=MODEL)
        responses_server = LlmServer(
            name="more", base_url=other.url, model=MODEL, order=1, responses=True
        )
        system.settings = system.settings.model_copy(
            update={"llm_providers": (chat_server, responses_server)}
        )
        other.next(says(json.dumps({"status": "in_progress", "output": []}).encode()))
        other.always(says(json.dumps(RESPONSE).encode()))
        async with serve_api(system) as api, client_of(api) as client:
            create = client.responses.with_raw_response.create
            parameters: Any = {"model": MODEL, "instructions": "Be short.", "max_output_tokens": 9}
            raw = await create(input="High?", extra_body={"odd": 1}, **parameters)
            answer = raw.parse()
            assert answer.output_text == "The sea rises."
            assert answer.usage is not None
            assert answer.usage.input_tokens_details.cached_tokens == 4
            sent = other.requests[-1].json
            assert (other.requests[-1].path, sent) == (
                "/v1/responses",
                {**parameters, "input": "High?", "odd": 1},
            )
            record = await system.ledger.job_reads.get(raw.headers["x-job-id"])
            assert record is not None
            assert record.result is not None
            assert record.result["usage"] == {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "cached_tokens": 4,
            }
            repeated = await create(input="High?", extra_body={"odd": 1}, **parameters)
            assert repeated.headers["x-cache"] == "HIT"

            async with client.responses.stream(model=MODEL, input=CHAT) as events:
                text = [x.delta async for x in events if x.type == "response.output_text.delta"]
                final = await events.get_final_response()
            assert text == ["The sea rises."]  # the server has answered without a stream
            assert [each.type for each in final.output] == ["reasoning", "message", "function_call"]
            with pytest.raises(openai.BadRequestError, match="X-Job-Background"):
                await client.responses.create(model=MODEL, input="a", background=True)
        assert llm.requests == []
        assert len(other.requests) == 3


async def test_the_error_names_the_setting_if_no_server_has_responses(
    queued_api: RunningApi,
) -> None:
    async with client_of(queued_api) as client:
        with pytest.raises(openai.NotFoundError, match='"responses": true') as caught:
            await client.responses.create(model=MODEL, input="a")
    assert caught.value.code == "responses_not_supported"
