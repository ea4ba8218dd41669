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
def test_a_payload_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="here"):
        parse_payload(text, "here")


def read_batches(data: bytes, limit: int) -> list[list[tuple[int, str]]]:
    """Return the lines of `data`, read from a pipe in batches of at most `limit`."""
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
    batches = read_batches(data, 100)
    assert max(map(len, batches)) <= 100
    numbered = [line for batch in batches for line in batch]
    assert numbered == [(n, f'{{"n": {n}}}') for n in range(1, 251)]


def test_more_lines_than_a_pipe_holds_are_read() -> None:
    data = b'{"text": "' + b"x" * 1000 + b'"}\n'
    assert sum(map(len, read_batches(data * 3000, 500))) == 3000


def test_empty_lines_are_skipped_but_counted() -> None:
    parsed = list(parse_lines([(1, '{"n": 1}'), (2, ""), (3, "  "), (4, "{")]))
    assert [(line.number, line.payload is None) for line in parsed] == [(1, False), (4, True)]


def test_an_object_over_several_lines_is_parsed_as_one_document() -> None:
    assert parse_whole_document([(1, "{")], '"n": 1\n}\n') == {"n": 1}
    assert parse_whole_document([(1, "{bad")], '{"n": 1}\n') is None
    with pytest.raises(WrongUsage, match="standard input is not JSON"):
        parse_whole_document([(1, "{")], '"n": \n')
