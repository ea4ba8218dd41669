"""The progress and checkpoints that a handler reports: the buffer before they are recorded, and the
shared memory by which a child process hands them over."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.engine.jobs.progress_buffer import (
    MAX_CHECKPOINT,
    MAX_NOTE,
    InvalidCheckpoint,
    PendingProgress,
    ProgressBuffer,
)
from switchyard.services.engine.records.progress import ReportedProgress
from switchyard.services.engine.runtime.shared_memory import SIZE, open_shared_progress, writing_to

INVALID_DATA = [
    b"",
    b"[",
    b"[" * 5000,
    b'["half", "x"]',
    b"[0.5]",
    b'{"fraction": 1}',
    b"\xff\xfe",
    b'[true, "x", 3]',
]


def test_newer_progress_replaces_older() -> None:
    buffer = ProgressBuffer()
    buffer.report(0.1, "first")
    buffer.report(0.2, "second")
    buffer.keep([1])
    buffer.keep([1, 2])
    assert buffer.take() == PendingProgress(ReportedProgress(0.2, "second"), "[1,2]")
    assert buffer.take() is None
    buffer.report(None)
    assert buffer.take() == PendingProgress(ReportedProgress(None, ""), None)


def test_the_writer_is_woken_once_until_it_has_taken_the_progress() -> None:
    wake_calls: list[int] = []
    buffer = ProgressBuffer(lambda: wake_calls.append(1))
    for number in range(1000):
        buffer.report(number / 1000)
    assert len(wake_calls) == 1
    buffer.take()
    buffer.keep("x")
    assert len(wake_calls) == 2


def test_progress_put_back_is_taken_again_unless_there_is_newer() -> None:
    buffer = ProgressBuffer()
    buffer.report(0.1)
    buffer.keep(1)
    taken = buffer.take()
    assert taken is not None
    buffer.keep(2)
    buffer.put_back(taken)
    assert buffer.take() == PendingProgress(ReportedProgress(0.1, ""), "2")


@pytest.mark.parametrize(
    ("value", "recorded"),
    [(0.5, 0.5), (1, 1.0), (1.0000001, 1.0), (-3, 0.0), (float("nan"), None), (None, None)],
)
def test_a_wrong_fraction_is_corrected_instead_of_failing_the_job(
    value: float, recorded: float
) -> None:
    buffer = ProgressBuffer()
    buffer.report(value, "é" * 1000)
    assert buffer.take() == PendingProgress(ReportedProgress(recorded, "é" * MAX_NOTE), None)


@pytest.mark.parametrize("value", [object(), float("nan"), {1: {2}}, "x" * MAX_CHECKPOINT])
def test_a_checkpoint_that_is_no_json_or_too_large_is_refused(value: Any) -> None:
    buffer = ProgressBuffer()
    buffer.keep("before")
    with pytest.raises(InvalidCheckpoint, match=r"JSON|limit"):
        buffer.keep(value)
    assert buffer.take() == PendingProgress(None, '"before"')


@pytest.mark.parametrize("arguments", [("half", ""), (0.5, b"half"), (0.5, None), ([], "")])
def test_progress_of_a_wrong_type_is_an_error(arguments: tuple[Any, Any]) -> None:
    buffer = ProgressBuffer()
    with pytest.raises((TypeError, ValueError)):
        buffer.report(*arguments)
    assert buffer.take() is None


def test_the_last_progress_of_many_threads_is_kept() -> None:
    buffer = ProgressBuffer()

    def report_progress() -> None:
        for number in range(5001):
            buffer.report(number / 5000)

    threads = [threading.Thread(target=report_progress) for _ in range(4)]
    taken = []
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        taken.append(buffer.take())
    taken.append(buffer.take())
    last = [each for each in taken if each is not None][-1]
    assert last.progress == ReportedProgress(1.0, "")


# --- shared memory of a child process -----------------------------------------------------------


def test_a_child_reports_progress_by_shared_memory() -> None:
    received = ProgressBuffer()
    with open_shared_progress() as shared_progress:
        shared_progress.copy_to(received)
        assert received.take() is None
        with writing_to(shared_progress.address) as buffer:
            for number in range(1, 10_001):
                buffer.report(number / 10_000, "größer \ud800")
            buffer.keep({"page": 3, "text": "x" * 60_000})
            shared_progress.copy_to(received)
            pending = received.take()
            assert pending is not None
            assert pending.progress == ReportedProgress(
                1.0, "größer \\ud800"
            )  # the lone surrogate is escaped
            assert pending.checkpoint == '{"page":3,"text":"' + "x" * 60_000 + '"}'
            shared_progress.copy_to(received)
            assert received.take() is None  # nothing new
            buffer.report(0.5)
        shared_progress.copy_to(received)  # the last progress is read although the writer has ended
        assert received.take() == PendingProgress(ReportedProgress(0.5, ""), None)


@pytest.mark.parametrize("invalid_data", INVALID_DATA)
def test_invalid_shared_memory_is_ignored(invalid_data: bytes) -> None:
    from switchyard.services.engine.runtime import shared_memory as module

    received = ProgressBuffer()
    with open_shared_progress() as shared_progress:
        token = shared_progress.address.token
        writer = module.SharedProgressWriter(shared_progress.address)
        memory = writer._open()
        for cell in (module._PROGRESS, module._CHECKPOINT):
            cell.write(memory, (token + invalid_data)[: cell.capacity])
        shared_progress.copy_to(received)
        memory[:] = os.urandom(SIZE)
        shared_progress.copy_to(received)
        memory[:] = b"\xff" * SIZE
        shared_progress.copy_to(received)
        memory.close()
        recorded = received.take()
        assert recorded is None or recorded == PendingProgress(None, "0.5")


def test_truncated_shared_memory_is_ignored() -> None:
    received = ProgressBuffer()
    with open_shared_progress() as shared_progress:
        with writing_to(shared_progress.address) as buffer:
            buffer.report(0.5)
        os.truncate(shared_progress.address.path, 3)
        shared_progress.copy_to(received)
    assert received.take() is None


def test_progress_of_another_job_is_ignored() -> None:
    from dataclasses import replace

    received = ProgressBuffer()
    with open_shared_progress() as shared_progress:
        other_address = replace(shared_progress.address, token=b"x" * 16)
        with writing_to(other_address) as buffer:
            buffer.report(0.5)
        shared_progress.copy_to(received)
    assert received.take() is None


def test_a_job_whose_shared_memory_is_gone_does_not_fail() -> None:
    with open_shared_progress() as shared_progress:
        address = shared_progress.address
    with writing_to(address) as buffer:
        buffer.report(0.5)
        buffer.keep(1)
    assert not Path(address.path).is_file()
