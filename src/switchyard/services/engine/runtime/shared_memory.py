"""A page of memory that a worker shares with the process of one job.

The process writes its job's progress and checkpoints without a system call; the worker polls them,
and also finds the last ones of a killed process. The process may be hostile, as it opens foreign
files: its data is bounded, and parsed as foreign input.
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
_READ_ATTEMPTS = 8
"""Tries to read a half that is being written meanwhile."""


@dataclass(frozen=True, slots=True)
class _DoubleBuffer:
    """One value in two halves: the inactive half is written, and then becomes the active one, half
    is read. The first byte is the number of the active half."""

    offset: int
    capacity: int

    @property
    def end(self) -> int:
        return self._half(2)

    def _half(self, half: int) -> int:
        return self.offset + 8 + half * (_HALF_HEADER.size + self.capacity)

    def write(self, memory: mmap.mmap, data: bytes) -> None:
        half = 1 - (memory[self.offset] & 1)
        start = self._half(half)
        memory[start + _HALF_HEADER.size : start + _HALF_HEADER.size + len(data)] = data
        _HALF_HEADER.pack_into(memory, start, len(data), zlib.crc32(data))
        memory[self.offset] = half

    def read(self, descriptor: int) -> bytes:
        """Return the data that was written last; empty where there is none, or none that can be
        read."""
        for _ in range(_READ_ATTEMPTS):
            active = os.pread(descriptor, 1, self.offset)
            start = self._half(active[0] & 1 if active else 0)
            head = os.pread(descriptor, _HALF_HEADER.size, start)
            if len(head) < _HALF_HEADER.size:
                break
            length, checksum = _HALF_HEADER.unpack(head)
            data = os.pread(descriptor, min(length, self.capacity), start + _HALF_HEADER.size)
            if zlib.crc32(data) == checksum:
                return data
        return b""


_PROGRESS = _DoubleBuffer(0, 4096)
_CHECKPOINT = _DoubleBuffer(_PROGRESS.end, MAX_CHECKPOINT + _TOKEN_BYTES + 2)
SIZE = _CHECKPOINT.end
"""Bytes of a page."""


@dataclass(frozen=True, slots=True)
class SharedProgressAddress:
    """Address by half a child process finds the shared page."""

    path: str
    token: bytes
    """Prefix of all data of this job, as the path may soon be that of another job's page."""


class SharedProgressReader:
    """The worker's side: reads the data of the process."""

    def __init__(self, descriptor: int, address: SharedProgressAddress) -> None:
        self.address = address
        self._descriptor = descriptor
        self._last_read: dict[_DoubleBuffer, bytes] = {}

    def copy_to(self, progress_buffer: ProgressBuffer) -> None:
        """Copy new progress and checkpoints to a buffer; ignore invalid data."""
        match self._read_new(_PROGRESS):
            case [None | int() | float() as fraction, str(note)]:
                progress_buffer.report(fraction, note)
        match self._read_new(_CHECKPOINT):
            case [data]:
                progress_buffer.keep(data)

    def _read_new(self, buffer: _DoubleBuffer) -> Any:
        # By pread, not through a map: if the process has truncated the file, pread returns less,
        # but reading a map would kill the worker (SIGBUS).
        data = buffer.read(self._descriptor)
        if not data.startswith(self.address.token) or self._last_read.get(buffer) == data:
            return None
        self._last_read[buffer] = data
        try:
            return json.loads(data[_TOKEN_BYTES:], parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            return None


@contextmanager
def open_shared_progress() -> Iterator[SharedProgressReader]:
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
    """The process's side: opens the page at the first write."""

    def __init__(self, address: SharedProgressAddress) -> None:
        self.progress_buffer = ProgressBuffer(self._write)
        self._address = address
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None

    def close(self) -> None:
        with self._lock:
            if self._memory is not None:
                self._memory.close()
            self._memory = None

    def _write(self) -> None:
        with self._lock:
            try:
                self._memory = self._memory or self._open()
            except OSError:
                return  # the worker has cancelled this run: this process is about to be killed
            pending = self.progress_buffer.take()
            if pending is None:
                return
            token = self._address.token
            if pending.progress is not None:
                progress = json.dumps([pending.progress.fraction, pending.progress.note])
                _PROGRESS.write(self._memory, token + progress.encode())
            if pending.checkpoint is not None:
                _CHECKPOINT.write(self._memory, token + f"[{pending.checkpoint}]".encode())

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
