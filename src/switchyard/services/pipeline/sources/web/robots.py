"""Read a site's robots.txt (RFC 9309) with Protego, in a process that can be killed: matching a
pattern with many wildcards takes very long."""

from __future__ import annotations

from dataclasses import dataclass

AGENT = "switchyard"
"""Our name in a robots.txt."""
MAX_BYTES = 500 * 1024
"""Bytes of a robots.txt that are read, as the RFC says."""
MAX_DELAY = 60.0
"""Seconds between requests at most; a longer `Crawl-delay` counts as this."""


@dataclass(frozen=True, slots=True)
class RobotsVerdict:
    """Whether a robots.txt allows an address, and at which interval."""

    allowed: bool
    delay: float = 0.0
    """Fewest seconds between two requests."""


def judge(robots: str, url: str) -> RobotsVerdict:
    """Return the verdict of a robots.txt for us, by the most specific rule."""
    from protego import Protego  # type: ignore[import-untyped,unused-ignore]

    rules = Protego.parse(robots)
    delay = rules.crawl_delay(AGENT) or 0.0
    return RobotsVerdict(bool(rules.can_fetch(url, AGENT)), min(max(float(delay), 0.0), MAX_DELAY))
