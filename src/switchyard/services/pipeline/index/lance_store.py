"""Keep an index in LanceDB: a directory or an object store with a table for each generation.

The catalogue of generations has a file for each of its states, which only one process can create.
The creation of a table has such a file, too, its marker: two processes that created a table at once
would overwrite one another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from switchyard.services.common.durations import PollPauses
from switchyard.services.common.files.errors import (
    NotStored,
    StorageUnavailable,
    describe_store_error,
)
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.library_loading import load
from switchyard.services.engine.identity.postgres import without_credentials
from switchyard.services.pipeline.index.chunk_index import (
    ChunkIndex,
    IndexMismatch,
    IndexUnavailable,
    recovery_hint,
)
from switchyard.services.pipeline.index.generations import (
    FIRST_TABLE,
    Generation,
    Generations,
    decode_state,
    encode_state,
)
from switchyard.services.pipeline.index.lance_commits import FIRST_RETRY_DELAY
from switchyard.services.pipeline.index.lance_table import WORDS_COLUMN, LanceTable, table_schema
from switchyard.services.pipeline.index.native_memory import configure_malloc
from switchyard.services.pipeline.index.word_index import TOKENIZER_VERSION, add_word_index

_CREATION_TIMEOUT = 30.0
"""Seconds after which a creation's marker belongs to a process that died."""
_COMPACTION_TIMEOUT = 600.0
"""Seconds after which a compaction's marker belongs to a process that died. Two compactions at once
do no harm: they only do the same work twice."""
_EMBEDDER_FIELD = b"embedder"
_TOKENIZER_FIELD = b"wording"
"""Names of these fields in a table's metadata."""
_STATES_FOLDER = "generations"
"""Folder of the catalogue."""
_MAX_STATE_BYTES = 100_000
"""Largest state, in bytes."""
INDEX_CACHE = 256 * 1024**2
"""Bytes of the indexes that a process keeps in memory: 100,000 vectors of 256 numbers are 26 MB. A
search reads the other parts again."""
_METADATA_CACHE = 64 * 1024**2
"""Bytes of the metadata of files and schemas that a process keeps in memory."""
_LANCE_ERROR_TYPES = (RuntimeError, ValueError, OSError)
_STORE_ERRORS = (
    "Generic S3 error",
    "Generic MicrosoftAzure error",
    'store: "S3"',
    'store: "MicrosoftAzure"',
    "lacked the necessary privileges",
    "lacked valid authentication",
)
"""Texts of LanceDB's errors for an object store that does not answer, or refuses."""
_NO_ANSWER = "does not answer"


def _import_lancedb() -> Any:
    """Import LanceDB. Its log goes to stderr as plain text, among our lines of JSON, and warns of
    harmless things: only errors are let through, unless LANCEDB_LOG says otherwise."""
    os.environ.setdefault("LANCEDB_LOG", "error")
    configure_malloc()  # before LanceDB begins its threads
    return import_module("lancedb")


