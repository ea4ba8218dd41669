"""How values are written in environment variables."""

from __future__ import annotations

from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

Value = TypeVar("Value")


def _off_is_none(value: object) -> object:
    return None if value == "off" else value


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _with_ports(value: tuple[str, ...]) -> tuple[str, ...]:
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
"""A value, or None if the variable is `off`: for a setting with a default, which an empty variable
leaves in place."""
Listed = Annotated[tuple[Value, ...], NoDecode, BeforeValidator(_split)]
"""Several values, separated by commas."""
Hosts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_with_ports)]
"""Hosts with their ports, comma-separated."""
