"""Settings from the environment, where that says less than it seems to."""

import pytest
from pydantic import ValidationError

from switchyard.cli.base.common import load_settings
from switchyard.cli.base.errors import CommandFailed
from switchyard.services.common.settings import ADAPTING_DEFAULTS, ASCENDING, Settings


@pytest.mark.parametrize("name", sorted({*Settings.model_fields} - {"ingest_paths"}))
def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As a compose file's `${NAME:-}` gives it."""
    monkeypatch.delenv(f"JOBS_{name.upper()}", raising=False)
    unset = Settings()
    monkeypatch.setenv(f"JOBS_{name.upper()}", "")
    assert Settings() == unset


def test_an_empty_list_of_directories_opens_none_and_is_refused(
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
def test_what_an_empty_variable_can_not_say_a_word_does(
    monkeypatch: pytest.MonkeyPatch, variable: str, word: str, value: object
) -> None:
    monkeypatch.setenv(variable, word)
    assert getattr(Settings(), variable.removeprefix("JOBS_").lower()) == value


@pytest.mark.parametrize(
    ("given", "said"),
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
    given: dict[str, float], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        Settings(**given)  # type: ignore[arg-type]


def test_settings_that_follow_in_order_may_be_equal_and_an_unset_start_gives_way() -> None:
    assert Settings(llm_ok_below=7, llm_slow_at=7, llm_full_at=7).llm_full_at == 7
    assert Settings(llm_concurrency_max=8).llm_concurrency_max == 8
    assert Settings(llm_concurrency_min=20).llm_concurrency_min == 20


def test_every_setting_that_is_a_mark_or_a_bound_has_its_place_in_an_order() -> None:
    marks = ("_min", "_max", "_at", "_below")
    known = {name for names in ASCENDING for name in names}
    assert {
        name for name in Settings.model_fields if name.endswith(marks)
    } == known - ADAPTING_DEFAULTS


@pytest.mark.parametrize(
    ("variable", "value", "said"),
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
def test_what_is_wrong_in_a_settings_json_is_told_with_its_place(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(CommandFailed, match=said):
        load_settings()


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
