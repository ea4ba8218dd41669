"""Describe calls of the operations on the service itself: lanes, workers, contract, health."""

from __future__ import annotations

from typing import Any

from switchyard.api.client.call import (
    Call,
    get,
    get_json,
    in_path,
    operation,
)
from switchyard.api.models import lanes as lane_models
from switchyard.api.models import service


@operation("lanes-backpressure")
def backpressure() -> Call[lane_models.PressureView]:
    """Return how full each lane is."""
    return get("/backpressure", lane_models.PressureView)


@operation("health-usage")
def usage() -> Call[service.UsageView]:
    """Return the space that is used: the ledger by table, files by kind, the index, queues."""
    return get("/usage", service.UsageView)


@operation("limits-list_limits")
def limits(*, waiting: bool | None = None) -> Call[service.LimitList]:
    """Return the named limits: how much is in use, how many jobs wait, and when a permit will be
    free; with `waiting`, only limits that jobs wait for."""
    return get("/limits", service.LimitList, waiting=waiting)


@operation("contract-list_schemas")
def schemas() -> Call[service.JobTypes]:
    """Return the job types with the JSON Schemas of their payloads."""
    return get("/schemas", service.JobTypes)


@operation("contract-show_schema")
def schema(job_type: str) -> Call[dict[str, Any]]:
    """Get the JSON Schema of the payload of a job type."""
    return get_json(f"/schemas/{in_path(job_type)}")


@operation("contract-show_asyncapi")
def asyncapi() -> Call[dict[str, Any]]:
    """Return the AsyncAPI document of the exchange."""
    return get_json("/asyncapi.json")


@operation("contract-list_problems")
def problems() -> Call[service.ProblemKinds]:
    """Return the kinds of problems that the service answers with."""
    return get("/problems", service.ProblemKinds)


@operation("contract-show_problem")
def problem(name: str) -> Call[service.ProblemKind]:
    """Return one kind of problem."""
    return get(f"/problems/{in_path(name)}", service.ProblemKind)


@operation("health-live")
def live() -> Call[service.Liveness]:
    """Check that the service's process answers."""
    return get("/health/live", service.Liveness)


@operation("health-ready")
def ready() -> Call[service.Readiness]:
    """Return the state of each dependency of the service. One that does not answer is part of the
    result, and raises no error."""
    return _health("/health/ready")


@operation("health-health")
def health() -> Call[service.Readiness]:
    """Return the same as `ready`, from `/health`."""
    return _health("/health")


@operation("health-metrics")
def metrics() -> Call[str]:
    """Return the service's metrics, as Prometheus reads them."""
    return Call("GET", "/metrics", bytes.decode, repeatable=True)


@operation("admin-lanes")
def lanes() -> Call[lane_models.LaneList]:
    """Return each lane's queues, and its jobs by state."""
    return get("/admin/lanes", lane_models.LaneList)


@operation("admin-workers")
def workers() -> Call[lane_models.WorkerList]:
    """Return the workers, the last started first."""
    return get("/admin/workers", lane_models.WorkerList)


@operation("admin-index")
def index() -> Call[lane_models.IndexView]:
    """Return the embedder of the index of chunks, and the progress of a rebuild."""
    return get("/admin/index", lane_models.IndexView)


def _health(path: str) -> Call[service.Readiness]:
    read = service.Readiness.model_validate_json
    return Call("GET", path, read, answer_statuses=frozenset({503}), repeatable=True)
