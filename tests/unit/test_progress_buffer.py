"""What a handler says of its run, before anybody records it; and the page on which a process says
it."""

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

NONSENSE = [
    b"",
    b"[",
    b"[" * 5000,
    b'["half", "x"]',
    b"[0.5]",
    b'{"fraction": 1}',
    b"\xff\xfe",
    b'[true, "x", 3]',
]


def test_what_is_newer_takes_the_place_of_what_is_older() -> None:
    buffer = ProgressBuffer()
    buffer.report(0.1, "first")
    buffer.report(0.2, "second")
    buffer.keep([1])
    buffer.keep([1, 2])
    assert buffer.take() == PendingProgress(ReportedProgress(0.2, "second"), "[1,2]")
    assert buffer.take() is None
    buffer.report(None)
    assert buffer.take() == PendingProgress(ReportedProgress(None, ""), None)


def test_whoever_records_is_woken_once_until_he_has_taken_it() -> None:
    woken: list[int] = []
    buffer = ProgressBuffer(lambda: woken.append(1))
    for number in range(1000):
        buffer.report(number / 1000)
    assert len(woken) == 1
    buffer.take()
    buffer.keep("x")
    assert len(woken) == 2


def test_what_could_not_be_recorded_comes_again_unless_there_is_news() -> None:
    buffer = ProgressBuffer()
    buffer.report(0.1)
    buffer.keep(1)
    taken = buffer.take()
    assert taken is not None
    buffer.keep(2)
    buffer.put_back(taken)
    assert buffer.take() == PendingProgress(ReportedProgress(0.1, ""), "2")


@pytest.mark.parametrize(
    ("given", "kept"),
    [(0.5, 0.5), (1, 1.0), (1.0000001, 1.0), (-3, 0.0), (float("nan"), None), (None, None)],
)
def test_a_share_that_was_counted_wrongly_fails_no_job(given: float, kept: float) -> None:
    buffer = ProgressBuffer()
    buffer.report(given, "é" * 1000)
    assert buffer.take() == PendingProgress(ReportedProgress(kept, "é" * MAX_NOTE), None)


@pytest.mark.parametrize("given", [object(), float("nan"), {1: {2}}, "x" * MAX_CHECKPOINT])
def test_a_check_point_is_json_and_not_large(given: Any) -> None:
    buffer = ProgressBuffer()
    buffer.keep("before")
    with pytest.raises(InvalidCheckpoint, match=r"JSON|limit"):
        buffer.keep(given)
    assert buffer.take() == PendingProgress(None, '"before"')


@pytest.mark.parametrize("given", [("half", ""), (0.5, b"half"), (0.5, None), ([], "")])
def test_what_is_no_number_or_no_text_is_said_to_the_handler(given: tuple[Any, Any]) -> None:
    buffer = ProgressBuffer()
    with pytest.raises((TypeError, ValueError)):
        buffer.report(*given)
    assert buffer.take() is None


def test_many_threads_lose_nothing_that_is_last() -> None:
    buffer = ProgressBuffer()

    def say() -> None:
        for number in range(5001):
            buffer.report(number / 5000)

    threads = [threading.Thread(target=say) for _ in range(4)]
    taken = []
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        taken.append(buffer.take())
    taken.append(buffer.take())
    last = [each for each in taken if each is not None][-1]
    assert last.progress == ReportedProgress(1.0, "")


# --- the page of a process ----------------------------------------------------------------------


def test_a_process_says_it_by_its_page() -> None:
    heard = ProgressBuffer()
    with open_shared_progress() as page:
        page.copy_to(heard)
        assert heard.take() is None
        with writing_to(page.address) as buffer:
            for number in range(1, 10_001):
                buffer.report(number / 10_000, "größer \ud800")
            buffer.keep({"page": 3, "text": "x" * 60_000})
            page.copy_to(heard)
            notes = heard.take()
            assert notes is not None
            assert notes.progress == ReportedProgress(1.0, "größer \\ud800")  # as it can be written
            assert notes.checkpoint == '{"page":3,"text":"' + "x" * 60_000 + '"}'
            page.copy_to(heard)
            assert heard.take() is None  # nothing new
            buffer.report(0.5)
        page.copy_to(heard)  # its last word, although it has ended
        assert heard.take() == PendingProgress(ReportedProgress(0.5, ""), None)


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_what_a_hostile_process_writes_is_no_news(nonsense: bytes) -> None:
    from switchyard.services.engine.runtime import shared_memory as module

    heard = ProgressBuffer()
    with open_shared_progress() as page:
        token = page.address.token
        writer = module.SharedProgressWriter(page.address)
        memory = writer._open()
        for cell in (module._PROGRESS, module._CHECKPOINT):
            cell.write(memory, (token + nonsense)[: cell.capacity])
        page.copy_to(heard)
        memory[:] = os.urandom(SIZE)
        page.copy_to(heard)
        memory[:] = b"\xff" * SIZE
        page.copy_to(heard)
        memory.close()
        kept = heard.take()
        assert kept is None or kept == PendingProgress(None, "0.5")


def test_a_page_that_the_process_cuts_off_harms_nobody() -> None:
    heard = ProgressBuffer()
    with open_shared_progress() as page:
        with writing_to(page.address) as buffer:
            buffer.report(0.5)
        os.truncate(page.address.path, 3)
        page.copy_to(heard)
    assert heard.take() is None


def test_what_another_job_has_written_is_not_this_ones() -> None:
    from dataclasses import replace

    heard = ProgressBuffer()
    with open_shared_progress() as page:
        other = replace(page.address, token=b"x" * 16)
        with writing_to(other) as buffer:
            buffer.report(0.5)
        page.copy_to(heard)
    assert heard.take() is None


def test_a_page_that_is_gone_fails_no_job() -> None:
    with open_shared_progress() as page:
        address = page.address
    with writing_to(address) as buffer:
        buffer.report(0.5)
        buffer.keep(1)
    assert not Path(address.path).is_file()
