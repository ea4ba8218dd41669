"""Settings from the environment, where that says less than it seems to."""

import pytest

from switchyard.services.settings import Settings


@pytest.mark.parametrize(
    "name",
    ["database_url", "storage_url", "index_url", "llm_base_url", "llm_api_key", "embed_base_url"],
)
def test_an_empty_address_is_no_address(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"JOBS_{name.upper()}", "")
    assert getattr(Settings(), name) is None


def test_an_empty_list_of_directories_is_one_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_INGEST_PATHS", "")
    assert Settings().ingest_paths == ()
