"""A process that has compacted a large table in LanceDB returns the memory to the system."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chunk_tables import open_table, put_chunks

FREED_BYTES = 100_000_000
BLOCK_BYTES = 10_000
HEAP_REPORT_PROGRAM = """
import ctypes, os, pathlib, re, sys, threading
from switchyard.services.pipeline.index.lance_store import LanceStore
import asyncio
asyncio.run(LanceStore(sys.argv[1]).load())
thread_count = 4 * os.cpu_count() + 4
barrier = threading.Barrier(thread_count)
def allocate():
    bytes(10_000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(thread_count)]
for each in threads: each.start()
for each in threads: each.join()
# By default, freeing this raises glibc's mmap threshold: the next block would come from a heap.
bytes(16_000_000)
large_block = bytes(8_000_000)
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
report = pathlib.Path(sys.argv[1], "heaps.xml")
file = ctypes.c_void_p(c.fopen(str(report).encode(), b"w"))
c.malloc_info(0, file)
c.fclose(file)
text = report.read_text()
mmapped_sizes = re.findall('type="mmap" count="[0-9]+" size="([0-9]+)"', text)
print(text.count("<heap nr="), int(mmapped_sizes[-1]) >= len(large_block))
"""
needs_glibc = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this is about glibc"
)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@needs_glibc
def test_threads_have_no_more_heaps_than_processors_in_a_process_that_has_loaded_lancedb(
    tmp_path: Path,
):
    report = subprocess.run(
        [sys.executable, "-c", HEAP_REPORT_PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    heaps, is_large_block_mmapped = report.stdout.split()
    assert int(heaps) <= (os.cpu_count() or 1)
    assert is_large_block_mmapped == "True"


@needs_glibc
async def test_a_compaction_returns_free_memory_to_the_system(tmp_path: Path):
    async with open_table(str(tmp_path / "index")) as index:
        await put_chunks(index, "a", 3)
        bytes_before = resident_bytes()
        blocks = [bytes(BLOCK_BYTES) for _ in range(FREED_BYTES // BLOCK_BYTES)]
        last_block = blocks.pop()  # at the end of the heap, which would otherwise shrink by itself
        blocks.clear()
        assert resident_bytes() - bytes_before > FREED_BYTES / 2
        await index.compact()
        assert resident_bytes() - bytes_before < FREED_BYTES / 2
        assert len(last_block) == BLOCK_BYTES
