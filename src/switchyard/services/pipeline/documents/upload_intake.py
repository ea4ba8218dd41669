"""Store uploads as they come in, start their jobs, and remove uploads that no job reads. Whether a
file was sent before, `DocumentService.submit` decides."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import TypeAdapter, ValidationError

from switchyard.broker.errors import PublishError
from switchyard.broker.message import Tags, describe
from switchyard.services.common.errors import InvalidInput
from switchyard.services.common.files.charsets import Charset
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_quota import Quota
from switchyard.services.common.files.uploads import Upload, receive
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry
from switchyard.services.engine.publishing.preparing import (
    NOTICE_KEY,
    InvalidJob,
    JobRequest,
    check_notify_url,
)
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.records.requests import MAX_NOTIFY_URL, checked_source
from switchyard.services.engine.runtime.inline import InlineRunner
from switchyard.services.pipeline.text.plain_text import clean

_FORM_FIELDS = ("source", "title", "lane", "tags", "notify_url")
_TAGS: TypeAdapter[dict[str, str]] = TypeAdapter(Tags)


class JobStarter(Protocol):
    """Starts jobs: a JobPublisher where there is a broker, an InlineRunner where there is none."""

    async def publish(self, request: JobRequest) -> Published: ...


class InvalidUploadMetadata(InvalidInput):
    """A field that describes a file is invalid."""


@dataclass(frozen=True, slots=True)
class UploadMetadata:
    """The metadata that a sender gives for a file. No part of it is ever used as a path."""

    filename: str | None = None
    source: str | None = None
    title: str | None = None
    lane: Literal["hot", "backfill"] = "hot"
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the job, and of all jobs that follow from it."""
    notify_url: str | None = None
    """Address that is notified of the end of the pipeline."""
    asked_by: str = "api"
    """The job's source, by which fair shares and spend are counted; `source` is where the file
    comes from."""
    may_read: bool = True
    """Whether the sender may see what others have sent."""

    @classmethod
    def from_fields(
        cls,
        filename: str | None,
        fields: Mapping[str, str],
        *,
        asked_by: str,
        may_read: bool = True,
    ) -> UploadMetadata:
        """Read the fields of a form: `source`, `title`, `lane`, `tags`, `notify_url`. Raises
        InvalidUploadMetadata for an unknown field, a value that is too long, an unknown lane, or
        tags that can't be read."""
        values = {name: clean(value) for name, value in fields.items()}
        unknown = sorted(set(values) - set(_FORM_FIELDS))
        if unknown:
            known = ", ".join(_FORM_FIELDS)
            raise InvalidUploadMetadata(f"there is no field {unknown[0][:50]!r}: use {known}")
        for name, limit in (("title", 1000), ("notify_url", MAX_NOTIFY_URL)):
            if len(values.get(name, "")) > limit:
                raise InvalidUploadMetadata(f"{name} has more than {limit:,} characters")
        try:
            checked_source(values.get("source", ""))
        except ValueError as error:
            raise InvalidUploadMetadata(str(error)) from error
        lane = values.get("lane") or "hot"
        if lane not in ("hot", "backfill"):
            raise InvalidUploadMetadata(f"lane must be hot or backfill, not {lane[:50]!r}")
        base_name = clean(filename or "").replace("\\", "/").rpartition("/")[2][-255:]
        return cls(
            filename=base_name or None,
            source=values.get("source") or None,
            title=values.get("title") or None,
            lane="hot" if lane == "hot" else "backfill",
            tags=_tags_of(values.get("tags") or "{}"),
            notify_url=values.get("notify_url") or None,
            asked_by=asked_by,
            may_read=may_read,
        )

    def payload(self, upload: Upload, *names: str) -> dict[str, str]:
        """Return the payload of a job that reads the upload, with the named fields that are set."""
        values = {name: getattr(self, name) for name in names}
        return {"key": upload.key} | {name: value for name, value in values.items() if value}


