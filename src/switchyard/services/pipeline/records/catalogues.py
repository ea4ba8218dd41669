"""What the ledger keeps of catalogues' answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CatalogueClaims:
    """What became of a claim to several questions. Those in neither are asked by others."""

    kept: Mapping[str, list[Any]]
    """What was answered before, by key."""
    claimed: tuple[str, ...]
    """Whoever got this is to ask them."""
