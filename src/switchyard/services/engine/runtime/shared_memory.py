"""A page of memory that a worker shares with the process of one job.

The process writes what its job says of itself, and needs no system call for it; the worker looks
now and then, and finds the last word also of a process that was killed. The process is hostile, for
it opens foreign files: what it writes is bounded, and is parsed as foreign input.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from struct import Struct
from typing import Any

from switchyard.services.engine.jobs.progress_buffer import MAX_CHECKPOINT, ProgressBuffer

_HALF_HEADER = Struct("<II")
"""Before the data of a half: length and checksum."""
_TOKEN_BYTES = 16
_READS = 8
"""Tries to read a half that is being written meanwhile."""


@dataclass(frozen=True, slots=True)
class _DoubleBuffer:
    """One value in two halves: the half that is not read is written, and then becomes the one that
    is read. The first byte says which it is."""

    offset: int
    capacity: int

    @property
    def end(self) -> int:
        return self._half(2)

    def _half(self, which: int) -> int:
        return self.offset + 8 + which * (_HALF_HEADER.size + self.capacity)

    def write(self, memory: mmap.mmap, data: bytes) -> None:
        which = 1 - (memory[self.offset] & 1)
        at = self._half(which)
        memory[at + _HALF_HEADER.size : at + _HALF_HEADER.size + len(data)] = data
        _HALF_HEADER.pack_into(memory, at, len(data), zlib.crc32(data))
        memory[self.offset] = which

    def read(self, descriptor: int) -> bytes:
        """Return what was written last; nothing where nothing was, or nothing that can be read."""
        for _ in range(_READS):
            active = os.pread(descriptor, 1, self.offset)
            at = self._half(active[0] & 1 if active else 0)
            head = os.pread(descriptor, _HALF_HEADER.size, at)
            if len(head) < _HALF_HEADER.size:
                break
            length, checksum = _HALF_HEADER.unpack(head)
            data = os.pread(descriptor, min(length, self.capacity), at + _HALF_HEADER.size)
            if zlib.crc32(data) == checksum:
                return data
        return b""


_PROGRESS = _DoubleBuffer(0, 4096)
_CHECKPOINT = _DoubleBuffer(_PROGRESS.end, MAX_CHECKPOINT + _TOKEN_BYTES + 2)
SIZE = _CHECKPOINT.end
"""Bytes of a page."""


@dataclass(frozen=True, slots=True)
class SharedProgressAddress:
    """Address by which a child process finds the shared page."""

    path: str
    token: bytes
    """Stands before all that this job writes: the path may soon be that of another job's page."""


class SharedProgressReader:
    """The worker's side: what the process has written."""

    def __init__(self, descriptor: int, address: SharedProgressAddress) -> None:
        self.address = address
        self._descriptor = descriptor
        self._seen: dict[_DoubleBuffer, bytes] = {}

    def hand_on(self, progress_buffer: ProgressBuffer) -> None:
        """Note what is new. What makes no sense is no news."""
        match self._new(_PROGRESS):
            case [None | int() | float() as fraction, str(note)]:
                progress_buffer.report(fraction, note)
        match self._new(_CHECKPOINT):
            case [data]:
                progress_buffer.keep(data)

    def _new(self, buffer: _DoubleBuffer) -> Any:
        # By pread and not through a map: where the process has truncated the file, pread returns
        # less, and a map would kill the worker (SIGBUS).
        data = buffer.read(self._descriptor)
        if not data.startswith(self.address.token) or self._seen.get(buffer) == data:
            return None
        self._seen[buffer] = data
        try:
            return json.loads(data[_TOKEN_BYTES:], parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return None


@contextmanager
def open_page() -> Iterator[SharedProgressReader]:
    """Open a shared page for one job, removed at the end of the block. On Linux it also ends with
    this process, however that ends: it is no file on a disk."""
    with _file() as (descriptor, path):
        os.ftruncate(descriptor, SIZE)
        yield SharedProgressReader(
            descriptor, SharedProgressAddress(path, secrets.token_bytes(_TOKEN_BYTES))
        )


@contextmanager
def _file() -> Iterator[tuple[int, str]]:
    if hasattr(os, "memfd_create"):  # on Linux
        descriptor = os.memfd_create("switchyard-page")
        try:
            yield descriptor, f"/proc/{os.getpid()}/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(prefix="switchyard-page-") as file:
        yield file.fileno(), file.name


class SharedProgressWriter:
    """The process's side: opened with the first word that is to be written."""

    def __init__(self, address: SharedProgressAddress) -> None:
        self.progress_buffer = ProgressBuffer(self._write)
        self._address = address
        self._turn = threading.Lock()
        self._memory: mmap.mmap | None = None

    def close(self) -> None:
        with self._turn:
            if self._memory is not None:
                self._memory.close()
            self._memory = None

    def _write(self) -> None:
        with self._turn:
            try:
                self._memory = self._memory or self._open()
            except OSError:
                return  # the worker has called this run off: its process is about to be killed
            notes = self.progress_buffer.take()
            if notes is None:
                return
            token = self._address.token
            if notes.progress is not None:
                progress = json.dumps([notes.progress.fraction, notes.progress.note])
                _PROGRESS.write(self._memory, token + progress.encode())
            if notes.checkpoint is not None:
                _CHECKPOINT.write(self._memory, token + f"[{notes.checkpoint}]".encode())

    def _open(self) -> mmap.mmap:
        descriptor = os.open(self._address.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)


@contextmanager
def writing_to(address: SharedProgressAddress) -> Iterator[ProgressBuffer]:
    """Yield a progress buffer that is written to that page."""
    writer = SharedProgressWriter(address)
    try:
        yield writer.progress_buffer
    finally:
        writer.close()
