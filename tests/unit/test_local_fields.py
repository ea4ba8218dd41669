"""Which fields of a payload only the system's own hosts may set."""

from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, model_validator

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.message import JobMessage
from switchyard.services.engine.backfill.files import FileSource
from switchyard.services.engine.backfill.sources import Item, Source
from switchyard.services.engine.backfill.spec import BackfillSpec, Plan
from switchyard.services.engine.dead.changes import Change, InvalidRedrive, make_copy
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.stored import StoredLetter
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.local_fields import LocalOnly, local_fields
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import (
    InvalidPayload,
    Registry,
    RegistryError,
    RemoteFieldForbidden,
    job,
)
from switchyard.services.engine.publishing.preparing import JobRequest, prepare
from switchyard.services.engine.publishing.requests import InvalidRequest
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.redrive.spec import RedriveSpec
from switchyard.services.pipeline.sources.backfill_arxiv import ArxivSource

HostPath = Annotated[str, LocalOnly("send the file")]


class Part(BaseModel):
    file: HostPath | None = None
    parts: list["Part"] = Field(default_factory=list)


class Everything(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    marked: Annotated[str | None, LocalOnly()] = None
    of_a_marked_type: HostPath | None = None
    in_a_list: list[HostPath] = Field(default_factory=list)
    by_name: dict[str, HostPath] | None = None
    within: Part | None = None
    renamed: HostPath | None = Field(default=None, alias="file")
    chosen: HostPath | None = Field(default=None, validation_alias=AliasChoices("one", "other"))
    derived: HostPath | None = None
    plain: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, values: Any) -> Any:
        plain = values.get("plain") or ""
        return {**values, "derived": plain} if plain.startswith("/") else values


@job("everything", worker="llm", lanes=("hot", "backfill"))
async def everything(payload: Everything, ctx: JobContext) -> Outcome:
    return Done({})


@job("other", worker="llm", lanes=("hot",))
async def other(payload: Part, ctx: JobContext) -> Outcome:
    return Done({})


REGISTRY = Registry.load(
    [
        __name__,
        "switchyard.services.pipeline.workers.ingest.documents",
        "switchyard.services.pipeline.workers.ingest.arxiv",
        "tests.support.jobs",
    ]
)
EVERYTHING = REGISTRY.get("everything")
UPLOAD = "uploads/incoming/0b0f6c1e"
ENTRY = {
    "id": "1605.08386",
    "version": 1,
    "title": "T",
    "abstract": "A",
    "published": "2016-05-26T17:59:46Z",
    "updated": "2016-05-26T17:59:46Z",
}


def test_a_field_is_local_if_any_part_of_its_type_is_marked() -> None:
    assert set(local_fields(Everything)) == set(Everything.model_fields) - {"plain"}
    assert local_fields(Everything)["of_a_marked_type"] == "send the file"
    assert set(local_fields(Part)) == {"file", "parts"}
    assert set(local_fields(RootModel[list[HostPath]])) == {"root"}
    assert not local_fields(RootModel[list[str]])


@pytest.mark.parametrize(
    "payload",
    [
        {"marked": "/a"},
        {"of_a_marked_type": "/a"},
        {"in_a_list": ["/a"]},
        {"by_name": {"a": "/a"}},
        {"within": {"parts": [{"parts": [{"file": "/a"}]}]}},
        {"file": "/a"},
        {"renamed": "/a"},
        {"one": "/a"},
        {"other": "/a"},
        {"plain": "/a"},
    ],
)
def test_a_remote_payload_can_not_set_a_local_field_by_any_name(payload: dict[str, Any]) -> None:
    EVERYTHING.validate(payload)
    with pytest.raises(RemoteFieldForbidden, match="can't be set from outside"):
        EVERYTHING.validate_remote(payload)


@pytest.mark.parametrize("payload", [{}, {"plain": "a"}, {"marked": None, "plain": "a"}])
def test_a_remote_payload_may_set_other_fields(payload: dict[str, Any]) -> None:
    EVERYTHING.validate_remote(payload)


