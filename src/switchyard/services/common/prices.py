"""Prices of models for a million tokens, from a TOML file (docs/llm.md#what-it-costs)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from switchyard.broker import patterns
from switchyard.broker.message import describe
from switchyard.services.common.toml_file import InvalidToml, read_toml

MILLION = 1_000_000
Amount = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ModelPrice(BaseModel):
    """Prices of one model, for a million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Amount
    cached_input: Amount | None = None
    """Price of input tokens that the server had in its cache; as `input` where unset."""
    output: Amount
    batch: float = Field(default=0.5, ge=0, le=1)
    """Fraction of these prices that is paid through a Batch API."""

    def cost(self, usage: Mapping[str, int], *, batch: bool = False) -> float:
        """Return the cost of `prompt_tokens`, of which `cached_tokens` were in the cache, and of
        `completion_tokens`."""
        prompt = usage.get("prompt_tokens", 0)
        cached = min(usage.get("cached_tokens", 0), prompt)
        cached_price = self.input if self.cached_input is None else self.cached_input
        paid = (prompt - cached) * self.input + cached * cached_price
        paid += usage.get("completion_tokens", 0) * self.output
        return paid / MILLION * (self.batch if batch else 1.0)


class ModelPrices(BaseModel):
    """The content of the file: a currency, and a table for each model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: str = Field(default="USD", pattern=patterns.CURRENCY)
    models: dict[str, ModelPrice] = Field(default={}, max_length=10_000)

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Load the prices of a file; for None, no prices. Raises ValueError, which says what is
        wrong with it."""
        if path is None:
            return cls()
        try:
            return cls.model_validate(read_toml(path))
        except ValidationError as error:
            raise ValueError(f"prices: {path}: {describe(error)}") from error
        except InvalidToml as error:
            raise ValueError(f"prices: {error}") from error

    def of(self, *models: str) -> ModelPrice | None:
        """Return the price of the first of these names that has one."""
        return next((self.models[each] for each in models if each in self.models), None)


def format_money(value: float, currency: str) -> str:
    """Format money, with more decimals for smaller amounts."""
    places = 2 if value >= 1 or value == 0 else 4 if value >= 0.01 else 6
    return f"{value:,.{places}f} {currency}".rstrip()
