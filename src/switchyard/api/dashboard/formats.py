"""Write numbers, durations, sizes and times for pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from switchyard.broker.wording import rate_in_words, size_in_words
from switchyard.services.common.durations import duration_text
from switchyard.services.common.printable import printable, printable_json

NOTHING = "–"


class Html(str):
    """A text that is HTML already: templates do not escape objects with the method `__html__`."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def number(value: float | None) -> str:
    """Write a number with separated thousands, a large one in short form."""
    if value is None:
        return NOTHING
    if abs(value) >= 10_000_000:
        return f"{value / 1_000_000:,.1f} M"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """Write a duration with its two largest units, or as a fraction of a second."""
    return NOTHING if seconds is None else duration_text(seconds)


def moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def ago(at: float | datetime | None, now: float) -> str:
    """Write how long ago a moment was, by the largest unit, or in how long it comes, by the two
    largest: a `<time>` with the exact moment on hover. The page's script keeps it up to date."""
    if at is None:
        return NOTHING
    when = moment(at) if isinstance(at, int | float) else at.astimezone(UTC)
    if when is None:
        return NOTHING
    past = now - when.timestamp()
    if abs(past) < 1:
        text = "now"
    elif past > 0:
        text = f"{duration_text(round(past), units=1)} ago"
    else:
        text = f"in {duration(-past)}"
    return _time(when, text, "ago")


def since(at: float | None, now: float) -> str:
    """Write the time that has passed since a moment, with the moment on hover. The page's script
    keeps it up to date."""
    when = moment(at)
    if at is None or when is None:
        return NOTHING
    return _time(when, duration(now - at), "since")


def _time(when: datetime, text: str, counted: str) -> Html:
    exact = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    machine_readable = when.isoformat(timespec="milliseconds")
    return Html(f'<time datetime="{machine_readable}" title="{exact}" data-{counted}>{text}</time>')


def clock(at: float | None) -> str:
    """Write the time of the day, in UTC."""
    when = moment(at)
    return NOTHING if when is None else when.strftime("%H:%M")


def size(count: float | None) -> str:
    """Write a number of bytes with a unit."""
    return NOTHING if count is None else size_in_words(count)


def percent(part: float | None) -> str:
    return NOTHING if part is None else f"{part:.0f} %"


def as_json(value: object) -> str:
    """Write a payload or a result as people read it."""
    return printable_json(json.dumps(value, indent=2, ensure_ascii=False, default=str))


class Exact(str):
    """A text in a form that sends it back: it must not be changed."""

    __slots__ = ()


def exact(value: object) -> object:
    """Mark a form's value as one that must not be changed."""
    return Exact(value) if isinstance(value, str) else value


def shown(value: object) -> object:
    """Return a value as it is written into a page. Text loses characters that would change how the
    text around it is read; `Html` and `Exact` stay as they are."""
    if isinstance(value, str) and not isinstance(value, Exact) and not hasattr(value, "__html__"):
        return printable(value)
    return value


def code_parts(text: str) -> list[tuple[str, bool]]:
    """Cut a text at its backticks; return each part with whether it is code."""
    return [(part, bool(index % 2)) for index, part in enumerate(text.split("`")) if part]


FILTERS: Mapping[str, Callable[..., Any]] = {
    "number": number,
    "rate": rate_in_words,
    "duration": duration,
    "ago": ago,
    "since": since,
    "clock": clock,
    "size": size,
    "percent": percent,
    "json": as_json,
    "code_parts": code_parts,
    "exact": exact,
}