@pytest.mark.parametrize(
    ("payload", "vouched", "is_allowed"),
    [
        ({"marked": "/a"}, {"marked": "/a"}, True),
        ({"marked": "/a", "plain": "b"}, {"marked": "/a", "plain": 7}, True),
        ({"marked": "/b"}, {"marked": "/a"}, False),
        ({"marked": "/a", "in_a_list": ["/a"]}, {"marked": "/a"}, False),
        ({"file": "/a"}, {"file": "/a"}, True),
        ({"renamed": "/a"}, {"renamed": "/a"}, True),
        ({"renamed": "/a", "file": "/b"}, {"renamed": "/a"}, False),
        ({"one": "/a", "other": "/b"}, {"other": "/b"}, False),
        ({"plain": "/a"}, {"plain": "/a"}, False),
    ],
)
def test_a_vouched_value_may_stay_in_a_local_field(
    payload: Any, vouched: Any, is_allowed: bool
) -> None:
    if is_allowed:
        EVERYTHING.validate_remote(payload, vouched)
        return
    with pytest.raises(RemoteFieldForbidden):
        EVERYTHING.validate_remote(payload, vouched)


def test_a_payload_without_a_json_schema_can_not_be_declared() -> None:
    class Opaque(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)

        thing: LocalOnly

    @job("opaque", worker="llm", lanes=("hot",))
    async def opaque(payload: Opaque, ctx: JobContext) -> Outcome:
        return Done({})

    with pytest.raises(RegistryError, match="opaque' has no JSON Schema"):
        Registry([opaque.__job_type__])  # type: ignore[attr-defined]


# --- local fields of the pipeline's jobs ------------------------------------------------------


@pytest.mark.parametrize(
    ("job_type", "payload", "field"),
    [
        ("ingest_document", {"path": "/etc/passwd"}, "path"),
        ("ingest_document", {"key": UPLOAD}, "key"),
        ("extract_text", {"key": UPLOAD}, "key"),
        ("ingest_arxiv", {"id": "1605.08386", "entry": ENTRY}, "entry"),
    ],
)
def test_fields_of_files_and_entries_are_local(
    job_type: str, payload: dict[str, Any], field: str
) -> None:
    request = JobRequest(f"hot.{job_type}", payload)
    prepare(REGISTRY, request)
    with pytest.raises(RemoteFieldForbidden) as refused:
        prepare(REGISTRY, request, remote=True)
    assert [each.field for each in refused.value.refused] == [field]
    prepare(REGISTRY, JobRequest(f"hot.{job_type}", payload, vouched=payload), remote=True)


@pytest.mark.parametrize("job_type", ["ingest_document", "extract_text"])
@pytest.mark.parametrize(
    "key",
    [
        "results/other/result.json",
        "uploads/other/input.pdf",
        "uploads/incoming/../other/input.pdf",
        "uploads/incoming/a/b",
        "uploads/incoming/",
        f"{UPLOAD}\n",
        f"/{UPLOAD}",
    ],
)
def test_a_worker_accepts_only_the_key_of_an_incoming_upload(job_type: str, key: str) -> None:
    with pytest.raises(InvalidPayload, match="key"):
        REGISTRY.get(job_type).validate({"key": key})


# --- backfills --------------------------------------------------------------------------------


def make_plan(source: type[Source], **spec: Any) -> Plan:
    backfill = BackfillSpec.model_validate({"source": source.name, **spec})
    return Plan.from_spec("backfill-1", backfill, source, REGISTRY, PUBLIC_IDS)


def test_the_settings_server_vouches_for_its_items_but_a_file_does_not() -> None:
    item = Item("1", {"id": ENTRY["id"], "entry": ENTRY}, {})
    assert make_plan(ArxivSource).job(item).message.payload["entry"] == ENTRY
    templated = make_plan(ArxivSource, payload={"id": "{id}", "entry": "{entry}", "force": True})
    assert templated.job(item).message.payload["force"] is True
    forged = make_plan(ArxivSource, payload={"id": "{id}", "entry": {**ENTRY, "title": "{id}"}})
    with pytest.raises(RemoteFieldForbidden):
        forged.job(item)
    with pytest.raises(RemoteFieldForbidden):
        make_plan(FileSource, job_type="ingest_arxiv").job(item)
    local = make_plan(FileSource, job_type="ingest_arxiv", remote=False)
    assert local.job(item).message.payload["entry"] == ENTRY


