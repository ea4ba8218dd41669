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


@pytest.mark.parametrize(
    "wrong",
    ["127.0.0.1", "http://a.example:80", "a.example:http", "a.example:80/x", ":80", "u@a:80"],
)
def test_a_host_of_ones_own_without_its_port_is_refused_and_not_ignored(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("JOBS_WEB_HOSTS", f"a.example:80, [::1]:8080, {wrong}")
    with pytest.raises(ValidationError, match="HOST:PORT"):
        Settings()


def test_hosts_of_ones_own_are_named_with_their_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_WEB_HOSTS", "a.example:80, [::1]:8080")
    assert Settings().web_hosts == ("a.example:80", "[::1]:8080")


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_PUBLISH_WINDOW", "7")
    assert Settings().publish_window == 7
    assert Settings(publish_window=8).publish_window == 8
