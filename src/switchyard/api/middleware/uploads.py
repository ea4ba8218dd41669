"""Read a `multipart/form-data` upload as it comes in: fields are kept in memory, the file never is.

FastAPI's own form parser writes the whole file to a temporary one before the handler sees it, so
a limit would be checked too late. Here the handler pulls the file's parts from the socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from switchyard.api.http.problems import Problem
from switchyard.services.common.files.charsets import Charset, charset_of

MAX_FIELD_BYTES = 64 * 1024
"""Most bytes of all fields together."""
MAX_FIELDS = 32
MAX_HEADER_BYTES = 16 * 1024
"""Most bytes of the headers of one part of the form."""
FILE_FIELD = "file"


class InvalidUpload(Problem):
    """The request is not a form with one file in it; the text says what is missing."""

    def __init__(self, text: str) -> None:
        super().__init__("malformed-request", text)


@dataclass
class _Part:
    name: str = ""
    filename: str | None = None
    charset: Charset | None = None
    header: bytearray = field(default_factory=bytearray)
    header_name: str = ""
    header_size: int = 0
    is_file: bool = False


class UploadForm:
    """An upload. Read `file()` to its end, then call `rest()`; then `fields` is complete."""

    def __init__(self, request: Request) -> None:
        kind, options = parse_options_header(request.headers.get("content-type"))
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidUpload("send the file as multipart/form-data, in the field 'file'")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.charset: Charset | None = None
        """The charset in the Content-Type of the file's part."""
        self._chunks = request.stream()
        self._part = _Part()
        self._values: dict[str, bytearray] = {}
        self._data: deque[bytes] = deque()
        self._file_count = 0
        self._file_ended = False
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_part_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:  # over the boundary
            raise InvalidUpload(f"not a valid form: {error}") from error

    async def file(self) -> AsyncIterator[bytes]:
        """Yield the file in the parts in which it comes. Raises InvalidUpload when there is no
        file, or the form ends in the middle of it, and what the connection raises."""
        while True:
            while self._data:
                yield self._data.popleft()
            if self._file_ended:
                return
            if not await self._read():
                raise InvalidUpload(
                    "the upload ends in the middle of its file"
                    if self._file_count
                    else f"the form has no file in a field {FILE_FIELD!r}"
                )

    async def rest(self) -> None:
        """Read the parts behind the file. Raises InvalidUpload."""
        while await self._read():
            pass
        if not self._ended:
            raise InvalidUpload("the form is cut off: its last boundary is missing")
        try:
            self.fields = {name: bytes(raw).decode() for name, raw in self._values.items()}
        except UnicodeDecodeError as error:
            raise InvalidUpload("the form's fields must be UTF-8") from error

    async def _read(self) -> bool:
        """Feed the parser with the next bytes. Returns False at the end of the request."""
        try:
            chunk = await anext(self._chunks)
        except StopAsyncIteration:
            return False
        except ClientDisconnect as error:
            raise InvalidUpload("the sender broke off") from error
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise InvalidUpload(f"not a valid form: {error}") from error
        return True

    # --- what the parser finds ----------------------------------------------------------------

    def _on_part_begin(self) -> None:
        self._part = _Part()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._add_header(data[start:end])
        self._part.header_name += data[start:end].decode("latin-1").lower()

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._add_header(data[start:end])
        self._part.header += data[start:end]

    def _add_header(self, data: bytes) -> None:
        self._part.header_size += len(data)
        if self._part.header_size > MAX_HEADER_BYTES:
            raise InvalidUpload("a part of the form has too long headers")

    def _on_header_end(self) -> None:
        part = self._part
        if part.header_name == "content-disposition":
            _, options = parse_options_header(bytes(part.header))
            part.name = options.get(b"name", b"").decode("utf-8", "replace")
            if b"filename" in options:
                part.filename = options[b"filename"].decode("utf-8", "replace")
        elif part.header_name == "content-type":
            part.charset = charset_of(part.header.decode("latin-1"))
        part.header_name = ""
        part.header.clear()

    def _on_headers_finished(self) -> None:
        part = self._part
        part.is_file = part.name == FILE_FIELD
        if part.is_file:
            self._file_count += 1
            if self._file_count > 1:
                raise InvalidUpload("send one file at a time")
            self.filename = part.filename
            self.charset = part.charset
            return
        if part.name in self._values or len(self._values) >= MAX_FIELDS:
            raise InvalidUpload("a field of the form is there twice, or there are too many")
        self._values[part.name] = bytearray()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part.is_file:
            self._data.append(data[start:end])
            return
        value = self._values[self._part.name]
        value += data[start:end]
        if sum(map(len, self._values.values())) > MAX_FIELD_BYTES:
            raise InvalidUpload(
                f"the form's fields are too long: all but the file have {MAX_FIELD_BYTES:,} bytes "
                f"in all, and {self._part.name[:50]!r} is beyond that"
            )

    def _on_part_end(self) -> None:
        if self._part.is_file:
            self._file_ended = True

    def _on_end(self) -> None:
        self._ended = True
