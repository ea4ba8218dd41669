"""The wing of the job engine itself."""

from __future__ import annotations

from switchyard.services.engine.wings import Wing

WING = Wing(
    name="engine",
    job_modules=("switchyard.services.engine.alerts.notices",),
    source_modules=("switchyard.services.engine.backfill.files",),
    periodic_duties="switchyard.services.engine.scheduler.duties:engine_duties",
)
