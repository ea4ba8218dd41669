"""Settings from the environment, where that says less than it seems to."""

import pytest
from pydantic import ValidationError

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


@pytest.mark.parametrize("secret", [" ", "hunter2", "x" * 15])
def test_a_secret_of_webhooks_that_can_be_guessed_is_refused(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("JOBS_GITHUB_WEBHOOK_SECRET", secret)
    with pytest.raises(ValidationError, match="github_webhook_secret") as refused:
        Settings()
    assert repr(secret) not in str(refused.value)
    monkeypatch.setenv("JOBS_GITHUB_WEBHOOK_SECRET", "x" * 16)
    assert Settings().github_webhook_secret is not None
