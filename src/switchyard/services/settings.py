"""All settings of the system, from `JOBS_…` environment variables (docs/settings.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from switchyard.broker.settings import BrokerSettings
from switchyard.services.prices import ModelPrices


def default_data_dir() -> Path:
    """Where the ledger, files and index lie when no address is set: `./.switchyard`."""
    return Path(".switchyard").absolute()


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


class LimitRoom(BaseModel):
    """Numbers of a named limit; null lifts what the code says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrency: int | None = Field(default=None, ge=1, le=1_000_000)
    per_minute: int | None = Field(default=None, ge=1, le=100_000_000)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=1_000_000_000_000)

    def given(self) -> dict[str, int | None]:
        """Those that are set, to a number or to null."""
        numbers = ("concurrency", "per_minute", "tokens_per_minute")
        return {each: getattr(self, each) for each in numbers if each in self.model_fields_set}


class LimitNumbers(LimitRoom):
    """What JOBS_LIMITS says of one limit."""

    keys: dict[str, LimitRoom] = {}
    """Of single keys."""


class Settings(BrokerSettings):
    """Settings of workers, scheduler, API and CLI. Secrets never reach a log."""

    modules: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Python modules with your own job types, comma-separated.",
    )
    schedules: Path | None = Field(
        default=None,
        description="A TOML file of schedules, which the active scheduler takes over when it "
        "begins: docs/schedules.md.",
    )
    default_schedules: bool = Field(
        default=True,
        description="Publish the maintenance jobs of docs/schedules.md at night by themselves.",
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Directory of ledger, files and index where no other address is set.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy address of the ledger: sqlite+aiosqlite:///… or "
        "postgresql+asyncpg://…, with several hosts where there is a standby (docs/cluster.md); a "
        "SQLite file in the data directory where unset. Only `jobctl up`, `jobctl demo` and "
        "`jobctl db upgrade` create one.",
    )
    storage_url: str | None = Field(
        default=None,
        description="Where files are kept: file:///…, s3://… or az://…; the data directory where "
        "unset.",
    )
    storage_quota: int | None = Field(
        default=None,
        ge=0,
        description="Bytes that the file storage may hold before the API refuses uploads; no "
        "limit where unset.",
    )
    files_kept_hours: float = Field(
        default=24,
        ge=1,
        le=876_000,
        description="Hours for which `cleanup_expired` leaves by-products: uploads that became a "
        "document, results of jobs without one, pages that OCR has read.",
    )
    documents_kept_hours: float | None = Field(
        default=None,
        ge=1,
        le=876_000,
        description="Hours after which it removes originals and texts of documents, too; their "
        "results, and what search finds, stay. Never where unset.",
    )
    max_document_bytes: int = Field(
        default=100 * 1024 * 1024, ge=1, description="Largest file that is taken in, in bytes."
    )
    ingest_paths: Annotated[tuple[Path, ...] | None, NoDecode] = Field(
        default=None,
        description="Directories below which `path` of ingest_document may lie, separated as in "
        "PATH; anywhere where unset, nowhere where empty.",
    )
    index_url: SecretStr | None = Field(
        default=None,
        description="Where chunks and vectors are kept: a directory or an object-store address "
        "(LanceDB), or postgresql://… with pgvector; the data directory where unset.",
    )
    limits: dict[str, LimitNumbers] = Field(
        default={},
        description="Other numbers for named limits than the code has, as a JSON object: "
        '`{"openai": {"concurrency": 10, "per_minute": null, "keys": {"acme": {"concurrency": '
        "2}}}}` (docs/limits.md).",
    )
    fair_from: int | None = Field(
        default=500,
        ge=1,
        le=10_000_000,
        description="Jobs of one source in flight in a lane from which its further ones get a "
        "lower priority there, so that those of others do not wait for all of them; empty for "
        "never.",
    )
    llm_base_url: str | None = Field(
        default=None,
        description="An OpenAI-compatible server, for example http://localhost:8000/v1; without "
        "one, summaries are extractive and say so.",
    )
    llm_model: str = Field(default="default", description="Model asked for at that server.")
    llm_api_key: SecretStr | None = Field(default=None, description="Its API key.")
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
    vision_model: str | None = Field(
        default=None,
        description="A model that sees pictures, for `describe_figures` and `analyze_image`; they "
        "are dead without one.",
    )
    vision_base_url: str | None = Field(
        default=None,
        description="The OpenAI-compatible server that has it; JOBS_LLM_BASE_URL where unset.",
    )
    vision_api_key: SecretStr | None = Field(
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
    llm_prices: Path | None = Field(
        default=None,
        description="A TOML file of what models cost (docs/llm.md#what-it-costs); tokens alone are "
        "counted where unset.",
    )
    llm_budget_per_day: float | None = Field(
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
    embed_dimensions: int = Field(
        default=256,
        ge=8,
        le=4096,
        description="Length of the embedder's vectors; at most 256 for `wordllama`.",
    )
    embed_base_url: str | None = Field(
        default=None,
        description="An OpenAI-compatible server with an embedding model; without one, text is "
        "embedded offline.",
    )
    embed_offline: Literal["wordllama", "hashed"] = Field(
        default="wordllama",
        description="The offline embedder: `wordllama` by meaning, best in English; `hashed` by "
        "wording, in any script.",
    )
    embed_fits: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Least similarity of a passage to a query for vectors of that server's model: "
        "what is below is no hit.",
    )
    embed_alike: float = Field(
        default=0.22,
        ge=-1,
        le=1,
        description="Least similarity at which documents are linked, for vectors of that server's "
        "model.",
    )
    embed_model: str = Field(default="default", description="Model asked for at that server.")
    embed_api_key: SecretStr | None = Field(default=None, description="Its API key.")
    classes: Path | None = Field(
        default=None,
        description="A TOML file that says how documents are classified; the package's own where "
        "unset (docs/classes.md).",
    )
    pdf_extractor: Literal["pymupdf", "pypdfium2"] = Field(
        default="pymupdf",
        description="What reads PDFs: `pymupdf` (AGPL), which mends more of what is damaged, or "
        "`pypdfium2` (Apache-2.0, BSD).",
    )
    ocr_scanned_pages: bool = Field(
        default=True,
        description="Whether documents that have text go to OCR as well, for those of their pages "
        "that have none and are covered by pictures. Off where no worker does OCR.",
    )
    ocr_models: Path | None = Field(
        default=None,
        description="Directory with models for OCR in other languages, LANGUAGE.onnx each, as "
        "PaddleOCR's recognition models converted for RapidOCR, with their characters inside.",
    )
    contact: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[\x20-\x7e]*$",
        description="A mail or web address that other people's servers are told in the "
        "`User-Agent`, so that they can reach whoever asks them.",
    )
    document_references: bool = Field(
        default=False,
        description="Whether each document's references are looked for when its pipeline has "
        "ended.",
    )
    reference_engines: Annotated[tuple[Literal["grobid", "llm", "offline"], ...], NoDecode] = Field(
        default=("offline",),
        min_length=1,
        description="What cuts references into fields, comma-separated: `grobid`, `llm`, "
        "`offline`; each that follows does what the one before it can't.",
    )
    grobid_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="Address of a GROBID server, for example http://localhost:8070.",
    )
    link_citations: bool = Field(
        default=False,
        description="Whether the references of documents are linked to works when they were found.",
    )
    link_catalogues: Annotated[
        tuple[Literal["openalex", "crossref", "wikidata"], ...], NoDecode
    ] = Field(
        default=("openalex", "crossref", "wikidata"),
        min_length=1,
        description="The catalogues that are asked for references' works, comma-separated: each "
        "that follows for what those before it do not know.",
    )
    link_interval: float = Field(
        default=0.2,
        ge=0,
        le=3600,
        description="Least seconds between two requests to one catalogue, all processes together.",
    )
    link_answers_days: float = Field(
        default=30, ge=0, le=36_500, description="Days for which catalogues' answers are kept."
    )
    openalex_base_url: str = Field(
        default="https://api.openalex.org",
        pattern="^https?://",
        description="Address of OpenAlex.",
    )
    crossref_base_url: str = Field(
        default="https://api.crossref.org",
        pattern="^https?://",
        description="Address of Crossref.",
    )
    wikidata_base_url: str = Field(
        default="https://www.wikidata.org/w/api.php",
        pattern="^https?://",
        description="Address of Wikidata's API.",
    )
    graph_memory_mb: int = Field(
        default=4096,
        ge=512,
        description="MiB of address space of the process that ranks the knowledge graph.",
    )
    arxiv_base_url: str = Field(
        default="https://export.arxiv.org/api/query",
        pattern="^https?://",
        description="Address of the arXiv API.",
    )
    arxiv_interval: float = Field(
        default=3.0,
        ge=0,
        le=3600,
        description="Least seconds between two requests to arXiv, all processes together; 3 is "
        "arXiv's own rule.",
    )
    github_base_url: str = Field(
        default="https://api.github.com",
        pattern="^https?://",
        description="Address of GitHub's REST API.",
    )
    github_token: SecretStr | None = Field(
        default=None,
        description="A token for it; without one GitHub allows 60 requests an hour.",
    )
    github_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Least seconds between two requests to GitHub, all processes together.",
    )
    github_webhook_secret: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="The secret of GitHub's webhooks, 16 characters or more, with which "
        "`POST /webhooks/github` takes them.",
    )
    webhooks: Path | None = Field(
        default=None,
        description="A TOML file that says which other webhooks are taken, and what job each is "
        "(docs/webhooks.md).",
    )
    hf_base_url: str = Field(
        default="https://huggingface.co",
        pattern="^https?://",
        description="Address of the Hugging Face hub.",
    )
    hf_token: SecretStr | None = Field(
        default=None, description="A token for the hub, for what is not for everybody."
    )
    hf_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Least seconds between two requests to the hub, all processes together.",
    )
    web_interval: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Least seconds between two requests to one host for `ingest_url` and crawls, "
        "all processes together; more where its robots.txt asks for it.",
    )
    crawl_max_pages: int = Field(
        default=10_000, ge=1, le=1_000_000, description="Pages that one crawl may have at most."
    )
    web_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Hosts of your own network that web pages may be taken from, comma-separated: "
        "HOST:PORT; else only the open internet.",
    )
    worker_concurrency: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Jobs that one kind of worker runs at once; the LLM worker, as many as its "
        "servers get.",
    )
    worker_reserve: int | None = Field(
        default=None,
        ge=0,
        description="Slots that only the worker's most urgent lane may use; 1 where unset and "
        "there are two slots or more.",
    )
    autoscale_wait: float = Field(
        default=10.0,
        gt=0,
        description="Seconds that the oldest job of a kind may wait before `jobctl up --autoscale` "
        "starts one more process of it.",
    )
    autoscale_calm: float = Field(
        default=60.0,
        gt=0,
        description="Seconds for which one process less would have done before it retires one.",
    )
    shutdown_grace: float = Field(
        default=30, ge=0, description="Seconds that running jobs get to finish after SIGTERM."
    )
    takeover_after: float = Field(
        default=1.5,
        gt=0,
        description="Seconds without a sign of life after which a job is taken from its worker.",
    )
    api_host: str = Field(
        default="127.0.0.1",
        description="Address that the HTTP API listens on; beyond loopback it needs a key.",
    )
    api_port: int = Field(default=8000, ge=0, le=65535, description="Port of the HTTP API.")
    api_tls_cert: Path | None = Field(
        default=None,
        description="File with the API's certificate and what signed it (PEM): it speaks HTTPS "
        "then. None: HTTP, with a proxy before it where others may listen.",
    )
    api_tls_key: Path | None = Field(
        default=None, description="File with the private key of JOBS_API_TLS_CERT (PEM)."
    )
    api_url: str = Field(
        default="http://127.0.0.1:8000",
        pattern="^https?://",
        description="Address of the HTTP API for those who call it: `jobctl documents`, "
        "`jobctl search`, the Python client.",
    )
    api_key: SecretStr | None = Field(default=None, description="The key that they send.")
    api_keys: SecretStr | None = Field(
        default=None,
        description="Keys of the HTTP API beside those of `jobctl keys`, comma-separated: KEY, or "
        "KEY:read+publish for some scopes only.",
    )
    api_rate_limit: float = Field(
        default=500, gt=0, description="Requests a second that one key, or one address, may make."
    )
    api_rate_burst: int = Field(
        default=1000, ge=1, description="Requests that it may make at once."
    )
    api_max_body: int = Field(
        default=2 * 1024 * 1024, ge=1024, description="Bytes of a request without a file."
    )
    api_body_timeout: float = Field(
        default=30, gt=0, description="Seconds in which a request without a file must be sent."
    )
    api_idle_timeout: float = Field(
        default=10, gt=0, description="Seconds without a byte after which a sender is given up."
    )
    api_trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Addresses or networks of proxies, comma-separated, whose `X-Forwarded-For` "
        "and `X-Forwarded-Proto` are believed; nobody's where unset.",
    )
    api_max_streams: int = Field(
        default=200, ge=1, description="Clients that one API process sends events to."
    )
    api_heartbeat: float = Field(
        default=15, gt=0, description="Seconds between signs of life in a stream of events."
    )
    pressure_slow_at: float = Field(
        default=0.5, gt=0, le=1, description="Part of a queue's limit from which it is slow."
    )
    pressure_full_at: float = Field(
        default=1.0, gt=0, le=1, description="Part of a queue's limit from which it is full."
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
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Address on which `jobctl worker` and `jobctl scheduler` show their metrics; "
        "they ask for no key.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of these metrics; none are shown where unset.",
    )
    log_format: str = Field(
        default="auto",
        pattern="^(auto|json|console)$",
        description="`json`, `console`, or `auto`: console on a terminal, JSON elsewhere.",
    )
    log_level: str = Field(
        default="info", pattern="^(debug|info|warning|error)$", description="Least level logged."
    )

    alert_webhook: SecretStr | None = Field(
        default=None,
        description="Address that the scheduler posts to when the doctor finds something, when it "
        "is over, and when a backfill or redrive ends. None: nobody is told.",
    )
    alert_format: Literal["json", "slack"] = Field(
        default="json", description="`slack` is for Slack and what understands its messages."
    )
    alert_secret: SecretStr | None = Field(
        default=None, description="Signs what is posted to JOBS_ALERT_WEBHOOK."
    )
    alert_interval: float = Field(
        default=30.0, gt=0, le=3600, description="Seconds between looks for what is to be told."
    )

    notify_secret: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Signs what is posted to a `notify_url`, 16 characters or more; without it no "
        "job may name one (docs/notices.md).",
    )
    notify_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Hosts of your own network that a `notify_url` may name, comma-separated: "
        "HOST:PORT; else only the open internet.",
    )

    @field_validator(
        "modules",
        "api_trusted_proxies",
        "reference_engines",
        "link_catalogues",
        "web_hosts",
        "notify_hosts",
        mode="before",
    )
    @classmethod
    def _split_list(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator(
        "database_url",
        "storage_url",
        "index_url",
        "classes",
        "contact",
        "github_token",
        "github_webhook_secret",
        "webhooks",
        "hf_token",
        "llm_base_url",
        "llm_api_key",
        "llm_prices",
        "llm_budget_per_day",
        "fair_from",
        "vision_model",
        "vision_base_url",
        "vision_api_key",
        "embed_base_url",
        "embed_api_key",
        "grobid_url",
        "api_tls_cert",
        "api_tls_key",
        "alert_webhook",
        "alert_secret",
        "notify_secret",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        """As in a compose file's `${NAME:-}`: an address of nothing is no address."""
        return None if value == "" else value

    @field_validator("web_hosts", "notify_hosts")
    @classmethod
    def _hosts_with_ports(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            try:
                parts = urlsplit(f"//{each}")
                complete = parts.netloc == each and parts.hostname and parts.port
            except ValueError:
                complete = False
            if not complete or "@" in each:
                raise ValueError("each host is HOST:PORT, such as intranet.example:80")
        return value

    @field_validator("ingest_paths", mode="before")
    @classmethod
    def _split_paths(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(Path(part) for part in value.split(os.pathsep) if part)
        return value

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.api_tls_cert is None) != (self.api_tls_key is None):
            raise ValueError("JOBS_API_TLS_CERT and JOBS_API_TLS_KEY go together: set both")
        return self

    @model_validator(mode="after")
    def _check_engines(self) -> Self:
        if "grobid" in self.reference_engines and self.grobid_url is None:
            raise ValueError("JOBS_REFERENCE_ENGINES has grobid: set JOBS_GROBID_URL")
        if "llm" in self.reference_engines and not self.llm_servers:
            raise ValueError("JOBS_REFERENCE_ENGINES has llm: set JOBS_LLM_BASE_URL")
        return self

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

    def slots_of(self, worker: str) -> int:
        """Jobs that this kind of worker runs at once, where nobody says otherwise. Those of the LLM
        worker wait for servers, which have limits of their own."""
        if worker == "llm" and self.llm_servers:
            return max(self.worker_concurrency, self.llm_concurrency_max)
        return self.worker_concurrency

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

    @property
    def ledger_url(self) -> str:
        """The SQLAlchemy address of the ledger."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite+aiosqlite:///{self.data_dir / 'ledger.db'}"

    @property
    def files_url(self) -> str:
        """The address of the file storage."""
        return self.storage_url or (self.data_dir / "files").as_uri()

    @property
    def vectors_url(self) -> str:
        """The address of the vector index."""
        if self.index_url is not None:
            return self.index_url.get_secret_value()
        return str(self.data_dir / "index")
