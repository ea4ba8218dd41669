"""`/metrics`: what Prometheus asks for, of this process and of the system as a whole."""

from __future__ import annotations

from typing import Any

from fastapi import Response

from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs
from switchyard.api.state import Shared
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.monitoring.metrics import CONTENT_TYPE

router = Routes(tags=["health"])

TEXT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}}
}


@router.get("/metrics", dependencies=[needs(Scope.READ)], responses=TEXT, response_class=Response)
async def metrics(state: Shared) -> Response:
    """Show the metrics in Prometheus' text format (docs/metrics.md)."""
    return Response(await state.metrics.scraped(), media_type=CONTENT_TYPE)
