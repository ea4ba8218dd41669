"""What a site's robots.txt says (RFC 9309), read by Protego in a process that can be killed: a
pattern with many wildcards takes a regular expression very long."""

from __future__ import annotations

from dataclasses import dataclass

AGENT = "switchyard"
"""The name that robots.txt knows us by."""
MAX_BYTES = 500 * 1024
"""Of a robots.txt; what is behind that is not read, as the RFC says."""
MAX_DELAY = 60.0
"""Seconds of a `Crawl-delay` that is kept."""


@dataclass(frozen=True, slots=True)
class RobotsVerdict:
    """What a robots.txt says of one address."""

    allowed: bool
    delay: float = 0.0
    """Seconds that it wants between two requests."""


def judge(robots: str, url: str) -> RobotsVerdict:
    """Return the verdict of a robots.txt for us, by the most specific rule."""
    from protego import Protego  # type: ignore[import-untyped,unused-ignore]

    rules = Protego.parse(robots)
    delay = rules.crawl_delay(AGENT) or 0.0
    return RobotsVerdict(bool(rules.can_fetch(url, AGENT)), min(max(float(delay), 0.0), MAX_DELAY))
