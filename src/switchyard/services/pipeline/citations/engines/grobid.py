"""Parse references, and find those of whole PDFs, by GROBID over HTTP
(https://grobid.readthedocs.io)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from switchyard.services.common.durations import parse_retry_after
from switchyard.services.common.files.charsets import charset_of, decode
from switchyard.services.pipeline.citations.engines.confirmation import keep_confirmed
from switchyard.services.pipeline.citations.engines.grobid_tei import TeiEntry, entries_of
from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.sources.source_errors import (
    InvalidSourceResponse,
    SourceBusy,
    SourceRefused,
    SourceUnavailable,
)

if TYPE_CHECKING:
    import httpx

TIMEOUT = 180.0
"""Seconds for one request and its whole answer."""
MAX_BYTES = 50 * 1024 * 1024
"""Largest answer, in bytes."""
BUSY_RETRY_DELAY = 5.0
"""Seconds until the next request to a busy server that does not say how long to wait."""
BUSY_TIMEOUT = 60.0
"""Seconds that a job waits for a busy server before it goes back to its queue."""


class GrobidEngine:
    """Sends references to one GROBID server. While it is busy (429, 503), the job waits, which uses
    up no attempt."""

    name = "grobid"

    def __init__(self, base_url: str, *, busy_timeout: float = BUSY_TIMEOUT) -> None:
        self._base_url = base_url.rstrip("/")
        self._busy_timeout = busy_timeout

    async def parse(self, texts: Sequence[str]) -> list[Reference]:
        """Parse each reference, in order.

        Raises SourceBusy (no attempt), SourceUnavailable, InvalidSourceResponse, SourceRefused.
        """
        form = {"citations": [" ".join(text.split()) for text in texts]}
        body = await self._post("/api/processCitationList", data=form)
        entries = await asyncio.to_thread(entries_of, body)
        if len(entries) != len(texts):
            raise InvalidSourceResponse(
                f"GROBID was asked for {len(texts):,} references, and returned {len(entries):,}"
            )
        return [
            keep_confirmed(entry.reference, text, engine=self.name)
            for entry, text in zip(entries, texts, strict=True)
        ]

    async def references_of_pdf(self, pdf: bytes) -> list[TeiEntry]:
        """Find and parse the references of a paper. Raises as `parse` does."""
        body = await self._post(
            "/api/processReferences",
            data={"teiCoordinates": "biblStruct"},
            files={"input": ("input.pdf", pdf, "application/pdf")},
        )
        return await asyncio.to_thread(self._confirmed_entries, body)

    def _confirmed_entries(self, body: bytes) -> list[TeiEntry]:
        return [
            TeiEntry(
                keep_confirmed(each.reference, each.reference.text, engine=self.name), each.boxes
            )
            for each in entries_of(body)
            if each.reference.text
        ]

    async def _post(
        self, path: str, *, data: Mapping[str, Any], files: Mapping[str, Any] | None = None
    ) -> bytes:
        form = {**data, "includeRawCitations": "1", "consolidateCitations": "0"}
        deadline = asyncio.get_running_loop().time() + self._busy_timeout
        while True:
            status, headers, body = await self._fetch(path, form, files)
            if status == 204:  # nothing was found
                return b""
            if status == 200:
                return body
            retry_after = parse_retry_after(
                headers.get("retry-after", ""), date=headers.get("date", "")
            )
            if status not in (429, 503):
                excerpt = decode(body[:200], charset_of(headers.get("content-type")))
                if 400 <= status < 500 and status != 408:
                    raise SourceRefused(f"GROBID refuses the request with {status}: {excerpt}")
                raise SourceUnavailable(f"GROBID answers {status}: {excerpt}", after=retry_after)
            wait = BUSY_RETRY_DELAY if retry_after is None else retry_after
            if asyncio.get_running_loop().time() + wait > deadline:
                raise SourceBusy(f"GROBID is busy ({status})", wait=wait)
            await asyncio.sleep(wait)

    async def _fetch(
        self, path: str, form: Mapping[str, Any], files: Mapping[str, Any] | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        import httpx

        from switchyard.services.common.files.safe_http import uncompressed_client

        timeout = asyncio.timeout(TIMEOUT)
        try:
            async with (
                timeout,
                uncompressed_client(timeout=TIMEOUT, trust_env=False) as http,
                http.stream(
                    "POST",
                    self._base_url + path,
                    data=dict(form),
                    files=None if files is None else dict(files),
                    headers={"Accept": "application/xml"},
                ) as response,
            ):
                return response.status_code, dict(response.headers), await _read_body(response)
        except httpx.HTTPError as error:
            raise SourceUnavailable(
                f"GROBID can't be reached ({type(error).__name__}: {error})"[:300]
            ) from error
        except TimeoutError as error:
            if timeout.expired():
                raise SourceUnavailable(f"GROBID did not answer within {TIMEOUT:g} s") from error
            raise


async def _read_body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_BYTES:
            raise InvalidSourceResponse(f"GROBID's answer exceeds {MAX_BYTES:,} bytes")
    return bytes(body)
