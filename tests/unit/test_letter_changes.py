"""Changes and filters of redrives, their JSON, and the lines of exported letters."""

import json
from typing import Any

import pytest

from switchyard.broker.dead.dead_letter_headers import PROPERTIES_HEADER, DeadLetterInfo, Reason
from switchyard.broker.message import JobMessage, Metadata, now
from switchyard.services.engine.dead import jq_program
from switchyard.services.engine.dead.changes import (
    Change,
    InvalidRedrive,
    difference,
    make_copy,
    merge_patch,
)
from switchyard.services.engine.dead.files import InvalidLine, parse_line, to_line
from switchyard.services.engine.dead.jq_program import ExpressionStopped
from switchyard.services.engine.dead.letters import LetterFilter, cause_of_letter
from switchyard.services.engine.dead.stored import StoredLetter
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.records.results import DeadLetter
from switchyard.services.engine.redrive.spec import RedriveSpec, title_of

REGISTRY = Registry.load(["tests.support.jobs"])


def stored_letter(payload: dict[str, Any] | None = None, **info: Any) -> StoredLetter:
    message = JobMessage(
        job_id="job-1",
        job_type="noop",
        priority=4,
        payload=payload or {"n": 1, "text": "a"},
        metadata=Metadata(attempts=3, redrives=2),
    )
    values = {"routing_key": "hot.noop", "error_type": "RuntimeError", **info}
    return StoredLetter("job-1", message.encode(), DeadLetterInfo(Reason.EXHAUSTED, **values))


# --- changes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        # From RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


def test_each_kind_of_change_is_applied() -> None:
    for change, payload in (
        (Change(payload={"n": 9}), {"n": 9}),
        (Change(merge={"text": None, "n": 3}), {"n": 3}),
        (Change(jq=".n += 1 | .text |= ascii_upcase"), {"n": 2, "text": "A"}),
        (Change(values={"payload.n": 7}), {"n": 7, "text": "a"}),
        (
            Change(merge={"n": 5}, jq=".n *= 2", values={"payload.text": "b"}),
            {"n": 10, "text": "b"},
        ),
    ):
        message, routing_key = make_copy(stored_letter(), change, REGISTRY)
        assert (message.payload, routing_key) == (payload, "hot.noop")
        assert message.generation == (3, 0)
        assert message.metadata.model_extra == {"edited_from": "job-1/2"}
    message, _ = make_copy(stored_letter(), Change(priority=9, max_attempts=7), REGISTRY)
    assert (message.priority, message.metadata.max_attempts) == (9, 7)
    assert message.payload == {"n": 1, "text": "a"}
    message, _ = make_copy(stored_letter(), Change(), REGISTRY)
    assert message.metadata.model_extra == {}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (Change(payload={"n": "many"}), "payload of noop: n"),
        (Change(merge={"n": "many"}), "payload of noop: n"),
        (Change(jq='.n = "many"'), "payload of noop: n"),
        (Change(jq=".n"), "it must give one object"),
        (Change(jq=".n, .text"), "it must give one object"),
        (Change(jq="empty"), "it must give one object"),
        (Change(jq=".n |= error"), "jq"),
        (Change(jq="nonsense("), "jq"),
        (Change(jq="." * 3_000), "more than 2000 characters"),
    ],
)
def test_a_change_to_an_invalid_payload_is_refused(change: Change, complaint: str) -> None:
    with pytest.raises(InvalidRedrive, match=complaint.replace("(", r"\(")):
        make_copy(stored_letter(), change, REGISTRY)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [("def f: f; f", "more than 0.3 s"), ("[range(1e10)]", "MiB"), ("{n: [range(1e9)]}", "MiB")],
)
def test_an_endless_expression_is_stopped(
    expression: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if complaint == "MiB":
        monkeypatch.setattr(jq_program, "MAX_MEMORY", 128 * 1024 * 1024)
        monkeypatch.setattr(jq_program, "APPLY_TIMEOUT", 30.0)
    else:
        monkeypatch.setattr(jq_program, "APPLY_TIMEOUT", 0.3)
    with pytest.raises(ExpressionStopped, match=complaint):
        make_copy(stored_letter(), Change(jq=expression), REGISTRY)


def test_an_expression_reads_nothing_but_the_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_API_KEY", "secret")
    for expression in ("{text: (env | tostring)}", "{text: ($ENV | tostring)}"):
        message, _ = make_copy(stored_letter(), Change(jq=expression), REGISTRY)
        assert "secret" not in message.payload["text"]


def test_an_expression_is_applied_again_after_its_process_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jq_program, "IDLE_TIMEOUT", 0.2)
    program = jq_program.JqProgram(".n += 1")
    assert program.results({"n": 1}) == [{"n": 2}]
    assert program._process is not None
    program._process.wait()
    assert program.results({"n": 2}) == [{"n": 3}]


def test_the_difference_shows_only_changed_lines() -> None:
    lines = difference({"n": 1, "text": "a"}, {"text": "a", "n": 2})
    assert [line for line in lines if line[0] in "+-"][2:] == ['-  "n": 1,', '+  "n": 2,']
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


