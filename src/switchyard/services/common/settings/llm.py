"""Settings of language models: servers, concurrency, stored answers, costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings

from switchyard.broker import patterns
from switchyard.services.common.prices import ModelPrices

CALL_TIME_SHARE = 0.9
"""Share of an attempt's time limit that all its calls together may use; the remainder is for
reading and writing."""


ApiName = Literal["openai", "anthropic"]
"""APIs of model servers."""

Refusal = Literal["context_length", "content_filter"]
"""Why a server refuses a request: too long for the model, or declined by it or by a filter."""


class LlmServer(BaseModel):
    """One server of JOBS_LLM_PROVIDERS."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str = Field(default="default", pattern=patterns.DASHED_NAME)
    """The server's name in the ledger; must be the same in all processes."""
    base_url: str
    api: ApiName = "openai"
    """The server's API: a key of `services.llm.server_client.MODEL_APIS`."""
    model: str = "default"
    aliases: tuple[Annotated[str, Field(max_length=200, pattern=patterns.PLAIN)], ...] = ()
    """Other names under which requests may ask for the model."""
    api_key: SecretStr | None = None
    order: int = Field(default=0, ge=0, le=100)
    """Servers of the lowest order are used; those of the next order while all of these are paused,
    or after they have failed for the request."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    """How often the server is tried first, relative to the others of its order."""
    max_calls: int | None = Field(default=None, ge=1, le=10_000)
    """Maximum number of concurrent requests to it; JOBS_LLM_CONCURRENCY_MAX where unset."""
    max_tokens_name: Literal["max_tokens", "max_completion_tokens"] | None = None
    """Name of the parameter that limits an answer; unset: the one that the server accepts."""
    sends_temperature: bool | None = None
    """Whether the model takes a temperature; unset: it is left out where the server refuses it."""
    schema_format: Literal["json_schema", "json_object", "prompt"] | None = Field(
        default=None, alias="schema"
    )
    """How the schema of an answer is sent: as `response_format` of that type, or in the prompt
    alone; unset: the first of these that the server accepts."""
    stream: bool | None = None
    """Whether answers are requested as streams; unset: yes, unless the server refuses that."""
    leave_out: tuple[Annotated[str, Field(max_length=100)], ...] = Field(default=(), max_length=100)
    """Parameters that are never sent to it."""
    extra_body: dict[str, Any] = Field(default_factory=dict, max_length=100)
    """Parameters that are added to each request that does not have them."""
    context_length: int | None = Field(default=None, ge=256, le=100_000_000)
    """Maximum tokens of a request and its answer together."""
    responses: bool = False
    """Whether it has OpenAI's Responses API (`/responses`)."""
    takes_over: tuple[Refusal, ...] = ("context_length", "content_filter")
    """Refusals of another server after which its request is sent to this one."""
    batch: bool = False
    """Whether requests of the lane backfill go through its Batch API, together and later."""

    @model_validator(mode="after")
    def _check_api(self) -> Self:
        if self.batch and self.api != "openai":
            raise ValueError("batch: only servers with the API openai get batches")
        if self.responses and self.api != "openai":
            raise ValueError("responses: only servers with the API openai have the Responses API")
        return self

    def serves(self, model: str | None) -> bool:
        """Return whether a request for this model, or for any (None), may be sent here."""
        return model is None or model == self.model or model in self.aliases


