"""Declare named limits of job types: how many jobs run at once or start in a minute, over all
workers.

A limit is declared with the job type (`@job(…, limits=[Limit(…)])`); types that name the same limit
share it. JOBS_LIMITS changes its numbers without a change of code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.records.limits import LimitSize, PermitDemand

if TYPE_CHECKING:  # a module that only declares handlers does not need it
    from switchyard.services.common.settings import KeyedLimitOverride

MAX_KEY_LENGTH = 120
"""Characters of a key; a longer key is replaced by its hash."""
CHARACTERS_PER_TOKEN = 4
"""Characters of a payload's JSON per token, where nothing else tells how many tokens a job uses."""


class LimitRefused(PermanentError):
    """A job can never get its permits: it needs more than its limit allows, or its key can't be
    determined."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that jobs share, over all workers.

    At most `concurrency` jobs run at once, and `per_minute` start within any 60 seconds, which
    together use at most `tokens_per_minute` tokens. None: no limit.

    With `key`, each key has a limit of its own; `key` is the name of a field of the payload, or a
    function of the payload. `tokens`, in the same forms, is the estimate of a job's tokens; without
    it, that is the number of characters of the payload's JSON, divided by four.
    `JobContext.report_usage` corrects the estimate.
    """

    name: str
    concurrency: int | None = None
    per_minute: int | None = None
    tokens_per_minute: int | None = None
    key: str | Callable[[Any], Any] | None = None
    tokens: str | Callable[[Any], Any] | None = None

    @property
    def size(self) -> LimitSize:
        """The declared size."""
        return LimitSize(self.concurrency, self.per_minute, self.tokens_per_minute)

    def demand_of(
        self, payload: BaseModel, overrides: Mapping[str, KeyedLimitOverride]
    ) -> PermitDemand | None:
        """Return the permit that a job with that payload needs; None where nothing is limited.
        `overrides`: JOBS_LIMITS. Raises LimitRefused."""
        key = self._key(payload)
        size = _override_size(self.size, overrides.get(self.name), key)
        if size == LimitSize():
            return None
        tokens = 0 if size.tokens_per_minute is None else self._tokens(payload)
        if size.tokens_per_minute is not None and tokens > size.tokens_per_minute:
            raise LimitRefused(
                f"{tokens:,} tokens cannot pass the limit {self.name} of "
                f"{size.tokens_per_minute:,} a minute: make the job smaller, or the limit larger "
                "(JOBS_LIMITS)"
            )
        return PermitDemand(self.name, key, size, tokens)

    def _key(self, payload: BaseModel) -> str:
        if self.key is None:
            return ""
        value = self._resolve(self.key, payload, "key")
        text = "" if value is None else str(value)
        text = text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
        if len(text) > MAX_KEY_LENGTH:
            return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        return text

    def _tokens(self, payload: BaseModel) -> int:
        if self.tokens is None:
            return -(-len(payload.model_dump_json()) // CHARACTERS_PER_TOKEN)
        value = self._resolve(self.tokens, payload, "tokens")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise LimitRefused(f"the tokens of the limit {self.name} are {value!r}, not a number")
        return int(min(value, 10**12))

    def _resolve(self, source: str | Callable[[Any], Any], payload: BaseModel, label: str) -> Any:
        if isinstance(source, str):
            return getattr(payload, source)
        try:
            return source(payload)
        except BaseException as error:  # a function of the user's may raise anything
            failure = Failure.from_error(error)
            raise LimitRefused(
                f"the {label} of the limit {self.name} can't be told: "
                f"{failure.error_type}: {failure.message}"
            ) from error


def demands_of(
    limits: Sequence[Limit], payload: BaseModel, overrides: Mapping[str, KeyedLimitOverride]
) -> list[PermitDemand]:
    """Return the permits that a job with that payload needs, sorted by limit and key. Raises
    LimitRefused."""
    demands = {}
    for limit in limits:
        demand = limit.demand_of(payload, overrides)
        if demand is not None:
            demands[demand.name, demand.key] = demand
    return [demands[each] for each in sorted(demands)]


def _override_size(size: LimitSize, override: KeyedLimitOverride | None, key: str) -> LimitSize:
    if override is None:
        return size
    of_key = override.keys[key].overrides() if key in override.keys else {}
    return replace(size, **(override.overrides() | of_key))
