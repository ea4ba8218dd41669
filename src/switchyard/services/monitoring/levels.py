"""How full a lane can be, as plain values."""

from enum import StrEnum


class Pressure(StrEnum):
    """How full: a client that hears `slow` should publish less, one that hears `full` wait."""

    OK = "ok"
    SLOW = "slow"
    FULL = "full"
