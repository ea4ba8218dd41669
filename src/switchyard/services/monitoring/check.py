"""One question about the system, answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "wrong"]
"""`warning`: look at it some time."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question, answered."""

    name: str
    status: Status
    detail: str
    remedy: str = ""
    """What to do; empty where nothing is to be done."""
