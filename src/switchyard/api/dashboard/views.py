"""All views, in the order of the navigation. A new one: a module with a `router`, listed here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from switchyard.api.dashboard import (
    backfills,
    dead,
    dead_edit,
    documents,
    job_actions,
    jobs,
    limits,
    llm,
    new_job,
    overview,
    pauses,
    schedules,
    signing_in,
    workers,
)
from switchyard.api.dashboard.live import Feeds
from switchyard.api.dashboard.pages import Dashboard, Renderer
from switchyard.api.dashboard.readings import Readings
from switchyard.api.dashboard.sessions import SessionStore
from switchyard.api.state import ApiState

VIEWS = (
    overview.router,
    jobs.router,
    dead.router,
    backfills.router,
    workers.router,
    schedules.router,
    limits.router,
    llm.router,
    documents.router,
)
ROUTERS = (
    signing_in.router,
    signing_in.file_router,
    pauses.router,
    dead_edit.router,
    job_actions.router,
    new_job.router,
    documents.files,
    *VIEWS,
)


@asynccontextmanager
async def open_dashboard(app: FastAPI, state: ApiState) -> AsyncIterator[None]:
    """Give the application the state that its pages share, and close it at the end."""
    app.state.sessions = SessionStore(state)
    dashboard = Dashboard(tuple(each.view for each in VIEWS), Renderer(), Feeds())
    app.state.dashboard = dashboard
    state.ledger.observe(dashboard.writes.observe)
    app.state.readings = readings = Readings(state)
    try:
        yield
    finally:
        await readings.close()
