"""All settings of the system, from `JOBS_…` environment variables (docs/settings.md)."""

from __future__ import annotations

from itertools import pairwise
from typing import Self

from pydantic import model_validator

from switchyard.broker.settings import BrokerSettings
from switchyard.services.common.settings.api import ApiSettings
from switchyard.services.common.settings.documents import DocumentSettings
from switchyard.services.common.settings.jobs import (
    JobSettings,
    KeyedLimitOverride,
    LimitOverride,
    NoticeSettings,
    RetentionSettings,
)
from switchyard.services.common.settings.llm import LlmServer, LlmSettings
from switchyard.services.common.settings.locations import LocationSettings, default_data_dir
from switchyard.services.common.settings.processes import ProcessSettings
from switchyard.services.common.settings.sources import SourceSettings

ASCENDING = (
    ("llm_concurrency_min", "llm_concurrency", "llm_concurrency_max"),
    ("llm_ok_below", "llm_slow_at", "llm_full_at"),
    ("pressure_slow_at", "pressure_full_at"),
)
"""Groups of settings whose values must ascend."""
YIELDING_DEFAULTS = frozenset({"llm_concurrency"})
"""Settings of these groups whose default is ignored where it does not fit its neighbours."""

__all__ = ["KeyedLimitOverride", "LimitOverride", "LlmServer", "Settings", "default_data_dir"]


class Settings(
    # Listed from the last part of docs/settings.md to the first.
    NoticeSettings,
    ApiSettings,
    ProcessSettings,
    SourceSettings,
    DocumentSettings,
    LlmSettings,
    RetentionSettings,
    JobSettings,
    LocationSettings,
    BrokerSettings,
):
    """Settings of workers, scheduler, API and CLI. Secrets never reach a log."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for names in ASCENDING:
            chain = [
                each
                for each in names
                if each in self.model_fields_set or each not in YIELDING_DEFAULTS
            ]
            for less, more in pairwise(chain):
                if getattr(self, less) > getattr(self, more):
                    raise ValueError(
                        f"{self._variable_name(less)} is more than {self._variable_name(more)}"
                    )
        return self

    def _variable_name(self, name: str) -> str:
        default = "" if name in self.model_fields_set else ", its default"
        return f"JOBS_{name.upper()} ({getattr(self, name):g}{default})"

    @model_validator(mode="after")
    def _check_engines(self) -> Self:
        if "grobid" in self.reference_engines and self.grobid_url is None:
            raise ValueError("JOBS_REFERENCE_ENGINES has grobid: set JOBS_GROBID_URL")
        if "llm" in self.reference_engines and not self.llm_servers:
            raise ValueError("JOBS_REFERENCE_ENGINES has llm: set JOBS_LLM_BASE_URL")
        return self

    @property
    def for_embeddings(self) -> Self | None:
        """A copy of the settings with the embedding server as the only one; None without such a
        server."""
        if self.embed_base_url is None:
            return None
        server = LlmServer(
            name="embeddings",
            base_url=self.embed_base_url,
            model=self.embed_model,
            api_key=self.embed_api_key,
        )
        return self.model_copy(update={"llm_providers": (server,), "llm_base_url": None})

    @property
    def model_servers(self) -> tuple[LlmServer, ...]:
        """`llm_servers`, and the servers of the vision model and of embeddings."""
        others = (self.for_vision, self.for_embeddings)
        return (
            *self.llm_servers,
            *(server for each in others if each for server in each.llm_servers),
        )

    def slots_of(self, worker: str) -> int:
        """Return how many jobs a worker of this kind runs at once by default. Jobs of the LLM
        worker wait for servers, which have limits of their own."""
        if worker == "llm" and self.llm_servers:
            return max(self.worker_concurrency, self.llm_concurrency_max)
        return self.worker_concurrency
