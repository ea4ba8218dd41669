"""Named limits of job types: how many of them run at once or start in a minute, in the whole fleet.

A limit is declared where the job type is (`@job(…, limits=[Limit(…)])`); several types that name
the same one share its room. JOBS_LIMITS gives other numbers without a change of code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.jobs.retry import Failure
from switchyard.services.engine.records.limits import LimitSize, PermitDemand

if TYPE_CHECKING:  # whoever only declares a handler does not need it
    from switchyard.services.common.settings import LimitNumbers

MAX_KEY = 120
"""Characters of a key; a longer one is known by its hash."""
CHARACTERS_PER_TOKEN = 4
"""Characters of a payload's JSON per token, where nothing else tells how many tokens a job uses."""


class LimitRefused(PermanentError):
    """A job can never get its permits: it needs more than its limit allows, or its key can't be
    determined."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Room that jobs share, kept by all workers together.

    `concurrency` jobs run at once, `per_minute` start within any 60 seconds, `tokens_per_minute`
    of these use at most so many tokens; None, no limit.

    With `key`, each key has that much room for itself: the name of a field of the payload, or a
    function of the payload. `tokens` tells how many tokens a job will use, in the same ways;
    without it, the payload's characters as JSON, divided by four. `JobContext.used` corrects that.
    """

    name: str
    concurrency: int | None = None
    per_minute: int | None = None
    tokens_per_minute: int | None = None
    key: str | Callable[[Any], Any] | None = None
    tokens: str | Callable[[Any], Any] | None = None

    @property
    def size_for(self) -> LimitSize:
        return LimitSize(self.concurrency, self.per_minute, self.tokens_per_minute)

    def need(self, payload: BaseModel, numbers: Mapping[str, LimitNumbers]) -> PermitDemand | None:
        """Return what a job with that payload needs, by the numbers of JOBS_LIMITS where it has
        some; None where nothing is limited. Raises LimitRefused."""
        key = self._key(payload)
        room = _overridden(self.size_for, numbers.get(self.name), key)
        if room == LimitSize():
            return None
        tokens = 0 if room.tokens_per_minute is None else self._tokens(payload)
        if room.tokens_per_minute is not None and tokens > room.tokens_per_minute:
            raise LimitRefused(
                f"{tokens:,} tokens cannot pass the limit {self.name} of "
                f"{room.tokens_per_minute:,} a minute: make the job smaller, or the limit larger "
                "(JOBS_LIMITS)"
            )
        return PermitDemand(self.name, key, room, tokens)

    def _key(self, payload: BaseModel) -> str:
        if self.key is None:
            return ""
        value = self._resolve(self.key, payload, "key")
        text = "" if value is None else str(value)
        text = text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")
        if len(text) > MAX_KEY:
            return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        return text

    def _tokens(self, payload: BaseModel) -> int:
        if self.tokens is None:
            return -(-len(payload.model_dump_json()) // CHARACTERS_PER_TOKEN)
        value = self._resolve(self.tokens, payload, "tokens")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise LimitRefused(f"the tokens of the limit {self.name} are {value!r}, not a number")
        return int(min(value, 10**12))

    def _resolve(self, by: str | Callable[[Any], Any], payload: BaseModel, what: str) -> Any:
        if isinstance(by, str):
            return getattr(payload, by)
        try:
            return by(payload)
        except BaseException as error:  # whatever a function of the user's does
            failure = Failure.from_error(error)
            raise LimitRefused(
                f"the {what} of the limit {self.name} can't be told: "
                f"{failure.error_type}: {failure.message}"
            ) from error


def needs_of(
    limits: Sequence[Limit], payload: BaseModel, numbers: Mapping[str, LimitNumbers]
) -> list[PermitDemand]:
    """Return what a job with that payload needs, in an order that is the same everywhere. Raises
    LimitRefused."""
    demands = {}
    for limit in limits:
        need = limit.need(payload, numbers)
        if need is not None:
            demands[need.name, need.key] = need
    return [demands[each] for each in sorted(demands)]


def _overridden(room: LimitSize, numbers: LimitNumbers | None, key: str) -> LimitSize:
    if numbers is None:
        return room
    settings = numbers.given() | (numbers.keys[key].given() if key in numbers.keys else {})
    return LimitSize(
        concurrency=settings.get("concurrency", room.concurrency),
        per_minute=settings.get("per_minute", room.per_minute),
        tokens_per_minute=settings.get("tokens_per_minute", room.tokens_per_minute),
    )
