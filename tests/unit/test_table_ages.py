"""Every table of the ledger has rows for a limited time, or says why its rows stay."""

from __future__ import annotations

import importlib

import pytest
from sqlalchemy import Table

from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger.sql.tables import metadata
from switchyard.services.llm.ledger import llm_tables
from switchyard.services.pipeline.ledger import pipeline_tables

ENGINE = "switchyard.services.engine.ledger"
OF_JOBS = ("keep_succeeded", "keep_cancelled", "keep_dead")
OF_MODEL_CALLS = "switchyard.services.llm.batch_runner.RETENTION"
AGES: dict[str, tuple[str, ...]] = {
    "alerts": ("switchyard.services.engine.alerts.alerter.RECENT_SECONDS",),
    "archive_files": ("keep_archive",),
    "attempts": OF_JOBS,
    "bulk_operations": ("keep_operations",),
    "catalogue_answers": ("link_answers_days",),
    "crawl_pages": ("crawls_kept_days",),
    "crawls": ("crawls_kept_days",),
    "dead_letters": OF_JOBS,
    "job_actions": (*OF_JOBS, "keep_operations"),
    "job_checkpoints": OF_JOBS,
    "job_progress": OF_JOBS,
    "job_tags": OF_JOBS,
    "job_types": ("switchyard.services.engine.records.job_types.TYPE_TTL",),
    "jobs": OF_JOBS,
    "joins": OF_JOBS,
    "lane_minutes": (f"{ENGINE}.lane_history.KEPT_FOR",),
    "leases": ("switchyard.services.pipeline.workers.reindex.LEASE_RETENTION",),
    "letter_edits": (*OF_JOBS, "keep_operations"),
    "limit_holds": (f"{ENGINE}.limits.IDLE_LIMIT_TTL",),
    "limit_waits": (f"{ENGINE}.limits.FORGOTTEN_AFTER",),
    "limits": (f"{ENGINE}.limits.IDLE_LIMIT_TTL",),
    "llm_accounts": ("llm_spend_days",),
    "llm_answers": ("llm_answers_days", "llm_answers_mb"),
    "llm_batch_items": (OF_MODEL_CALLS,),
    "llm_batch_waits": (OF_MODEL_CALLS,),
    "llm_batches": (OF_MODEL_CALLS,),
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
"""For how long the rows of a table are kept, or how many: settings, or constants."""

STAY = {
    "api_key_allowances": "one row a key",
    "api_keys": "people make them; a revoked one says whose the jobs were that it made",
    "document_classes": "goes with its document",
    "documents": "what the system is for: they stay until somebody deletes them",
    "graph_counters": "one row each",
    "graph_documents": "goes with its document",
    "graph_edges": "goes with the documents that say so",
    "graph_keys": "goes with its node",
    "graph_nodes": "goes with the documents that name it",
    "graph_rankings": "the last one, and the one that is being made",
    "graph_ranks": "of these",
    "leftover_letters": "until a scan has gone through jobs.dead",
    "llm_servers": "one row for each server of the settings",
    "llm_slots": "one row for each call under way; those that ran out go with the next call",
    "schedules": "people make them, or a file",
    "system_id": "one row",
}
"""Why the rows of a table need no age."""


def tables() -> dict[str, Table]:
    assert {llm_tables.llm_calls.name, pipeline_tables.documents.name} <= metadata.tables.keys()
    return dict(metadata.tables)


def test_every_table_has_an_age_or_a_reason() -> None:
    assert not AGES.keys() & STAY.keys()
    assert sorted(AGES.keys() | STAY.keys()) == sorted(tables())


@pytest.mark.parametrize("name", sorted({each for ages in AGES.values() for each in ages}))
def test_an_age_is_a_setting_or_a_constant(name: str) -> None:
    module, _, constant = name.rpartition(".")
    if not module:
        assert Settings.model_fields[name].description
        return
    assert getattr(importlib.import_module(module), constant) > 0