class LlmSettings(BaseSettings, defer_build=True):
    """Language models."""

    llm_base_url: str | None = Field(
        default=None,
        description="Address of a language model server, for example "
        "http://localhost:8000/v1. Without one, summaries are extractive and "
        "marked as such.",
    )
    llm_api: ApiName = Field(
        default="openai",
        description="What that server speaks: OpenAI's API, or Anthropic's Messages API "
        "(docs/llm.md#anthropic).",
    )
    llm_model: str = Field(default="default", description="Model on that server.")
    llm_api_key: SecretStr | None = Field(default=None, description="API key for that server.")
    llm_timeout: float = Field(
        default=180,
        gt=0,
        description="Timeout of one call to a language model server, in seconds; a request may "
        "take several. A call gets less where its job type's time limit is shorter: "
        "`jobctl llm status` shows it (docs/llm.md#concurrency).",
    )
    llm_providers: tuple[LlmServer, ...] = Field(
        default=(),
        description="Several servers instead of JOBS_LLM_BASE_URL, as a JSON list of objects "
        "with `name`, `base_url`, `api`, `model`, `aliases`, `api_key`, `order`, `weight`, "
        "`max_calls`, `batch`, `max_tokens_name`, `sends_temperature`, `schema`, `stream`, "
        "`leave_out`, `extra_body`, `context_length`, `takes_over`, `responses` (docs/llm.md).",
    )
    llm_max_tokens_name: Literal["max_tokens", "max_completion_tokens"] | None = Field(
        default=None,
        description="Parameter that limits the length of an answer. Default: `max_tokens`, or "
        "`max_completion_tokens` if the server refuses that.",
    )
    llm_sends_temperature: bool | None = Field(
        default=None,
        description="Whether requests contain `temperature`. Default: yes, unless the server "
        "refuses it.",
    )
    llm_batch: bool = Field(
        default=False,
        description="Whether requests of the lane backfill go through the Batch API of "
        "JOBS_LLM_BASE_URL: cheaper, but answered within hours "
        "(docs/llm.md#batches).",
    )
    llm_batch_wait: float = Field(
        default=600,
        ge=0,
        le=86_400,
        description="Seconds that requests are collected before a batch is sent.",
    )
    llm_batch_size: int = Field(
        default=1_000,
        ge=1,
        le=50_000,
        description="Number of collected requests at which a batch is sent without waiting.",
    )
    vision_model: str | None = Field(
        default=None,
        description="Model with image input, for `describe_figures` and `analyze_image`. "
        "Without it, these jobs become dead letters.",
    )
    vision_base_url: str | None = Field(
        default=None,
        description="Address of the server of JOBS_VISION_MODEL. Default: JOBS_LLM_BASE_URL.",
    )
    vision_api_key: SecretStr | None = Field(
        default=None,
        description="API key for JOBS_VISION_BASE_URL. Default: JOBS_LLM_API_KEY, unless "
        "JOBS_VISION_BASE_URL is set.",
    )
    llm_pacing: Literal["adaptive", "steps", "fixed"] = Field(
        default="adaptive",
        description="How the number of concurrent requests per server is adjusted: `adaptive` "
        "by its tokens per second, `steps` by timeouts only, `fixed` never.",
    )
    llm_concurrency: int = Field(
        default=2,
        ge=1,
        le=10_000,
        description="Initial number of concurrent requests per server, of all processes together. "
        "With JOBS_LLM_PACING `steps` or `fixed`, the default is 16.",
    )
    llm_concurrency_min: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="Lower bound of this number. With JOBS_LLM_PACING `steps`, the default is 5.",
    )
    llm_concurrency_max: int = Field(
        default=50, ge=1, le=10_000, description="Upper bound of this number."
    )
    llm_direct: bool = Field(
        default=False,
        description="Whether clients call language model servers directly instead of "
        "publishing jobs. Limits and stored answers are the same "
        "(docs/llm.md#direct-mode).",
    )
    llm_direct_calls: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Maximum number of requests to `/v1` in the lane hot that an API process "
        "sends to the model servers itself at once, while no job waits in that lane; the others "
        "are published as jobs (docs/llm.md#direct-calls). 0: all are.",
    )
    llm_answers_days: float = Field(
        default=90,
        ge=0,
        le=36_500,
        description="Days that an answer is stored and reused for equal requests. 0: not stored.",
    )
    llm_answers_mb: int = Field(
        default=1024,
        ge=0,
        description="Maximum size of the stored answers in MiB; the least recently used are "
        "deleted first.",
    )
    llm_prices: Path | None = Field(
        default=None,
        description="TOML file with prices of models (docs/llm.md#what-it-costs). Without it, "
        "only tokens are counted.",
    )
    llm_budget_per_day: float | None = Field(
        default=None,
        gt=0,
        le=1_000_000_000,
        description="Maximum cost of language model calls per day (UTC), in the currency of "
        "JOBS_LLM_PRICES. Default: no limit.",
    )
    llm_spend_days: float = Field(
        default=400,
        ge=1,
        le=36_500,
        description="Days that the cost of each call is stored.",
    )
    llm_hedge_share: float = Field(
        default=0,
        ge=0,
        le=0.5,
        description="Maximum share of hot calls for which a second request is sent if the "
        "first is slow to answer (hedging). 0: off.",
    )
    llm_ok_below: int = Field(
        default=250,
        ge=1,
        description="Queue length of an llm queue below which its back-pressure state returns "
        "to ok.",
    )
    llm_slow_at: int = Field(
        default=500,
        ge=1,
        description="Queue length of an llm queue from which its back-pressure state is slow.",
    )
    llm_full_at: int = Field(
        default=1000,
        ge=1,
        description="Queue length of an llm queue from which its back-pressure state is full "
        "and requests are refused.",
    )

    @model_validator(mode="after")
    def _check_llm(self) -> Self:
        names = [each.name for each in self.llm_providers]
        if len(set(names)) < len(names):
            raise ValueError("two servers of JOBS_LLM_PROVIDERS have the same name")
        if self.llm_direct and not self.llm_servers:
            raise ValueError("JOBS_LLM_DIRECT is set: set JOBS_LLM_BASE_URL")
        if self.llm_budget_per_day is not None and self.llm_prices is None:
            raise ValueError("JOBS_LLM_BUDGET_PER_DAY needs prices: set JOBS_LLM_PRICES")
        ModelPrices.load(self.llm_prices)  # an invalid file is reported at the start
        return self

    @property
    def prices(self) -> ModelPrices:
        """The prices of models, as the file has them now."""
        return ModelPrices.load(self.llm_prices)

    def llm_call_limit(self, attempt_timeout: float) -> float:
        """Return the seconds that one call may take in an attempt of `attempt_timeout` seconds."""
        return min(self.llm_timeout, CALL_TIME_SHARE * attempt_timeout)

    @property
    def llm_servers(self) -> tuple[LlmServer, ...]:
        """The servers of language models; empty where there is none."""
        if self.llm_providers or self.llm_base_url is None:
            return self.llm_providers
        return (
            LlmServer(
                base_url=self.llm_base_url,
                api=self.llm_api,
                model=self.llm_model,
                api_key=self.llm_api_key,
                max_tokens_name=self.llm_max_tokens_name,
                sends_temperature=self.llm_sends_temperature,
                batch=self.llm_batch,
            ),
        )

    def max_calls(self, server: LlmServer) -> int:
        """Return the maximum number of concurrent calls to a server."""
        return server.max_calls or self.llm_concurrency_max

    @property
    def for_vision(self) -> Self | None:
        """A copy of the settings with the vision model as the only language model; None without
        such a model, or without a server that has it."""
        base_url = self.vision_base_url or self.llm_base_url
        if self.vision_model is None or base_url is None:
            return None
        own_key = self.vision_api_key or (None if self.vision_base_url else self.llm_api_key)
        server = LlmServer(
            name="vision",
            base_url=base_url,
            api="openai" if self.vision_base_url else self.llm_api,
            model=self.vision_model,
            api_key=own_key,
        )
        return self.model_copy(update={"llm_providers": (server,), "llm_base_url": None})