# --- filters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ({}, {}, True),
        ({"lane": "hot"}, {"lane": "backfill"}, False),
        ({"lane": "hot"}, {"job_type": "noop"}, True),
        ({"lane": "hot"}, {}, True),
        ({"ids": frozenset("ab")}, {"ids": frozenset("cd")}, False),
        ({"ids": frozenset("ab")}, {"ids": frozenset("bc")}, True),
        ({"group": "ab12"}, {"group": "ab12cd34"}, True),
        ({"group": "ab12"}, {"group": "ab13"}, False),
        ({"reason": "expired", "lane": "hot"}, {"reason": "malformed", "lane": "hot"}, False),
        ({"older_than": 60.0}, {"younger_than": 10.0}, True),
        ({"operation": "a"}, {"operation": "b"}, False),
    ],
)
def test_filters_overlap_unless_a_field_tells_them_apart(
    first: dict[str, Any], second: dict[str, Any], overlap: bool
) -> None:
    assert LetterFilter(**first).overlaps(LetterFilter(**second)) is overlap
    assert LetterFilter(**second).overlaps(LetterFilter(**first)) is overlap


def test_a_filter_by_group_matches_the_start_of_the_fingerprint() -> None:
    letter = stored_letter(message="no page 7")
    fingerprint = cause_of_letter(letter).fingerprint
    assert cause_of_letter(stored_letter(message="no page 12")).fingerprint == fingerprint
    for group, matches in ((fingerprint, True), (fingerprint[:4], True), ("0" * 10, False)):
        assert LetterFilter(group=group).matches(letter, now()) is matches


@pytest.mark.parametrize(
    "spec",
    [
        RedriveSpec(LetterFilter()),
        RedriveSpec(
            LetterFilter(ids=frozenset({"a", "b"}), group="ab12", older_than=3.5),
            Change(payload={"n": None}, merge={"a": None}, jq=".", values={"payload.a": [1]}),
            limit=5,
            canary=2,
            halt_on=0.2,
            from_ledger=True,
        ),
        RedriveSpec(LetterFilter(lane="hot"), Change(payload={}, priority=0, to="hot.noop")),
    ],
)
def test_a_redrive_is_read_back_from_its_json(spec: RedriveSpec) -> None:
    assert RedriveSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert title_of(spec)


# --- files ------------------------------------------------------------------------------------


def indexed_letter(body: bytes, **headers: Any) -> DeadLetter:
    return DeadLetter(
        id="job-1",
        job_id="job-1",
        job_type="noop",
        lane="hot",
        routing_key="hot.noop",
        reason="exhausted",
        error_type="RuntimeError",
        error_message="it\nfailed",
        traceback="  File …",
        attempts=3,
        redrives=2,
        worker="llm",
        first_at=1.0,
        dead_at=1_800_000_000.25,
        body=body,
        headers={"x-dead-worker": "w-1", "x-dead-queue": "hot.llm"} | headers,
        copies=1,
        state="waiting",
        updated_at=1.0,
        fingerprint="ab",
    )


@pytest.mark.parametrize("body", [stored_letter().body, b"\xff\x00", b"", "ü\n\u2028".encode()])
def test_an_exported_line_is_read_back_as_the_same_letter(body: bytes) -> None:
    line = to_line(indexed_letter(body))
    assert "\n" not in line
    parsed = parse_line(line)
    assert parsed.body == body
    assert parsed.info == DeadLetterInfo(
        Reason.EXHAUSTED,
        "hot.noop",
        queue="hot.llm",
        error_type="RuntimeError",
        message="it\nfailed",
        traceback="  File …",
        attempts=3,
        worker="w-1",
        dead_at="2027-01-15T08:00:00.250000+00:00",
    )
    assert parsed.id == ("job-1" if body == stored_letter().body else parsed.id)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": 2}, "jobctl dead export"),
        ({"reason": "bored"}, "reason"),
        ({"routing_key": None}, "routing_key"),
        ({"attempts": "3"}, "attempts"),
        ({"body": None}, "either body or body_base64"),
        ({"body_base64": "e30="}, "either body or body_base64"),
        ({"body": None, "body_base64": "?"}, "can't be read"),
        ({"body": "x" * 1_100_000}, "more than"),
    ],
)
def test_an_invalid_line_is_refused_with_the_reason(
    changes: dict[str, Any], complaint: str
) -> None:
    line = json.loads(to_line(indexed_letter(stored_letter().body))) | changes
    with pytest.raises(InvalidLine, match=complaint):
        parse_line(json.dumps(line))
    with pytest.raises(InvalidLine, match="not JSON"):
        parse_line("{")
    with pytest.raises(InvalidLine, match="not JSON"):
        parse_line("[" * 100_000)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"routing_key": "k" * 256}, "routing_key has 256 bytes, more than 255"),
        ({"worker": "\ud800"}, "worker can't be written as UTF-8"),
        ({"error_type": "x" * 9_000}, "error_type has 9,000 bytes"),
        ({"properties": "x" * 100_000}, "properties has 100,000 bytes"),
        ({"attempts": 2**64}, "attempts must be 0 to"),
    ],
)
def test_a_line_with_too_large_headers_is_refused_with_the_reason(
    changes: dict[str, Any], complaint: str
) -> None:
    line = json.loads(to_line(indexed_letter(stored_letter().body))) | changes
    with pytest.raises(InvalidLine, match=complaint):
        parse_line(json.dumps(line))


def test_a_letter_with_unreadable_properties_holds_no_job_also_after_an_export() -> None:
    letter = stored_letter(properties="AAA=", message="they can't be read")
    assert letter.message is None
    with pytest.raises(InvalidRedrive, match="they can't be read: export it"):
        make_copy(letter, Change(), REGISTRY)
    parsed = parse_line(to_line(indexed_letter(letter.body, **{PROPERTIES_HEADER: "AAA="})))
    assert (parsed.message, parsed.info.properties) == (None, "AAA=")
    assert parsed.id.startswith("raw-")
