"""Descriptions of fields and parameters that mean the same in all models: written once, and put
into the OpenAPI document where a model has no description of its own.

Times are ISO 8601 in UTC everywhere; ranges stand in the schema beside the description.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

ANYWHERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Jobs
        "job_id": "Id of the job.",
        "job_type": "Name of the job type.",
        "job": "Routing key of the job that is published: `<lane>.<job_type>`.",
        "routing_key": "`<lane>.<job_type>`.",
        "lane": "Name of the lane: hot, vlm_ocr, maintenance or backfill.",
        "worker": "Worker kind, for example `ingest`.",
        "worker_id": "Name of the worker process, as in `/admin/workers`.",
        "state": "State it is in.",
        "payload": "Payload of the job; its JSON Schema is at `/schemas/{type}`.",
        "priority": "Priority within the lane, 0 to 10; a higher number runs first.",
        "max_attempts": "Number of attempts after which a failing job becomes a dead letter.",
        "attempt": "Number of the attempt, from 1.",
        "attempts": "Attempts used so far.",
        "redrive": "Number of redrives before this attempt.",
        "redrives": "How often it was redriven or moved.",
        "crashes": "Attempts that ended because their worker process ended.",
        "outcome": "How it ended, for example `succeeded` or `retry`.",
        "error": "Why it failed; null if it did not.",
        "error_type": "Class of the error, for example `SourceUnavailable`; null without one.",
        "error_message": "Text of the error; null without one.",
        "message": "Text of the error.",
        "traceback": "Traceback of the error; null without one.",
        "parent_id": "Job that this one followed from; null for one that was published.",
        "pipeline": "Id of the first job of the pipeline; null for a job without follow-up jobs.",
        "source": "Where it comes from: for a job its publisher, for a document its address.",
        "headers": "AMQP headers of the message.",
        "reason": "Why: a reason code for a dead letter, free text for an operation.",
        # Times
        "created_at": "Time at which it was recorded.",
        "updated_at": "Time of the last change.",
        "queued_at": "Time at which it entered its lane; null before.",
        "started_at": "Time at which it started; null before.",
        "finished_at": "Time at which it ended; null before.",
        "paused_at": "Time at which it was paused; null while it is not.",
        "stopped_at": "Time at which it stopped; null while it runs.",
        "beat_at": "Time of its last heartbeat.",
        "run_at": "Time from which it may run; null for at once.",
        "due_at": "Time at which it is or was due.",
        "noted_at": "Time at which the outcome was recorded.",
        "reported_at": "Time of the report.",
        "expires_at": "Time until which it must have started; null without a limit.",
        "deadline": "Time at which it ends, finished or not.",
        "first_at": "Time of the first death.",
        "last_at": "Time of the latest death.",
        "dead_at": "Time of death.",
        # Pages
        "limit": "Maximum number of entries in the answer.",
        "cursor": "`next_cursor` of the previous page, unchanged; omit it for the first page.",
        "next_cursor": "Pass it as `cursor` for the next page; null on the last page.",
        "ids": "Ids to choose; empty for all that match the other fields.",
        # Documents
        "document_id": "Id of the document.",
        "document_ids": "Documents to search; null for all.",
        "title": "Title; null while it is not known.",
        "filename": "Name of the file; null if none was given.",
        "media_type": "Media type, for example `application/pdf`.",
        "size": "Size in bytes.",
        "page": "Number of the page, from 1.",
        "page_count": "Number of pages.",
        "current_stage": "Job type of the stage it is in; null at the end.",
        "completed_stages": "Stages that are done, in order.",
        "classes": "Its classes.",
        "kind": "Kind of the entry.",
        "label": "Class within its kind.",
        "language": "Code of the language, for example `en`.",
        "chunk_id": "Id of the chunk of text.",
        "snippet": "Part of the text around the words found.",
        "query": "Words or a sentence to search for.",
        "mode": "How the hits were found and ranked.",
        "hits": "Best first.",
        "filters": "Which documents to search.",
        "filter": "Which dead letters to redrive; all given fields must match.",
        "change": "What to change in each of them.",
        "model": "Name of the model that was asked.",
        "height": "Height in pixels.",
        # Graph and index
        "direction": "Follow edges out of the node, into it, or both.",
        "depth": "Number of steps from the start.",
        "longest": "Maximum number of edges of a path.",
        "community": "Number of a community; omit it for all.",
        "year": "Year of publication; null if it is not known.",
        "weight": "Weight of the edge.",
        "node": "The node.",
        "edge": "The edge that leads there.",
        "edges": "Number of edges.",
        "communities": "Number of communities.",
        "ranking": "The last run of the ranking; null if there was none.",
        "target": "Node that the edge leads to.",
        "seconds": "Duration in seconds.",
        "table": "Table that holds the vectors.",
        "embedder": "Model that made the vectors.",
        "dimensions": "Length of the vectors.",
        # Operations
        "id": "Its id.",
        "name": "Its name.",
        "created_by": "Who started it.",
        "rate": "Maximum number per second; null: no limit.",
        "max_open": "Maximum number of its jobs unfinished at the same time; null: no limit.",
        "read": "Items read from the source.",
        "published": "Jobs published.",
        "skipped": "Items that could not be used.",
        "matched": "Dead letters that match.",
        "redriven": "Dead letters sent back.",
        "dropped": "Dead letters removed because their job had ended.",
        "invalid": "Dead letters left in place because they are not valid jobs.",
        "succeeded": "Redriven jobs that have succeeded.",
        "undone": "Redriven jobs that were recalled.",
        "unfinished": "Redriven jobs that have not ended.",
        "notes": "Remarks in words.",
        "spec": "What was asked for.",
        "group": "Id of a group of dead letters with one cause, or its beginning.",
        "count": "How many.",
        "letter_id": "Id of the dead letter.",
        "sample_id": "A dead letter of this cause.",
        "sample_message": "Text of its error.",
        "cancelled_jobs": "Number of its jobs that were cancelled.",
        "key": "Key in the storage; pass it as `options.key` of a backfill of the source `file`.",
        "format": "Format of the file.",
        # Service
        "pressure": "How full it is: `ok`; `slow`, publish less; `full`, wait.",
        "consumers": "Consumers on the queue.",
        "queue": "Name of the queue, `<lane>.<worker>`.",
        "queues": "Queues of the lane.",
        "jobs": "Number of its jobs in each state.",
        "kinds": "Worker kinds that the process runs.",
        "lanes": "Lanes that the process works.",
        "host": "Name of the host.",
        "pid": "Process id on that host.",
        "concurrency": "Jobs that it runs at the same time.",
        "status": "HTTP status of the problem.",
        "type": "URI of the problem type.",
        "routing_keys": "Routing keys that it can be published with.",
        "tokens_per_minute": "Tokens allowed per minute, of all processes; null: no limit.",
        "tokens_last_minute": "Tokens used in the last minute.",
        # Schedules
        "cron": "Minute, hour, day of the month, month, day of the week.",
        "timezone": "IANA name of the time zone in which `cron` is read.",
        "jitter": "Maximum random delay of each due time, in seconds.",
        "grace": "Seconds for which a missed due time is still fired.",
        # Money
        "calls": "Requests to models.",
        "input_tokens": "Tokens sent to models.",
        "output_tokens": "Tokens that models wrote.",
        "cost": "Cost in the currency of the price list.",
        "currency": "Currency of the price list.",
        "by": "What the rows are grouped by.",
        "rows": "One for each group: by day in order, otherwise the highest cost first.",
        "spent": "Cost so far, in the currency of the price list.",
        "left": "What is left of the limit, in the currency of the price list.",
        # Crawls
        "url": "Address of the page.",
        "start": "Addresses at which it begins.",
        "hosts": "Hosts that it may visit.",
        "max_pages": "Maximum number of pages.",
        "max_depth": "Maximum number of links from a start page.",
        # Pauses
        "pause_id": "Id of the pause.",
        "scope": "What is paused.",
        # Lists
        "backfills": "Newest first.",
        "crawls": "Newest first.",
        "dead_letters": "Newest first.",
        "documents": "Newest first.",
        "figures": "In the order of their pages.",
        "generations": "Tables of the index: the one that is searched, and one being built.",
        "groups": "Largest first.",
        "job_types": "By name.",
        "neighbours": "Nodes beside it, with the edges that lead there.",
        "paths": "Shortest first.",
        "problems": "Problem types of this API.",
        "schedules": "By name.",
        "workers": "Worker processes.",
        "works": "The most shared citations first.",
        # Joins
        "total": "Jobs that are waited for.",
        "dead": "Of these, dead letters.",
        "cancelled": "Of these, cancelled.",
        # Parameters
        "traceparent": "W3C trace context that the job continues.",
        "accept": "`text/event-stream` streams the answer while it is written.",
        "include": "`text`: also the text by page.",
    }
)
"""Descriptions by the field's name."""