def _tags_of(text: str) -> dict[str, str]:
    try:
        return _TAGS.validate_json(text)
    except ValidationError as error:
        raise InvalidUploadMetadata(
            f'tags are a JSON object such as {{"team": "search"}}: {describe(error)}'
        ) from error


def check_source(source: str, registry: Registry) -> None:
    """Raise InvalidUploadMetadata for a source whose documents a job type of this system fetches
    itself, such as `arxiv:…` (`ingest_arxiv`): only that job knows that a document comes from
    there."""
    scheme, colon, _ = source.partition(":")
    name = f"ingest_{scheme.strip().lower()}"
    if colon and any(each.name == name for each in registry):
        raise InvalidUploadMetadata(
            f"source {scheme}:… is for documents that {name} has fetched from there: publish that "
            "job, or name another source"
        )


class UploadIntake:
    """Takes uploads in and starts their jobs."""

    def __init__(
        self, settings: Settings, starter: JobStarter, inline: InlineRunner | None
    ) -> None:
        self.storage = Storage(settings.files_url, fail_fast=True)
        self.max_bytes = settings.max_document_bytes
        self._settings = settings
        self._quota = Quota(self.storage, settings.storage_quota)
        self._starter = starter
        self._inline = inline

    @property
    def is_inline(self) -> bool:
        """Whether jobs run in this process, as there is no broker, and their callers wait for
        them."""
        return self._inline is not None

    async def receive(
        self,
        parts: AsyncIterable[bytes],
        filename: Callable[[], str | None] = lambda: None,
        charset: Callable[[], Charset | None] = lambda: None,
    ) -> Upload:
        """Store an upload as it comes in. `filename` and `charset` are called after its first part,
        when they are known.

        Raises StorageFull, UnsupportedDocument, DocumentTooLarge, and what `parts` raises; then
        nothing is kept.
        """
        await self._quota.check()
        metered = self._quota.metered(parts)
        return await receive(self.storage, metered, filename, charset, max_bytes=self.max_bytes)

    def check(self, metadata: UploadMetadata) -> None:
        """Check that the sender can be notified of the end. Raises InvalidJob."""
        if metadata.notify_url is None:
            return
        if self.is_inline:
            raise InvalidJob("notify_url needs a broker: set JOBS_AMQP_URL", at="notify_url")
        check_notify_url(metadata.notify_url, self._settings)

    async def require_room(self) -> None:
        """Check that the storage's quota has room. Raises StorageFull."""
        await self._quota.check()

    async def publish(self, request: JobRequest) -> Published:
        """Start a job that reads no upload. Raises PublishError, InvalidJob, InvalidPayload and
        LedgerUnavailable."""
        return await self._starter.publish(request)

    async def discard(self, upload: Upload) -> None:
        """Remove an upload that no job works on."""
        await self.storage.delete_async(upload.key)
        self._quota.release(upload.size)

    async def start(self, request: JobRequest, upload: Upload) -> Published:
        """Start a job that reads the upload.

        Raises PublishError, InvalidJob, InvalidPayload and LedgerUnavailable; then the upload is
        removed, unless a job may have been started nevertheless.
        """
        try:
            return await self._starter.publish(request)
        except PublishError as error:
            if error.left_nothing:
                await self.discard(upload)
            raise
        except (InvalidJob, InvalidPayload):
            await self.discard(upload)
            raise

    async def add_notice(self, metadata: UploadMetadata, job_id: str) -> None:
        """Notify a sender of the end of a run that another sender has started. The notice contains
        errors only if the sender may read. Raises as `start` does."""
        notice: dict[str, Any] = {"url": metadata.notify_url, "job_id": job_id}
        if not metadata.may_read:
            notice["errors"] = False
        await self.publish(JobRequest(NOTICE_KEY, notice, source=metadata.asked_by, vouched=notice))

    async def wait_for(self, job_id: str | None) -> None:
        """Wait for the end of a job and of all jobs that follow from it, if they run in this
        process; otherwise return at once."""
        if self._inline is not None and job_id is not None:
            await self._inline.finish(job_id)
