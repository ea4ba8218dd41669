"""Payloads from the command line, files and standard input."""

import os
import threading

import pytest

from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.payloads import (
    StandardInput,
    parse_lines,
    parse_payload,
    parse_whole_document,
)


@pytest.mark.parametrize("text", ["", "{", "[1]", "1", "null", '"x"', "true"])
def test_a_payload_is_a_json_object(text: str) -> None:
    with pytest.raises(WrongUsage, match="here"):
        parse_payload(text, "here")


def lines_of(data: bytes, limit: int) -> list[list[tuple[int, str]]]:
    """What is read of a pipe that holds `data`, in batches of at most `limit`."""
    reading, writing = os.pipe()
    writer = threading.Thread(target=_write, args=(writing, data))
    writer.start()
    source = StandardInput(reading)
    batches = []
    while not source.at_end:
        if batch := source.read(limit):
            batches.append(batch)
    writer.join()
    os.close(reading)
    return batches


def _write(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_lines_come_in_batches_with_their_numbers(end: bytes) -> None:
    data = b"\n".join(f'{{"n": {n}}}'.encode() for n in range(1, 251)) + end
    batches = lines_of(data, 100)
    assert max(map(len, batches)) <= 100
    numbered = [line for batch in batches for line in batch]
    assert numbered == [(n, f'{{"n": {n}}}') for n in range(1, 251)]


def test_much_more_than_a_pipe_holds() -> None:
    data = b'{"text": "' + b"x" * 1000 + b'"}\n'
    assert sum(map(len, lines_of(data * 3000, 500))) == 3000


def test_empty_lines_count_and_are_passed_over() -> None:
    parsed = list(parse_lines([(1, '{"n": 1}'), (2, ""), (3, "  "), (4, "{")]))
    assert [(line.number, line.payload is None) for line in parsed] == [(1, False), (4, True)]


def test_one_document_over_several_lines_or_lines_with_errors_or_neither() -> None:
    assert parse_whole_document([(1, "{")], '"n": 1\n}\n') == {"n": 1}
    assert parse_whole_document([(1, "{bad")], '{"n": 1}\n') is None
    with pytest.raises(WrongUsage, match="standard input is not JSON"):
        parse_whole_document([(1, "{")], '"n": \n')
