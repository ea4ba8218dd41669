"""The API's client without a service: what it imports, reads and refuses."""

import json
import subprocess
import sys

import httpx
import pytest

from api.client import ApiAway, Client, Forbidden, Invalid, Unavailable
from api.client.errors import error_of
from api.client.following import EventReader, Patience

PROBE = "import json, sys; import api.client; print(json.dumps(sorted(sys.modules)))"


def test_the_client_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    heavy = ("pymupdf", "lancedb", "pyarrow", "openai", "numpy", "obstore", "uvicorn")
    assert [name for name in heavy if name in modules] == []


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["event: dead", 'data: {"n": 1}', "id: 5", ""], ("dead", {"n": 1}, "5")),
        (["id:5", "event:dead", 'data:{"n": 1}', ""], ("dead", {"n": 1}, "5")),
        ([": still here", "", "event: end", "data: {}", ""], ("end", {}, None)),
        (["data: {}", ""], ("message", {}, None)),
        ([": still here", ""], None),
        (["event: dead", 'data: {"n": 1}'], None),
    ],
)
def test_events_are_read_from_lines(lines: list[str], found: tuple | None) -> None:
    reader = EventReader()
    events = [event for event in map(reader.line, lines) if event is not None]
    assert [(each.name, each.data, each.id) for each in events] == ([found] if found else [])


def test_the_last_id_outlives_what_was_cut_off() -> None:
    reader = EventReader()
    for line in ("id: 1", "data: {}", "", "event: end", "data: {}", "", "id: 2", "data: {"):
        reader.line(line)
    reader.forget_half()
    assert reader.last_id == "1"
    assert reader.line("") is None


def test_a_stream_is_opened_again_with_growing_pauses_and_not_for_ever() -> None:
    patience = Patience(most=3)
    with pytest.raises(ApiAway):
        patience.pause(ApiAway("never there"))
    patience.restore()
    assert [patience.pause(None) for _ in range(3)] == [0.2, 0.4, 0.8]
    with pytest.raises(ApiAway, match="again and again"):
        patience.pause(None)
    patience.restore()
    busy = Unavailable("busy")
    busy.retry_after = 3
    assert patience.pause(busy) == 3
    with pytest.raises(Forbidden):
        patience.pause(Forbidden("the key was revoked"))


@pytest.mark.parametrize(
    ("status", "error"), [(403, Forbidden), (400, Invalid), (502, Unavailable)]
)
def test_an_answer_of_a_proxy_in_between_is_an_error_too(
    status: int, error: type[Exception]
) -> None:
    answer = httpx.Response(
        status,
        text="<h1>Sorry</h1>",
        headers={"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"},
        request=httpx.Request("GET", "http://api.example/jobs"),
    )
    made = error_of(answer)
    assert type(made) is error
    assert (made.status, made.kind, made.retry_after) == (status, None, None)
    assert str(made).startswith(f"api.example answered {status}")


@pytest.mark.parametrize("address", ["api.example:80", "ftp://api.example", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not the address of an API"):
        Client(address)
