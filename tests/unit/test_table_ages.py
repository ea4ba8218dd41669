"""Every table of the ledger keeps its rows for a limited time, or is listed with a reason."""

from __future__ import annotations

import importlib

import pytest
from sqlalchemy import Table

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger.sql.tables import metadata
from switchyard.services.llm.ledger import llm_tables
from switchyard.services.pipeline.ledger import pipeline_tables

ENGINE = "switchyard.services.engine.ledger"
JOB_LIMITS = ("keep_succeeded", "keep_cancelled", "keep_dead")
MODEL_CALL_LIMIT = "switchyard.services.llm.batch_runner.RETENTION"
AGE_LIMITS: dict[str, tuple[str, ...]] = {
    "alerts": ("switchyard.services.engine.alerts.alerter.RECENT_SECONDS",),
    "archive_files": ("keep_archive",),
    "attempts": JOB_LIMITS,
    "bulk_operations": ("keep_operations",),
    "catalogue_answers": ("link_answers_days",),
    "crawl_pages": ("crawls_kept_days",),
    "crawls": ("crawls_kept_days",),
    "dead_letters": JOB_LIMITS,
    "job_actions": (*JOB_LIMITS, "keep_operations"),
    "job_checkpoints": JOB_LIMITS,
    "job_progress": JOB_LIMITS,
    "job_tags": JOB_LIMITS,
    "job_types": ("switchyard.services.engine.records.job_types.TYPE_TTL",),
    "jobs": JOB_LIMITS,
    "joins": JOB_LIMITS,
    "lane_minutes": (f"{ENGINE}.lane_history.KEPT_FOR",),
    "leases": ("switchyard.services.pipeline.workers.reindex.LEASE_RETENTION",),
    "letter_edits": (*JOB_LIMITS, "keep_operations"),
    "limit_holds": (f"{ENGINE}.limits.IDLE_LIMIT_TTL",),
    "limit_waits": (f"{ENGINE}.limits.FORGOTTEN_AFTER",),
    "limits": (f"{ENGINE}.limits.IDLE_LIMIT_TTL",),
    "llm_accounts": ("llm_spend_days",),
    "llm_answers": ("llm_answers_days", "llm_answers_mb"),
    "llm_batch_items": (MODEL_CALL_LIMIT,),
    "llm_batch_waits": (MODEL_CALL_LIMIT,),
    "llm_batches": (MODEL_CALL_LIMIT,),
    "llm_calls": ("llm_spend_days",),
    "llm_minutes": ("switchyard.services.llm.ledger.llm_history.KEPT_FOR",),
    "llm_pauses": ("switchyard.services.llm.ledger.llm_history.KEPT_FOR",),
    "loop_blocks": (f"{ENGINE}.workers.BLOCKS_KEPT_FOR",),
    "openai_batches": ("keep_openai_files",),
    "openai_files": ("keep_openai_files",),
    "pauses": (f"{ENGINE}.pauses.HISTORY_SECONDS",),
    "redriven_letters": ("keep_operations",),
    "schedule_firings": (f"{ENGINE}.schedules.MAX_FIRINGS",),
    "sessions": ("switchyard.api.dashboard.sessions.SESSION_SECONDS",),
    "workers": (f"{ENGINE}.retention.WORKERS_KEPT_FOR",),
}
"""Settings or constants that limit the age or the number of a table's rows."""

REASONS_WITHOUT_LIMIT = {
    "api_key_allowances": "one row a key",
    "api_keys": "people make them; a revoked one still names the owner of its jobs",
    "document_classes": "goes with its document",
    "documents": "what the system is for: they stay until somebody deletes them",
    "graph_counters": "one row each",
    "graph_documents": "goes with its document",
    "graph_edges": "goes with the documents that say so",
    "graph_keys": "goes with its node",
    "graph_nodes": "goes with the documents that name it",
    "graph_rankings": "the last one, and the one that is being made",
    "graph_ranks": "goes with its ranking",
    "leftover_letters": "until a scan has gone through jobs.dead",
    "llm_servers": "one row for each server of the settings",
    "llm_slots": "one row for each call under way; those that ran out go with the next call",
    "schedules": "people make them, or a file",
    "system_id": "one row",
}
"""Why the rows of a table need no limit."""


def tables() -> dict[str, Table]:
    assert {llm_tables.llm_calls.name, pipeline_tables.documents.name} <= metadata.tables.keys()
    return dict(metadata.tables)


def test_every_table_has_an_age_limit_or_a_reason() -> None:
    assert not AGE_LIMITS.keys() & REASONS_WITHOUT_LIMIT.keys()
    assert sorted(AGE_LIMITS.keys() | REASONS_WITHOUT_LIMIT.keys()) == sorted(tables())


@pytest.mark.parametrize(
    "name", sorted({each for limits in AGE_LIMITS.values() for each in limits})
)
def test_an_age_limit_is_a_setting_or_a_constant(name: str) -> None:
    module, _, constant = name.rpartition(".")
    if not module:
        assert Settings.model_fields[name].description
        return
    assert getattr(importlib.import_module(module), constant) > 0