OF_MODEL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Budget.limit": "Limit in the currency of the price list.",
        "EdgeView.source": "Node that the edge comes from.",
        "ProgressView.note": "What is being done, in the words of the job.",
        "GenerateBody.count": "Number of documents to generate.",
        "SearchBody.limit": "Maximum number of hits.",
        "BackfillPreview.title": "What the backfill would do, in words.",
        "BackfillView.title": "What it does, in words.",
        "RedriveView.title": "What it does, in words.",
        "ProblemDetails.title": "The problem in a few words.",
        "ProblemKind.title": "The problem in a few words.",
        "PageView.document_id": "Id of the document.",
        "DeadLetterView.job_id": "Id of its job; null for a letter that is no job.",
        "DeadLetterDetails.job_id": "Id of its job; null for a letter that is no job.",
        "FiringView.job_id": "Id of the job that was published; null if none was.",
        "DeadLetterView.id": "Id of the dead letter: the job's, or one made of its content.",
        "DeadLetterDetails.id": "Id of the dead letter: the job's, or one made of its content.",
        "PathView.nodes": "Nodes of the path, in order.",
        "NodeList.nodes": "Nodes, best first.",
        "RankingView.nodes": "Number of nodes.",
        "Liveness.status": "`ok`: the process answers.",
        "Readiness.status": "`ok`, or `away` while a needed component is.",
        "JobPage.jobs": "Newest first.",
        "CrawlPages.pages": "The last due first.",
        "FieldError.message": "What is wrong there, and what is allowed.",
        "FiringView.note": "Why it was refused; null otherwise.",
        "CrawlPageView.depth": "Number of links from a start page.",
        "LimitList.limits": "By name.",
        "LaneList.lanes": "Most urgent first.",
        "PressureView.lanes": "Most urgent first.",
    }
)
"""Descriptions by `Model.field`, where the field's name alone would mislead."""


def fill_in(document: dict[str, Any]) -> None:
    """Add the description of its name to each field and parameter that has none."""
    for model, schema in document["components"]["schemas"].items():
        for name, field in schema.get("properties", {}).items():
            words = OF_MODEL.get(f"{model}.{name}") or ANYWHERE.get(name)
            if words is not None:
                field.setdefault("description", words)
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", ()):
                words = parameter["schema"].get("description") or ANYWHERE.get(parameter["name"])
                if words is not None:
                    parameter.setdefault("description", words)