class LanceStore:
    """An index at an address of LanceDB. Each use opens a new connection, which sees what others
    have written. All connections share a cache of the indexes' files, which never change."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.location = without_credentials(url)
        self._files = Storage(as_url(url))
        """Files beside the tables: the catalogue's states, markers, progress and probes."""
        self._session: Any = None

    async def load(self) -> None:
        await load("lancedb", by=_import_lancedb)

    async def generations(self, default: Generation) -> Generations:
        with self._translate_errors():
            return await self._generations(default)

    async def _generations(self, default: Generation) -> Generations:
        keys = [stored.key async for stored in self._files.list_async(_STATES_FOLDER)]
        state_keys = [key for key in keys if key.endswith(".json")]
        if state_keys:
            return decode_state(
                await self._files.get_async(max(state_keys), max_bytes=_MAX_STATE_BYTES)
            )
        async with self._connect() as connection:
            table = await _open_table(connection, FIRST_TABLE)
            if table is None:
                return Generations(default)
            embedder, dimensions = _read_embedder(await table.schema())
        return Generations(Generation(FIRST_TABLE, embedder, dimensions))

    async def put_state(self, state: Generations) -> bool:
        # Numbers are padded, so that the last key by name is the newest.
        key = f"{_STATES_FOLDER}/{state.number:08d}.json"
        with self._translate_errors():
            return await self._files.put_new_async(key, encode_state(state))

    @asynccontextmanager
    async def table(self, generation: Generation) -> AsyncIterator[ChunkIndex]:
        with self._translate_errors():
            async with self._connect() as connection:
                table = await _open_table(connection, generation.table)
                if table is None:
                    table = await self._create(connection, generation)
                schema = await table.schema()
                _require_embedder(schema, generation)
                yield LanceTable(table, generation.dimensions, _text_index_version(schema))

    @asynccontextmanager
    async def compacting(self, generation: Generation) -> AsyncIterator[bool]:
        marker = f"{generation.table}.compacting"
        with self._translate_errors():
            await self._drop_stale(marker, _COMPACTION_TIMEOUT)
            is_ours = await self._files.put_new_async(marker, b"")
            try:
                yield is_ours
            finally:
                if is_ours:
                    await self._files.delete_async(marker)

    async def text_index_version(self, generation: Generation) -> int | None:
        with self._translate_errors():
            async with self._connect() as connection:
                table = await _open_table(connection, generation.table)
                return None if table is None else _text_index_version(await table.schema())

    async def drop(self, generation: Generation) -> None:
        with self._translate_errors():
            async with self._connect() as connection:
                await connection.drop_table(generation.table, ignore_missing=True)
            await self._files.delete_async(_progress_key(generation))
            await self._files.delete_async(_probe_key(generation))

    async def put_progress(self, generation: Generation, text: str) -> None:
        with self._translate_errors():
            await self._files.put_async(_progress_key(generation), text.encode())

    async def progress(self, generation: Generation) -> str | None:
        return await self._read(_progress_key(generation))

    async def probe(self, generation: Generation) -> str | None:
        return await self._read(_probe_key(generation))

    async def put_probe(self, generation: Generation, text: str) -> str:
        with self._translate_errors():
            is_new = await self._files.put_new_async(_probe_key(generation), text.encode())
        return text if is_new else (await self.probe(generation) or text)

    async def _read(self, key: str) -> str | None:
        try:
            with self._translate_errors():
                text = await self._files.get_async(key, max_bytes=_MAX_STATE_BYTES)
        except NotStored:
            return None
        return text.decode(errors="replace")

    async def close(self) -> None:
        self._session = None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise IndexUnavailable where the store does not answer within the block."""
        try:
            yield
        except StorageUnavailable as error:
            reason = (
                describe_store_error(error.__cause__)
                if isinstance(error.__cause__, Exception)
                else _NO_ANSWER
            )
            raise IndexUnavailable(f"the index at {self.location} {reason}") from error
        except (RuntimeError, ValueError, OSError) as error:
            # Lance has no class for such an error; this project's errors have classes of their own.
            text = str(error)
            if type(error) not in _LANCE_ERROR_TYPES or not any(
                each in text for each in _STORE_ERRORS
            ):
                raise
            raise IndexUnavailable(
                f"the index at {self.location} {describe_store_error(error)}"
            ) from error

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Any]:
        await self.load()
        lancedb = _import_lancedb()
        if self._session is None:
            self._session = lancedb.Session(INDEX_CACHE, _METADATA_CACHE)
        connection: Any = await lancedb.connect_async(self._url, session=self._session)
        try:
            yield connection
        finally:
            connection.close()

    async def _create(self, connection: Any, generation: Generation) -> Any:
        """Create the table of a generation, or open the one that another process has created
        first."""
        marker = f"{generation.table}.creating"
        pauses = PollPauses(FIRST_RETRY_DELAY, 1.0, 2 * _CREATION_TIMEOUT)
        while (pause := pauses.next()) is not None:
            if await self._files.put_new_async(marker, b""):
                try:
                    table = await _open_table(connection, generation.table)
                    if table is None:
                        metadata = {
                            _EMBEDDER_FIELD: generation.embedder.encode(),
                            _TOKENIZER_FIELD: str(TOKENIZER_VERSION).encode(),
                        }
                        schema = table_schema(generation.dimensions).with_metadata(metadata)
                        table = await connection.create_table(generation.table, schema=schema)
                        await add_word_index(table, WORDS_COLUMN)
                    return table
                finally:
                    await self._files.delete_async(marker)
            await asyncio.sleep(pause)
            table = await _open_table(connection, generation.table)
            if table is not None:
                return table
            await self._drop_stale(marker, _CREATION_TIMEOUT)
        raise IndexUnavailable(
            f"another process has been creating the index at {self.location} for too long"
        )

    async def _drop_stale(self, marker: str, timeout: float) -> None:
        """Delete a marker that nobody has renewed for `timeout` seconds, by the store's own clock:
        by this host's clock, a living process might lose its marker. A marker with a time in the
        future was made before the store's clock was set back."""
        stored = await self._files.stat_async(marker)
        if stored is None:
            return
        clock_key = f"{marker}.clock"
        await self._files.put_async(clock_key, b"")
        clock_file = await self._files.stat_async(clock_key)
        await self._files.delete_async(clock_key)
        if clock_file is None:  # another process asks at the same time
            return
        if abs((clock_file.modified - stored.modified).total_seconds()) > timeout:
            await self._files.delete_async(marker)


def as_url(address: str) -> str:
    """Return the address of a directory as a URL; any other as it is."""
    return address if "://" in address else Path(address).absolute().as_uri()


async def _open_table(connection: Any, name: str) -> Any | None:
    try:
        return await connection.open_table(name)
    except ValueError as error:
        if "not found" not in str(error):
            raise
        return None


def _read_embedder(schema: Any) -> tuple[str, int]:
    embedder = (schema.metadata or {}).get(_EMBEDDER_FIELD, b"unknown").decode()
    return embedder, schema.field("vector").type.list_size


def _text_index_version(schema: Any) -> int:
    """Return the TOKENIZER_VERSION of a table's words; 0 where it has no column of words."""
    version = (schema.metadata or {}).get(_TOKENIZER_FIELD, b"")
    return int(version) if version.isdigit() and WORDS_COLUMN in schema.names else 0


def _require_embedder(schema: Any, generation: Generation) -> None:
    embedder_name, length = _read_embedder(schema)
    if (embedder_name, length) != (generation.embedder, generation.dimensions):
        raise mismatch(embedder_name, length, generation)


def mismatch(embedder_name: str, length: int, configured: Generation) -> IndexMismatch:
    """Return the error for a table that is another embedder's."""
    return IndexMismatch(
        f"the index holds vectors of {embedder_name!r}, length {length}; this process embeds with "
        f"{configured.embedder!r}, length {configured.dimensions}: "
        f"{recovery_hint(embedder_name, length)}, or `jobctl index rebuild` for an index of this "
        "embedder"
    )


def _progress_key(generation: Generation) -> str:
    return f"{generation.table}.noted"


def _probe_key(generation: Generation) -> str:
    return f"{generation.table}.probe"
