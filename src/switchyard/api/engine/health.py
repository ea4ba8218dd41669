"""`/health…`: whether this process and its dependencies can work. Needs no key."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from typing import Any

from fastapi import Request, Response

from switchyard.api.http.routing import Routes
from switchyard.api.models.service import ComponentView, Liveness, Readiness
from switchyard.api.state import ApiState, BrokerSide
from switchyard.services.engine.access.rate_limit import RateLimitedCall
from switchyard.services.engine.monitoring.checks.host import require_room_for_ledger
from switchyard.services.engine.monitoring.health import Component, Probe, run_probes

router = Routes(prefix="/health", tags=["health"])

EXAMINATION_RATE, EXAMINATION_BURST = 1.0, 3
"""Full checks per second on average, and in a burst. A check writes a file, and anybody may ask
without a key: more frequent requests get the latest result."""
EVENTS = "events"
"""The component that is shown, but not needed to accept jobs."""


AWAY: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "Something that is needed is away."}
}


@router.get("/live")
async def live() -> Liveness:
    """Liveness probe: the process runs. Nothing else is checked."""
    return Liveness()


@router.get("/ready", responses=AWAY)
async def ready(request: Request, response: Response) -> Readiness:
    """Readiness probe: checks broker, ledger and storage, with latencies. 503 if one is
    unreachable, its disk is full, or an alarm of the broker blocks publishing.

    `events` tells whether this process receives job events; it does not cause a 503.
    """
    components = await request.app.state.health.get()
    away = any(each.state != "ok" for each in components if each.name != EVENTS)
    if away:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return Readiness(
        status="away" if away else "ok",
        components={each.name: _view_component(each) for each in components},
    )


@router.get("", responses=AWAY)
async def health(request: Request, response: Response) -> Readiness:
    """The same as `/health/ready`."""
    return await ready(request, response)


def rate_limited_checks(state: ApiState) -> RateLimitedCall[list[Component]]:
    """Return the check of the components, which runs at a limited rate: `app.state.health`."""
    return RateLimitedCall(lambda: run_probes(_checks(state)), EXAMINATION_RATE, EXAMINATION_BURST)


def _checks(state: ApiState) -> dict[str, Probe]:
    checks: dict[str, Probe] = {
        "ledger": partial(_probe_ledger, state),
        "storage": lambda: state.storage.put_async(_probe_key(), b"ok"),
    }
    if state.broker is not None:
        checks["broker"] = partial(_probe_broker, state.broker)
        checks[EVENTS] = state.broker.feed.check
    return checks


async def _probe_ledger(state: ApiState) -> None:
    """Check that the ledger answers. Raises LedgerError."""
    await state.ledger.check()
    await state.ledger.disk_space.require_room()
    await asyncio.to_thread(require_room_for_ledger, state.settings)


async def _probe_broker(broker: BrokerSide) -> None:
    """Check that the broker answers. Raises BrokerUnavailable; Blocked under an alarm, which the
    broker tells to publishing connections."""
    await broker.pressure.probe()
    await broker.publisher.probe()


def _probe_key() -> str:
    """Return the key of a file that only this process writes: two writers of one file could disturb
    each other. `files.storage_cleanup` removes it when it is not written any more."""
    return f"health/probe-{socket.gethostname()}-{os.getpid()}"


def _view_component(component: Component) -> ComponentView:
    return ComponentView(state=component.state, latency_ms=round(component.latency * 1000, 1))
