from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from switchyard.services.pipeline.sources.backfill_stored import DocumentOptions


def test_a_day_is_its_beginning_in_utc() -> None:
    options = DocumentOptions.model_validate({"since": "2024-01-31"})
    assert options.since == datetime(2024, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize("bad_value", ["2024-02-30", "2024-01-01T10:00", "yesterday"])
def test_times_without_a_zone_are_refused(bad_value: str) -> None:
    with pytest.raises(ValidationError):
        DocumentOptions.model_validate({"until": bad_value})


@pytest.mark.parametrize("field", ["state", "source", "media_type"])
@pytest.mark.parametrize("value", ["\0", "\ud800"], ids=ascii)
def test_options_that_no_database_takes_are_refused(field: str, value: str) -> None:
    with pytest.raises(ValidationError):
        DocumentOptions.model_validate({field: value})


@pytest.mark.parametrize("bad_value", ["restricted", "Privacy:public", "privacy:public\n"])
def test_the_error_for_an_invalid_class_shows_the_form(bad_value: str) -> None:
    with pytest.raises(ValidationError, match="write kind:label"):
        DocumentOptions.model_validate({"class": bad_value})