def test_a_backfill_or_redrive_of_unknown_origin_counts_as_remote() -> None:
    assert BackfillSpec(source="file").remote
    assert RedriveSpec.from_json({"filter": {}, "change": {}}).remote
    local = RedriveSpec(LetterFilter(), remote=False)
    assert RedriveSpec.from_json(local.to_json()) == local


# --- redrives ---------------------------------------------------------------------------------


def make_letter(job_type: str, payload: dict[str, Any]) -> StoredLetter:
    message = JobMessage(job_id="job-1", job_type=job_type, payload=payload)
    info = DeadLetterInfo(Reason.EXHAUSTED, f"hot.{job_type}")
    return StoredLetter("job-1", message.encode(), info)


@pytest.mark.parametrize(
    ("change", "is_allowed"),
    [
        (Change(), True),
        (Change(priority=3), True),
        (Change(to="backfill.everything"), True),
        (Change(merge={"plain": "c"}), True),
        (Change(merge={"marked": None}), True),
        (Change(merge={"marked": "/b"}), False),
        (Change(merge={"renamed": "/b"}), False),
        (Change(payload={"marked": "/a"}), True),
        (Change(payload={"marked": "/b"}), False),
        (Change(values={"payload.marked": "/b"}), False),
        (Change(jq='.marked = "/b"'), False),
    ],
)
def test_a_remote_redrive_can_not_change_local_fields(change: Change, is_allowed: bool) -> None:
    letter = make_letter("everything", {"marked": "/a", "plain": "b"})
    make_copy(letter, change, REGISTRY)
    if is_allowed:
        make_copy(letter, change, REGISTRY, remote=True)
        return
    with pytest.raises(InvalidRedrive, match="can't be set from outside"):
        make_copy(letter, change, REGISTRY, remote=True)


def test_a_remote_redrive_to_another_type_can_not_fill_its_local_field() -> None:
    letter = make_letter("noop", {"file": "/etc/passwd"})
    with pytest.raises(InvalidRedrive, match="file can't be set from outside"):
        make_copy(letter, Change(to="hot.other"), REGISTRY, remote=True)


def test_a_remote_redrive_may_correct_an_invalid_payload() -> None:
    letter = make_letter("ingest_document", {"path": "/a", "filename": 7})
    message, _ = make_copy(letter, Change(merge={"filename": "a"}), REGISTRY, remote=True)
    assert message.payload == {"path": "/a", "filename": "a"}


@pytest.mark.parametrize(
    ("filters", "change", "hint"),
    [
        ({}, {"merge": {"path": "/b"}}, "name the job_type in the filter"),
        ({"job_type": "ingest_document"}, {"merge": {"path": "/b"}}, "POST /documents"),
        ({"job_type": "noop"}, {"merge": {"path": "/b"}, "to": "hot.ingest_document"}, "path"),
        ({}, {"payload": {"path": "/b"}}, "give `merge` with the other fields"),
        ({"job_type": "everything"}, {"merge": {"file": "/b"}}, "renamed"),
    ],
)
def test_a_change_of_a_local_field_is_refused_when_it_is_requested(
    filters: Any, change: Any, hint: str
) -> None:
    spec = RedriveSpec(LetterFilter(**filters), Change(**change))
    with pytest.raises(InvalidRequest, match=hint):
        spec.check_remote(REGISTRY)


@pytest.mark.parametrize(
    ("filters", "change"),
    [
        ({}, {}),
        ({}, {"merge": {"path": None, "title": "T"}}),
        ({"job_type": "noop"}, {"merge": {"path": "/b"}}),
        ({}, {"merge": {"path": "/b"}, "to": "hot.noop"}),
        ({"job_type": "unknown"}, {"merge": {"path": "/b"}}),
    ],
)
def test_a_change_of_other_fields_is_allowed(filters: Any, change: Any) -> None:
    RedriveSpec(LetterFilter(**filters), Change(**change)).check_remote(REGISTRY)
