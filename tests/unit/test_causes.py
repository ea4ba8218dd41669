"""Causes of dead letters: numbers, ids and paths do not tell causes apart, other words do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.services.engine.dead.causes import (
    FINGERPRINT_LENGTH,
    Cause,
    cause_of,
    location_of,
    normalise,
)

TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/switchyard/services/engine/runtime/execution.py", line 53, in run
    return await job_type.handler(payload, ctx)
  File "/srv/app/acme/jobs/fetch.py", line {line}, in fetch
    answer = client.get(url)
  File "/srv/app/.venv/lib/python3.11/site-packages/httpx/_client.py", line 1041, in get
    return self.request()
  File "<frozen importlib>", line 7, in _call
RuntimeError: it failed
"""


@pytest.mark.parametrize(
    ("message", "variant", "normalised"),
    [
        ("no page 17 of 33", "no page 4 of 9", "no page <n> of <n>"),
        ("took 2.5 s", "took 1,000 s", "took <n> s"),
        (
            "no document 0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11",
            "no document 11111111-6a5e-4a0e-9a39-6a1f3b1f8f11",
            "no document <id>",
        ),
        ("can't read '/tmp/a b.pdf'", "can't read 'x'", "can't read <text>"),
        ('no key "a"', 'no key "b c"', "no key <text>"),
        ("missing /var/lib/a/1.pdf", "missing /srv/b.txt", "missing <path>"),
        ("missing C:\\data\\a.pdf", "missing D:\\other\\b.pdf", "missing <path>"),
        (
            "HTTP 503 from https://a.example/x?y=1",
            "HTTP 503 from http://b.example:80/",
            "HTTP 503 from <url>",
        ),
        ("at 2026-01-05T09:00:00.123Z", "at 2027-11-30 10:20:30", "at <time>"),
        ("object at 0x7f3a00", "object at 0xdeadbeef", "object at <hex>"),
        ("hash 9f86d081884c7d65", "hash 00aa11bb22cc33dd", "hash <hex>"),
        ("job-17 is gone", "job-4711 is gone", "<id> is gone"),
        ("doc_2024a is bad", "doc_1 is bad", "<id> is bad"),
        ("mail to a.b@example.org", "mail to c@example.net", "mail to <email>"),
        ("two\nlines", "two   lines", "two lines"),
    ],
)
def test_varying_values_become_placeholders(message: str, variant: str, normalised: str) -> None:
    assert normalise(message) == normalise(variant) == normalised


@pytest.mark.parametrize(
    ("message", "other_message"),
    [
        ("HTTP 503 from https://a.example/", "HTTP 404 from https://a.example/"),
        ("status 500", "status 502"),
        ("the lane was full", "it waited too long"),
        ("expected list", "expected dict"),
    ],
)
def test_messages_of_different_meaning_stay_different(message: str, other_message: str) -> None:
    assert normalise(message) != normalise(other_message)


def test_location_is_the_innermost_frame_of_the_jobs_own_code() -> None:
    assert location_of(TRACEBACK.format(line=12)) == "jobs/fetch.py:fetch"
    assert location_of('  File "/usr/lib/python3.11/json/decoder.py", line 1, in decode') == (
        "json/decoder.py:decode"
    )
    assert location_of("") == location_of("no traceback") == ""


def test_another_line_is_the_same_cause_and_another_function_is_not() -> None:
    def cause(traceback: str) -> Cause:
        return cause_of("exhausted", "fetch", "RuntimeError", "it failed", traceback)

    original = cause(TRACEBACK.format(line=12))
    assert cause(TRACEBACK.format(line=99)).fingerprint == original.fingerprint
    other_function = TRACEBACK.format(line=12).replace("in fetch", "in store")
    assert cause(other_function).fingerprint != original.fingerprint


@pytest.mark.parametrize("field", range(5))
def test_each_part_changes_the_fingerprint(field: int) -> None:
    parts = ["exhausted", "fetch", "RuntimeError", "it failed", TRACEBACK]
    changed_parts = parts.copy()
    changed_parts[field] = "permanent" if field < 4 else ""
    assert cause_of(*parts).fingerprint != cause_of(*changed_parts).fingerprint


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_has_a_fingerprint_of_one_form(message: str, traceback: str) -> None:
    fingerprint = cause_of("exhausted", None, None, message, traceback).fingerprint
    assert len(fingerprint) == FINGERPRINT_LENGTH
    assert set(fingerprint) <= set("0123456789abcdef")
    assert normalise(normalise(message)) is not None


def test_a_long_message_is_read_quickly() -> None:
    for text in ("a1-" * 100_000, "'" * 100_000, "a." * 100_000, "/a" * 100_000):
        assert len(normalise(text)) <= 300


@pytest.mark.parametrize("module", ["execution", "child", "runner"])
def test_a_frame_of_the_job_runtime_is_no_location(module: str) -> None:
    library = 'File "/usr/lib/python3.11/json/decoder.py", line 337, in decode\n'
    traceback = (
        f'File "/srv/switchyard/services/engine/runtime/{module}.py", line 1, in run\n{library}'
    )
    assert location_of(traceback) == "json/decoder.py:decode"
