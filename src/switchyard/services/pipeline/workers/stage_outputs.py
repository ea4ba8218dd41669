"""Keep the outputs of the pipeline's stages, so that a repeat finds them instead of working again.

A stage writes `intermediate/{document_id}/{stage}/output.json` when it is done, with a hash of its
input. A repeat (a redelivery, a redrive, the same content again) finds it. A change of the input,
of the settings that matter, or of the stage's version makes another hash, so that the stage and
those after it run again.

A document may get other content while its pipeline runs: a new version of a paper. So each output
says of which content it was made. Outputs of the old content are not written any more: the run that
brought the new content makes all of them again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import (
    content_hash,
    figures_key,
    result_key,
    stage_key,
)
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.pipeline.workers.stages import EXTRACT, INGEST, ContentReplaced, Stage

if TYPE_CHECKING:  # imported where a PDF is read
    from switchyard.services.common.settings import Settings
    from switchyard.services.pipeline.text.ocr import SourceFile
    from switchyard.services.pipeline.text.partial_results import Drafts

_log = logging.getLogger(__name__)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class StageOutput:
    """The output of a stage."""

    result: dict[str, Any]
    input_hash: str
    output_hash: str
    """Hash of `result`, which is the next stage's input."""
    reused: bool = False
    """Whether the output was stored by an earlier run."""
    content: str | None = None
    """Hash of the first stage's output from which this output was made; None if it was not
    recorded."""


class MissingOutput(PermanentError):
    """An earlier stage's output was deleted, or never made."""


@dataclass(frozen=True, slots=True)
class DocumentFiles:
    """The stored files of one document's stages. In all methods, `content` is the hash of the first
    stage's output, by which other content of the document is recognised."""

    storage: Storage
    document_id: str

    @classmethod
    def for_document(cls, ctx: JobContext, document_id: str) -> DocumentFiles:
        return cls(Storage(ctx.settings.files_url), document_id)

    def output_of(self, stage: Stage) -> StageOutput:
        """Return the output of an earlier stage. Raises MissingOutput, ContentReplaced."""
        output = self._required_output(stage, self._read(stage))
        if stage is not INGEST:
            _require_same_content(output.content, self._read(INGEST))
        return output

    async def output_of_async(self, stage: Stage) -> StageOutput:
        """Do what `output_of` does, without blocking the event loop."""
        output = self._required_output(stage, await self._read_async(stage))
        if stage is not INGEST:
            await self.require_content_async(output.content)
        return output

    async def require_content_async(self, content: str | None) -> None:
        """Check that the document still has this content; None stands for any content. Raises
        ContentReplaced."""
        _require_same_content(content, await self._read_async(INGEST))

    def reuse_or_run(
        self,
        stage: Stage,
        input_hash: str,
        compute: Callable[[], Mapping[str, Any]],
        *,
        content: str | None,
        force: bool = False,
    ) -> StageOutput:
        """Return the stored output for this input, or call `compute` and store its result;
        `content` is that from which the input was made. Raises ContentReplaced."""
        stored = None if force else self._read(stage)
        if _is_reusable(stored, stage, input_hash):
            envelope, reused = {**stored, "content": content}, True
        else:
            envelope, reused = _envelope(stage, input_hash, content, compute()), False
        if envelope != stored:
            _require_same_content(content, self._read(INGEST))
            self.storage.put(self._key(stage), _encode_result(envelope))
        return _stage_output(envelope, reused=reused)

    async def reuse_or_run_async(
        self,
        stage: Stage,
        input_hash: str,
        compute: Callable[[], Awaitable[Mapping[str, Any]]],
        *,
        content: str | None,
        force: bool = False,
        is_complete: Callable[[Mapping[str, Any]], Awaitable[bool]] | None = None,
    ) -> StageOutput:
        """Do what `reuse_or_run` does, without blocking the event loop. `is_complete` tells whether
        everything that a stored result refers to still exists, such as pictures."""
        stored = None if force else await self._read_async(stage)
        if _is_reusable(stored, stage, input_hash) and (
            is_complete is None or await is_complete(stored["result"])
        ):
            envelope, reused = {**stored, "content": content}, True
        else:
            envelope, reused = _envelope(stage, input_hash, content, await compute()), False
        if envelope != stored:
            await self._store_async(stage, envelope)
        return _stage_output(envelope, reused=reused)

    async def replace_async(
        self, stage: Stage, earlier_output: StageOutput, result: Mapping[str, Any]
    ) -> StageOutput:
        """Replace the output of an earlier stage by a result that a later stage has completed, as
        OCR does. Raises ContentReplaced."""
        envelope = _envelope(stage, earlier_output.input_hash, earlier_output.content, result)
        await self._store_async(stage, envelope)
        return _stage_output(envelope, reused=False)

    async def put_result_async(self, result: Mapping[str, Any]) -> str:
        """Write the document's `result.json`. Returns its key."""
        key = result_key(self.document_id)
        await store_json(self.storage, key, result)
        return key

    def source_file(
        self, ingest_result: Mapping[str, Any], content: str | None, settings: Settings
    ) -> SourceFile:
        """Return the original file, for a process that reads pictures of its pages. `ingest_result`
        is the result of the first stage."""
        from switchyard.services.pipeline.text.ocr import SourceFile

        return SourceFile(
            self.storage,
            ingest_result["key"],
            content or "",
            ingest_result["media_type"],
            settings.pdf_extractor,
        )

    async def figures(self, content: str | None) -> list[dict[str, Any]]:
        """Return the described figures of this content; none where they were not described."""
        stored = await self.storage.get_json_async(figures_key(self.document_id))
        return (
            list(stored["figures"]) if stored is not None and stored["content"] == content else []
        )

    async def put_figures(self, content: str | None, figures: Sequence[Mapping[str, Any]]) -> None:
        """Write the list of the document's figures, whose pictures are stored already.
        `cleanup_expired` deletes pictures that only the previous list had."""
        value = {"document_id": self.document_id, "content": content, "figures": figures}
        await store_json(self.storage, figures_key(self.document_id), value)

    def _key(self, stage: Stage) -> str:
        return stage_key(self.document_id, stage.name)

    def _read(self, stage: Stage) -> dict[str, Any] | None:
        """Read the stored output of a stage; None where there is none, or an unreadable one."""
        try:
            return _parse_output(self.storage.get(self._key(stage)))
        except NotStored:
            return None

    async def _read_async(self, stage: Stage) -> dict[str, Any] | None:
        try:
            return _parse_output(await self.storage.get_async(self._key(stage)))
        except NotStored:
            return None

    async def _store_async(self, stage: Stage, envelope: Mapping[str, Any]) -> None:
        await self.require_content_async(envelope["content"])
        await store_json(self.storage, self._key(stage), envelope)

    def _required_output(self, stage: Stage, stored: Mapping[str, Any] | None) -> StageOutput:
        if stored is None:
            raise MissingOutput(
                f"there is no output of {stage.name} for document {self.document_id}: "
                "ingest the document again"
            )
        return _stage_output(stored, reused=True)


