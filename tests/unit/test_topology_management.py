"""Errors of the management API: each says what to do, none shows a password."""

import logging
import traceback

import httpx
import pytest

from switchyard.broker.errors import ManagementError
from switchyard.broker.management import client as management
from switchyard.broker.management.client import ManagementClient
from switchyard.broker.management.model import Queue

SECRET = "s3cret-pass"
URL = f"http://someone:{SECRET}@broker.example:15672"


def answer_with(status: int, body: object) -> httpx.MockTransport:
    return httpx.MockTransport(lambda request: httpx.Response(status, json=body))


def fail_with(error: type[httpx.TransportError]) -> httpx.MockTransport:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error("All connection attempts failed", request=request)

    return httpx.MockTransport(fail)


@pytest.mark.parametrize(
    ("transport", "advice"),
    [
        (fail_with(httpx.ConnectError), "rabbitmq-plugins enable rabbitmq_management"),
        (fail_with(httpx.RemoteProtocolError), "rabbitmq-plugins enable rabbitmq_management"),
        (fail_with(httpx.ReadTimeout), "did not answer in time"),
        (
            answer_with(401, {"error": "not_authorized", "reason": "Login failed"}),
            "check JOBS_MANAGEMENT_URL",
        ),
        (
            answer_with(401, {"error": "not_authorised", "reason": "Not management user"}),
            "tag `policymaker`",
        ),
        (
            answer_with(401, {"error": "not_authorised", "reason": "Not monitor user"}),
            "tag `monitoring`",
        ),
        (answer_with(403, {"error": "forbidden", "reason": "no"}), "tag `policymaker`"),
        (
            answer_with(404, {"error": "Object Not Found", "reason": "Not Found"}),
            "rabbitmqctl add_vhost 'pipe lines'",
        ),
        (
            answer_with(400, {"error": "bad_request", "reason": "inequivalent\n\narg"}),
            "uivalent arg",
        ),
        (answer_with(502, "not from the broker"), "HTTP 502"),
        (
            httpx.MockTransport(lambda request: httpx.Response(200, text="<html>")),
            "set JOBS_MANAGEMENT_URL",
        ),
        (
            httpx.MockTransport(lambda request: httpx.Response(200, text="[" * 100_000)),
            "set JOBS_MANAGEMENT_URL",
        ),
    ],
)
async def test_errors_say_what_to_do_in_one_line_without_the_password(
    transport: httpx.MockTransport, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with ManagementClient(URL, "pipe lines", transport=transport) as client:
        with pytest.raises(ManagementError) as caught:
            await client.fetch()
    text = str(caught.value)
    assert advice in text
    assert "http://broker.example:15672" in text
    assert "\n" not in text
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + caplog.text


@pytest.mark.parametrize(
    "url",
    [
        f"http://someone:{SECRET}/x@broker.example:15672",  # the password is read as a port
        f"amqp://someone:{SECRET}@broker.example:5672",
        f"http://someone:{SECRET}@[broker.example",
        "broker.example:15672",
        "",
    ],
)
def test_an_invalid_address_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ManagementError, match="http://user:password@host:15672") as caught:
        ManagementClient(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


async def test_user_and_password_are_unquoted_and_the_virtual_host_quoted() -> None:
    requests: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=[])

    url = "http://a%40b:p%2Fw@[::1]:15672/rabbit/"
    async with ManagementClient(url, "a/b", transport=httpx.MockTransport(answer)) as client:
        await client.policies()
    assert str(requests[0].url) == "http://[::1]:15672/rabbit/api/policies/a%2Fb"
    basic = httpx.BasicAuth("a@b", "p/w")
    assert (
        requests[0].headers["authorization"]
        == next(basic.auth_flow(httpx.Request("GET", "http://x"))).headers["authorization"]
    )


@pytest.mark.parametrize("refusals", [1, 6])
async def test_a_queue_that_another_client_is_declaring_is_declared_again(
    refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 4.3 answered so to one of four clients that declared the same quorum queue."""
    monkeypatch.setattr(management, "_DECLARE_PAUSES", (0.0,) * 6)
    not_found = {"error": "Object Not Found", "reason": "home node 'a' is down or inaccessible"}
    answers = [httpx.Response(404, json=not_found)] * refusals + [httpx.Response(204)]
    transport = httpx.MockTransport(lambda request: answers.pop(0))
    async with ManagementClient(URL, transport=transport) as client:
        if refusals < 6:
            await client.put_queue(Queue("hot.llm", "quorum"))
        else:
            with pytest.raises(ManagementError, match="is down or inaccessible"):
                await client.put_queue(Queue("hot.llm", "quorum"))
    assert len(answers) == (0 if refusals < 6 else 1)
