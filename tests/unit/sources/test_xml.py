"""XML of servers: documents that would expand or take long are refused."""

import asyncio

import pytest

from switchyard.services.pipeline.citations.engines.grobid import GrobidEngine
from switchyard.services.pipeline.sources import safe_xml
from switchyard.services.pipeline.sources.safe_xml import xml_tree
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse


@pytest.mark.parametrize(
    ("answer", "error_text"),
    [
        (b"<!DOCTYPE x [<!ENTITY a 'aaa'>]><x>&a;</x>", "DOCTYPE"),
        (b"<!DOCTYPE x SYSTEM 'file:///etc/passwd'><x/>", "DOCTYPE"),
        (b"<x>" * 100, "nested too deeply"),
        (b"<x>" + b"<a/>" * 1_000 + b"</x>", "more than 1,000 elements"),
    ],
)
def test_xml_that_could_expand_or_nest_deeply_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, error_text: str
) -> None:
    monkeypatch.setattr(safe_xml, "MAX_ELEMENTS", 1_000)
    with pytest.raises(InvalidSourceResponse, match=error_text):
        xml_tree(answer, "GROBID")


async def test_a_long_answer_of_grobid_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    grobid = GrobidEngine("http://grobid")
    body = b"<TEI>" + b"<a/>" * 400_000 + b"</TEI>"

    async def return_body(*_: object, **__: object) -> bytes:
        return body

    monkeypatch.setattr(grobid, "_post", return_body)
    turns_of_others = 0

    async def count_turns() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0.001)

    counter = asyncio.create_task(count_turns())
    assert await grobid.references_of_pdf(b"") == []
    counter.cancel()
    assert turns_of_others > 5
