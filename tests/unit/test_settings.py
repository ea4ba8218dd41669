"""Settings from the environment: empty variables, words for "none", and values that contradict."""

import pytest
from pydantic import ValidationError

from switchyard.cli.base.common import load_settings
from switchyard.cli.base.errors import CommandFailed
from switchyard.services.common.settings import ASCENDING, YIELDING_DEFAULTS, Settings


@pytest.mark.parametrize("name", sorted({*Settings.model_fields} - {"ingest_paths"}))
def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A compose file's `${NAME:-}` makes empty variables."""
    monkeypatch.delenv(f"JOBS_{name.upper()}", raising=False)
    unset = Settings()
    monkeypatch.setenv(f"JOBS_{name.upper()}", "")
    assert Settings() == unset


def test_an_empty_list_of_directories_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBS_INGEST_PATHS", "")
    with pytest.raises(CommandFailed, match="JOBS_INGEST_PATHS is empty: set it to `none`"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "word", "value"),
    [
        ("JOBS_INGEST_PATHS", "none", ()),
        ("JOBS_FAIR_FROM", "off", None),
        ("JOBS_CRAWLS_KEPT_DAYS", "off", None),
    ],
)
def test_a_word_sets_the_value_that_an_empty_variable_can_not(
    monkeypatch: pytest.MonkeyPatch, variable: str, word: str, value: object
) -> None:
    monkeypatch.setenv(variable, word)
    assert getattr(Settings(), variable.removeprefix("JOBS_").lower()) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"llm_slow_at": 1001},
            r"JOBS_LLM_SLOW_AT \(1001\) is .* JOBS_LLM_FULL_AT \(1000, its",
        ),
        ({"llm_slow_at": 249}, r"JOBS_LLM_OK_BELOW \(250, its default\) is .* JOBS_LLM_SLOW_AT"),
        ({"llm_full_at": 300}, "JOBS_LLM_SLOW_AT .* JOBS_LLM_FULL_AT"),
        ({"pressure_full_at": 0.4}, "JOBS_PRESSURE_SLOW_AT .* JOBS_PRESSURE_FULL_AT"),
        ({"llm_concurrency_min": 51}, "JOBS_LLM_CONCURRENCY_MIN .* JOBS_LLM_CONCURRENCY_MAX"),
        ({"llm_concurrency": 51}, "JOBS_LLM_CONCURRENCY .* JOBS_LLM_CONCURRENCY_MAX"),
        (
            {"llm_concurrency": 4, "llm_concurrency_min": 5},
            "JOBS_LLM_CONCURRENCY_MIN .* JOBS_LLM_CONCURRENCY ",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(
    options: dict[str, float], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings(**options)  # type: ignore[arg-type]


def test_ordered_settings_may_be_equal_and_a_default_yields() -> None:
    assert Settings(llm_ok_below=7, llm_slow_at=7, llm_full_at=7).llm_full_at == 7
    assert Settings(llm_concurrency_max=8).llm_concurrency_max == 8
    assert Settings(llm_concurrency_min=20).llm_concurrency_min == 20


def test_every_threshold_and_bound_is_checked_against_the_others() -> None:
    suffixes = ("_min", "_max", "_at", "_below")
    ordered = {name for names in ASCENDING for name in names}
    # The yielding ones are values between bounds, so their names end otherwise.
    assert {
        name for name in Settings.model_fields if name.endswith(suffixes)
    } == ordered - YIELDING_DEFAULTS


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("JOBS_LLM_PROVIDERS", '[{"name": "a"', "JOBS_LLM_PROVIDERS: it is not valid JSON"),
        (
            "JOBS_LLM_PROVIDERS",
            '[{"name": "a", "base_url": "http://a/v1", "weight": 0}]',
            r"JOBS_LLM_PROVIDERS\[0\].weight: .* greater than 0",
        ),
        ("JOBS_LIMITS", '{"a": {"keys": {"b": 1}}}', "JOBS_LIMITS.a.keys.b: "),
    ],
)
def test_an_error_in_a_settings_json_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(CommandFailed, match=message):
        load_settings()


@pytest.mark.parametrize("secret", [" ", "hunter2", "x" * 15])
def test_a_webhook_secret_that_can_be_guessed_is_refused(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("JOBS_GITHUB_WEBHOOK_SECRET", secret)
    with pytest.raises(ValidationError, match="github_webhook_secret") as refused:
        Settings()
    assert repr(secret) not in str(refused.value)
    monkeypatch.setenv("JOBS_GITHUB_WEBHOOK_SECRET", "x" * 16)
    assert Settings().github_webhook_secret is not None


@pytest.mark.parametrize(
    "invalid_host",
    ["127.0.0.1", "http://a.example:80", "a.example:http", "a.example:80/x", ":80", "u@a:80"],
)
def test_a_web_host_without_a_port_is_refused(
    monkeypatch: pytest.MonkeyPatch, invalid_host: str
) -> None:
    monkeypatch.setenv("JOBS_WEB_HOSTS", f"a.example:80, [::1]:8080, {invalid_host}")
    with pytest.raises(ValidationError, match="HOST:PORT"):
        Settings()


def test_web_hosts_have_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_WEB_HOSTS", "a.example:80, [::1]:8080")
    assert Settings().web_hosts == ("a.example:80", "[::1]:8080")


def test_an_argument_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_PUBLISH_WINDOW", "7")
    assert Settings().publish_window == 7
    assert Settings(publish_window=8).publish_window == 8
