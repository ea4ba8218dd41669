"""Error messages: suggestions for mistyped names, and rates in words."""

import pytest

from switchyard.broker.message import describe
from switchyard.broker.wording import rate_in_words, suggest
from switchyard.cli.base.errors import WrongUsage
from switchyard.cli.base.shared_options import check_lane


def test_the_suggestion_for_a_mistyped_name_is_the_nearest_one() -> None:
    known = ("ingest_url", "ingest_document", "extract_text")
    assert suggest("ingest_documnt", known) == (
        "did you mean 'ingest_document'? known are: extract_text, ingest_document, ingest_url"
    )
    assert suggest("zzz", known).startswith("known are: ")
    assert suggest("zzz", ()) == "known are: none"
    many = suggest("job_03", [f"job_{n:02}" for n in range(40)])
    assert many.startswith("did you mean 'job_03'? known are: job_03, ")
    assert many.endswith(" and 35 others")


def test_an_unknown_lane_is_an_error() -> None:
    assert check_lane(None) is None
    assert check_lane("hot") == "hot"
    with pytest.raises(WrongUsage, match="choose one of hot, vlm_ocr"):
        check_lane("hott")


def test_an_unknown_field_is_described_in_plain_words() -> None:
    from pydantic import BaseModel, ConfigDict, ValidationError

    class Payload(BaseModel):
        model_config = ConfigDict(extra="forbid")

    with pytest.raises(ValidationError) as failed:
        Payload.model_validate({"pth": "x"})
    assert describe(failed.value) == "pth: there is no such field"


def test_a_slow_rate_is_described_by_the_minute_or_the_hour() -> None:
    rates = {5000: "5,000 a second", 2.5: "2.5 a second", 2 / 60: "2 a minute", 0.01: "36 an hour"}
    assert {rate: rate_in_words(rate) for rate in rates} == rates
