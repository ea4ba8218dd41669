"""Prices of models: their file, the cost of a call, and its estimate."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from switchyard.services.common.prices import ModelPrice, ModelPrices
from switchyard.services.common.settings import Settings
from switchyard.services.llm.budget_account import max_usage_of

PRICES_FILE = """
currency = "EUR"
[models."large-2"]
input = 2.5
cached_input = 0.25
output = 10
"""


def test_cached_tokens_have_a_price_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICES_FILE)
    prices = ModelPrices.load(tmp_path / "prices.toml")
    price = prices.of("unheard-of", "large-2")
    assert price is not None
    usage = {"prompt_tokens": 1_000_000, "cached_tokens": 600_000, "completion_tokens": 100_000}
    assert price.cost(usage) == pytest.approx(0.4 * 2.5 + 0.6 * 0.25 + 0.1 * 10)
    assert price.cost(usage, batch=True) == pytest.approx(price.cost(usage) / 2)
    assert prices.currency == "EUR"
    assert prices.of("unheard-of") is None


def test_a_server_can_not_claim_more_cached_tokens_than_there_are() -> None:
    price = ModelPrice(input=1, cached_input=0, output=1)
    assert price.cost({"prompt_tokens": 10, "cached_tokens": 10**9}) == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[models.a]\ninput = -1\noutput = 1", "models.a.input"),
        ("[models.a]\ninput = 1", "models.a.output"),
        ("[models.a]\ninput = nan\noutput = 1", "models.a.input"),
        ("[models.a]\ninput = 1\noutput = 1\nouput = 2", "models.a.ouput"),
        ("[models", "is not TOML"),
        (None, "there is no file"),
    ],
)
def test_an_invalid_file_is_refused_with_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, error: str
) -> None:
    path = tmp_path / "prices.toml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("JOBS_LLM_PRICES", str(path))
    with pytest.raises(ValidationError, match=error):
        Settings()


def test_a_budget_without_prices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_LLM_BUDGET_PER_DAY", "5")
    with pytest.raises(ValidationError, match="set JOBS_LLM_PRICES"):
        Settings()


def test_an_estimate_is_an_upper_bound_and_ignores_the_bytes_of_pictures() -> None:
    words = "the quick brown fox jumps over the lazy dog " * 100  # 900 tokens
    chat = {"messages": [{"role": "user", "content": words}], "max_tokens": 70}
    usage = max_usage_of(chat)
    assert 900 < usage["prompt_tokens"] < 2_000
    assert usage["completion_tokens"] == 70
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, picture]}]}
    assert max_usage_of(chat)["prompt_tokens"] < 2_000
