"""The forms in which people write arXiv's identifiers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from switchyard.services.pipeline.sources.arxiv.arxiv_client import ListingCursor
from switchyard.services.pipeline.sources.arxiv.arxiv_feed import ArxivId, Entry


@pytest.mark.parametrize(
    ("written", "expected_id"),
    [
        ("1605.08386", "1605.08386"),
        ("  1605.08386\n", "1605.08386"),
        ("1605.08386v2", "1605.08386v2"),
        ("0704.0001", "0704.0001"),
        ("0000.0000", "0000.0000"),
        ("hep-th/9901001", "hep-th/9901001"),
        ("hep-th/9901001v12", "hep-th/9901001v12"),
        ("math.GT/0309136", "math/0309136"),
        ("math/0309136v1", "math/0309136v1"),
        ("arXiv:1605.08386", "1605.08386"),
        ("arxiv: 1605.08386v1", "1605.08386v1"),
        ("arXiv:hep-th/9901001", "hep-th/9901001"),
        ("http://arxiv.org/abs/1605.08386v1", "1605.08386v1"),
        ("https://arxiv.org/abs/math.GT/0309136", "math/0309136"),
        ("https://www.arxiv.org/pdf/1605.08386v2.pdf", "1605.08386v2"),
        ("https://export.arxiv.org/pdf/1605.08386", "1605.08386"),
        ("https://arxiv.org/html/2401.00001v1", "2401.00001v1"),
        ("arxiv.org/abs/1605.08386/", "1605.08386"),
        ("https://arxiv.org/abs/1605.08386?context=math", "1605.08386"),
        ("https://arxiv.org/abs/1605.08386v3#part", "1605.08386v3"),
        ("10.48550/arXiv.1605.08386", "1605.08386"),
        ("https://doi.org/10.48550/arXiv.1605.08386", "1605.08386"),
    ],
)
def test_an_id_is_understood_in_every_form(written: str, expected_id: str) -> None:
    assert str(ArxivId.parse(written)) == expected_id


@pytest.mark.parametrize(
    "written",
    [
        "",
        "abc",
        "1605.083",
        "1605.083861",
        "16050.8386",
        "1605.08386v0",
        "1605.08386v",
        "1605.08386v2v3",
        "1605.08386,1605.08387",
        "1605.08386&start=1",
        "math/030913",
        "/0309136",
        "https://example.org/abs/1605.08386",
        "https://arxiv.org.example.org/abs/1605.08386",
        "https://arxiv.org/list/math/0309",
        "١٦٠٥.٠٨٣٨٦",
    ],
)
def test_an_invalid_id_is_refused_with_examples(written: str) -> None:
    with pytest.raises(ValueError, match="they look like 1605"):
        ArxivId.parse(written)


def test_all_versions_of_a_paper_have_one_source() -> None:
    for written in ("1605.08386", "arXiv:1605.08386v7"):
        assert ArxivId.parse(written).source == "arxiv:1605.08386"


def test_a_cursor_is_written_as_text_and_read_back() -> None:
    moment = datetime(2024, 3, 1, 12, 30, tzinfo=UTC)
    cursor = ListingCursor(moment, moment.replace(month=4), 300)
    assert str(cursor) == "202403011230-202404011230+300"
    assert ListingCursor.parse(str(cursor)) == cursor
    for bad_cursor in ("", "300", "202403011230+1", "202413011230-202404011230+300"):
        with pytest.raises(ValueError):  # noqa: PT011 - of whatever text
            ListingCursor.parse(bad_cursor)


@pytest.mark.parametrize(
    ("comment", "abstract", "withdrawn"),
    [
        ("20 pages", "Tides.", False),
        ("This paper has been withdrawn by the author", "Tides.", True),
        ("Withdrawn: a mistake in Lemma 2", "Tides.", True),
        (None, "This submission was withdrawn.", True),
        ("Replaces a withdrawn version", "Tides.", False),
        (None, "Money was withdrawn from banks. " * 20, False),
    ],
)
def test_a_withdrawn_paper_is_recognised(
    comment: str | None, abstract: str, withdrawn: bool
) -> None:
    moment = datetime(2024, 3, 1, tzinfo=UTC)
    entry = Entry(
        id="1605.08386",
        version=2,
        title="Heat",
        abstract=abstract,
        comment=comment,
        published=moment,
        updated=moment,
    )
    assert entry.withdrawn is withdrawn
