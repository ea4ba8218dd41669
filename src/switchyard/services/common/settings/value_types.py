"""Parse values of environment variables."""

from __future__ import annotations

from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from switchyard.services.common.durations import DURATION_HELP, parse_seconds

Value = TypeVar("Value")


def _off_is_none(value: object) -> object:
    return None if value == "off" else value


def _split_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


MIN_AGE = 60.0
"""Shortest age, in seconds: a shorter one would remove records before anybody has seen them."""


def _parse_age(value: object) -> object:
    if not isinstance(value, str):
        return value
    seconds = parse_seconds(value)
    if seconds < MIN_AGE:
        raise ValueError(f"an age is at least 1m, {DURATION_HELP}")
    return seconds


def _parse_ages(value: object) -> object:
    """Parse `NAME=AGE,…` into seconds by name; None stands for `off`: kept for ever."""
    if not isinstance(value, str):
        return value
    ages: dict[str, object] = {}
    for part in filter(None, (each.strip() for each in value.split(","))):
        name, _, age = (each.strip() for each in part.partition("="))
        if not name or not age or name in ages:
            raise ValueError("write each name once, as NAME=AGE, such as fetch_page=7d")
        ages[name] = _off_is_none(age) and _parse_age(age)
    return ages


def _check_ports(value: tuple[str, ...]) -> tuple[str, ...]:
    for each in value:
        try:
            parts = urlsplit(f"//{each}")
            complete = parts.netloc == each and parts.hostname and parts.port
        except ValueError:
            complete = False
        if not complete or "@" in each:
            raise ValueError("each host is HOST:PORT, such as intranet.example:80")
    return value


OrOff = Annotated[Value | None, BeforeValidator(_off_is_none)]
"""A value, or None if the variable is `off`. For a setting with a default: an empty variable means
the default, so `off` is the way to say none."""
Age = Annotated[float | None, BeforeValidator(_parse_age), BeforeValidator(_off_is_none)]
"""Seconds for which something is kept, written as `30d`; None, for ever, if the variable is
`off`."""
AgesByName = Annotated[dict[str, float | None], NoDecode, BeforeValidator(_parse_ages)]
"""An `Age` for each of several job types or lanes."""
Listed = Annotated[tuple[Value, ...], NoDecode, BeforeValidator(_split_commas)]
"""Several values, separated by commas."""
Hosts = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(_split_commas), AfterValidator(_check_ports)
]
"""Hosts with their ports, comma-separated."""
