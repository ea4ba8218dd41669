"""Whether the servers of language models answer."""

from __future__ import annotations

import shlex
from datetime import timedelta

from switchyard.services.engine.monitoring.check import Check, Finding, warning, well, wrong
from switchyard.services.engine.monitoring.checks.examined import Examined
from switchyard.services.llm.records.llm import TRIED

LASTING = TRIED + 5
"""Failures in a row from which a server is told of: it was tried for over half a minute."""
LONG_PAUSE = 120.0
"""Seconds left of a pause from which it is told of: more than a server's limits per minute take."""


async def model_servers(system: Examined) -> list[Check]:
    """Those of the settings that fail again and again, or have asked for a long pause; nothing
    where none was called yet."""
    names = {each.name for each in system.settings.model_servers}
    known = [each for each in await system.need_ledger().llm_servers() if each.name in names]
    failing = [each for each in known if each.state.failures >= LASTING]
    paused = [each for each in known if each.paused_for >= LONG_PAUSE and each not in failing]
    kind = warning if len(failing) < len(names) else wrong
    checks = [
        kind(
            "model servers",
            Finding.MODEL_SERVER_FAILS,
            f"{each.name} has failed {each.state.failures:,} times in a row: "
            f"{each.state.pause_reason or 'no reason is known'}",
            "start it, or correct its address, model or key and restart the workers; "
            "`jobctl llm status`",
        )
        for each in failing
    ]
    checks += [
        warning(
            "model servers",
            Finding.MODEL_SERVER_PAUSED,
            f"{each.name} is paused for {timedelta(seconds=round(each.paused_for))} more: "
            f"{each.state.pause_reason or 'no reason is known'}; its requests wait, and go on then",
            "nothing, if they may wait; to ask it again at once, as when its limit was raised: "
            f"`jobctl llm resume {shlex.quote(each.name)}`; else name another server in "
            "JOBS_LLM_PROVIDERS and restart the workers; `jobctl llm status`",
        )
        for each in paused
    ]
    if checks or not known:
        return checks
    return [well("model servers", f"{len(known):,} of {len(names):,} called, and none fails")]
