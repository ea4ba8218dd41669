"""Language models: servers, how many requests at once, answers that are kept, money."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

from switchyard.services.prices import ModelPrices
from switchyard.services.settings.values import OrUnset


class LlmServer(BaseModel):
    """One OpenAI-compatible server, of those in JOBS_LLM_PROVIDERS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="default", pattern=r"^[a-z][a-z0-9_-]{0,63}$")
    """Names it in the ledger: the same in all processes."""
    base_url: str
    model: str = "default"
    api_key: SecretStr | None = None
    order: int = Field(default=0, ge=0, le=100)
    """Servers of the lowest order are asked; those of the next when these are away."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """How often it is asked first, among those of its order."""
    most: int | None = Field(default=None, ge=1, le=10_000)
    """Requests that it gets at once at most; JOBS_LLM_CONCURRENCY_MAX where unset."""
    batch: bool = False
    """Questions of the lane backfill go through its Batch API, together and later."""


class LlmSettings(BaseSettings):
    """Language models: servers, how many requests at once, answers that are kept, money."""

    llm_base_url: OrUnset[str] = Field(
        default=None,
        description="An OpenAI-compatible server, for example http://localhost:8000/v1; without "
        "one, summaries are extractive and say so.",
    )
    llm_model: str = Field(default="default", description="Model asked for at that server.")
    llm_api_key: OrUnset[SecretStr] = Field(default=None, description="Its API key.")
    llm_timeout: float = Field(
        default=180, gt=0, description="Seconds that one request to the LLM server may take."
    )
    llm_providers: tuple[LlmServer, ...] = Field(
        default=(),
        description="Several such servers instead of one, as a JSON list of objects with "
        "`name`, `base_url`, `model`, `api_key`, `order`, `weight`, `most`, `batch` (docs/llm.md).",
    )
    llm_batch: bool = Field(
        default=False,
        description="The server of JOBS_LLM_BASE_URL gets questions of the lane backfill through "
        "its Batch API, together and later, at its lower price (docs/llm.md#batches).",
    )
    llm_batch_wait: float = Field(
        default=600,
        ge=0,
        le=86_400,
        description="Seconds for which questions are collected before a batch of them is sent.",
    )
    llm_batch_size: int = Field(
        default=1_000, ge=1, le=50_000, description="Questions at which it is sent at once."
    )
    vision_model: OrUnset[str] = Field(
        default=None,
        description="A model that sees pictures, for `describe_figures` and `analyze_image`; they "
        "are dead without one.",
    )
    vision_base_url: OrUnset[str] = Field(
        default=None,
        description="The OpenAI-compatible server that has it; JOBS_LLM_BASE_URL where unset.",
    )
    vision_api_key: OrUnset[SecretStr] = Field(
        default=None, description="Its API key; JOBS_LLM_API_KEY where no server of its own is set."
    )
    llm_pacing: Literal["adaptive", "steps", "fixed"] = Field(
        default="adaptive",
        description="How the number of requests that a server gets at once is found: by the times "
        "of its tokens, by time-outs alone, or not at all.",
    )
    llm_concurrency: int = Field(
        default=16,
        ge=1,
        le=10_000,
        description="Requests that a server gets at once at first, from all workers together.",
    )
    llm_concurrency_min: int = Field(
        default=5, ge=1, le=10_000, description="The fewest that it gets at once."
    )
    llm_concurrency_max: int = Field(
        default=50, ge=1, le=10_000, description="The most that it gets at once."
    )
    llm_direct: bool = Field(
        default=False,
        description="Processes that ask language models call the servers themselves instead of "
        "publishing a job; with the same limits and kept answers (docs/llm.md#direct-mode).",
    )
    llm_answers_days: float = Field(
        default=90,
        ge=0,
        le=36_500,
        description="Days for which an answer is kept for the same question.",
    )
    llm_answers_mb: int = Field(
        default=1024,
        ge=0,
        description="MiB of answers that are kept; beyond that, those go that were not used for "
        "longest.",
    )
    llm_prices: OrUnset[Path] = Field(
        default=None,
        description="A TOML file of what models cost (docs/llm.md#what-it-costs); tokens alone are "
        "counted where unset.",
    )
    llm_budget_per_day: OrUnset[float] = Field(
        default=None,
        gt=0,
        le=1_000_000_000,
        description="What calls of language models may cost on one day (UTC), in the currency of "
        "that file; no limit where unset.",
    )
    llm_spend_days: float = Field(
        default=400,
        ge=1,
        le=36_500,
        description="Days for which it is kept what each call has cost.",
    )
    llm_hedge_share: float = Field(
        default=0,
        ge=0,
        le=0.5,
        description="Part of the hot calls of language models that may get a second request when "
        "the first is late to begin; none at 0.",
    )
    llm_ok_below: int = Field(
        default=250,
        ge=1,
        description="Requests that wait in a queue of the llm worker, below which one that was "
        "slow or full is ok again.",
    )
    llm_slow_at: int = Field(
        default=500, ge=1, description="Requests waiting from which such a queue is slow."
    )
    llm_full_at: int = Field(
        default=1000,
        ge=1,
        description="Requests waiting from which such a queue is full, and no more are taken.",
    )

    @model_validator(mode="after")
    def _check_llm(self) -> Self:
        names = [each.name for each in self.llm_providers]
        if len(set(names)) < len(names):
            raise ValueError("two servers of JOBS_LLM_PROVIDERS have the same name")
        if self.llm_direct and not self.llm_servers:
            raise ValueError("JOBS_LLM_DIRECT is set: set JOBS_LLM_BASE_URL")
        if self.llm_concurrency_min > self.llm_concurrency_max:
            raise ValueError("JOBS_LLM_CONCURRENCY_MIN is more than JOBS_LLM_CONCURRENCY_MAX")
        if self.llm_budget_per_day is not None and self.llm_prices is None:
            raise ValueError("JOBS_LLM_BUDGET_PER_DAY needs prices: set JOBS_LLM_PRICES")
        ModelPrices.load(self.llm_prices)  # whoever has set it hears at once what is wrong with it
        return self

    @property
    def prices(self) -> ModelPrices:
        """What models cost, as their file says now."""
        return ModelPrices.load(self.llm_prices)

    @property
    def llm_servers(self) -> tuple[LlmServer, ...]:
        """The servers of language models; empty where there is none."""
        if self.llm_providers or self.llm_base_url is None:
            return self.llm_providers
        return (
            LlmServer(
                base_url=self.llm_base_url,
                model=self.llm_model,
                api_key=self.llm_api_key,
                batch=self.llm_batch,
            ),
        )

    @property
    def for_vision(self) -> Self | None:
        """The same settings with the vision model as the only language model; None where there is
        none, or no server that has it."""
        base_url = self.vision_base_url or self.llm_base_url
        if self.vision_model is None or base_url is None:
            return None
        own_key = self.vision_api_key or (None if self.vision_base_url else self.llm_api_key)
        server = LlmServer(
            name="vision", base_url=base_url, model=self.vision_model, api_key=own_key
        )
        return self.model_copy(update={"llm_providers": (server,), "llm_base_url": None})