def drafts_of(
    storage: Storage,
    folder: str,
    content: str | None,
    extractor: str,
    *,
    keep_short: bool,
    run: str = "",
) -> Drafts:
    """Return the drafts of a PDF's pages, kept until its text is complete. With `keep_short`, those
    of short documents are kept as well, as references are looked up in them later. `content`
    identifies the file's content; `run` is the id of a run that reads the file again."""
    from switchyard.services.pipeline.text.partial_results import PAGES_PER_DRAFT, Drafts

    input_hash = content_hash([content, extractor, run])
    return Drafts(
        storage,
        folder,
        EXTRACT.name,
        input_hash,
        min_pages=1 if keep_short else PAGES_PER_DRAFT + 1,
    )


def _envelope(
    stage: Stage, input_hash: str, content: str | None, result: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "stage": stage.name,
        "version": stage.version,
        "input_hash": input_hash,
        "content": content,
        "output_hash": content_hash(result),
        "finished_at": time.time(),
        "result": dict(result),
    }


def _parse_output(raw: bytes) -> dict[str, Any] | None:
    """Read a stored output; None when the file is not one."""
    try:
        stored = json.loads(raw)
        if isinstance(stored["result"], dict) and isinstance(stored["output_hash"], str):
            return dict(stored)
    except (ValueError, KeyError, TypeError) as error:
        # Writes are atomic, so the file was changed by hand: running the stage again repairs it.
        _log.warning("stage output unreadable: %s", error)
    return None


def _is_reusable(
    stored: dict[str, Any] | None, stage: Stage, input_hash: str
) -> TypeGuard[dict[str, Any]]:
    return (
        stored is not None
        and stored.get("version") == stage.version
        and stored.get("input_hash") == input_hash
    )


def _stage_output(stored: Mapping[str, Any], *, reused: bool) -> StageOutput:
    content = stored["output_hash"] if stored.get("stage") == INGEST.name else stored.get("content")
    return StageOutput(
        stored["result"], stored["input_hash"], stored["output_hash"], reused, content
    )


def _require_same_content(content: str | None, first_output: Mapping[str, Any] | None) -> None:
    if content is not None and first_output is not None and first_output["output_hash"] != content:
        raise ContentReplaced


async def store_json(storage: Storage, key: str, value: Mapping[str, Any]) -> None:
    """Store a value as JSON, encoded in a thread: a book's references take long."""
    await storage.put_async(key, await asyncio.to_thread(_encode_result, value))


def _encode_result(value: Mapping[str, Any]) -> bytes:
    return _to_json(dict(value)).encode()


def _to_json(value: Any) -> str:
    """Encode the elements of lists one by one: all of a book's references in one call would keep
    other threads waiting for 0.3 s."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return (
            f"{{{','.join(f'{_encode(name)}:{_to_json(each)}' for name, each in value.items())}}}"
        )
    if isinstance(value, list):
        return f"[{','.join(map(_encode, value))}]"
    return _encode(value)
