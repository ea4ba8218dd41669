"""The tables. Times are seconds since the epoch in double precision; ids and JSON are text.

JSON is text and not jsonb, which refuses `\\u0000` and would not return a payload as it was. A
change here needs a migration; a test compares the two. Columns are explained here where their names
don't say enough; the rest is said by the record classes in `services.engine.records`. The packages
that build on the engine (`services.engine.wings`) declare their tables beside their own
repositories.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    literal_column,
    text,
)

SCHEMA_REVISION = "0045"
"""The migration that makes these tables; `Ledger.check` compares it with the database's."""

metadata = MetaData()

# Record: `JobSummary`, `JobRecord`. The long columns come last: SQLite reads a row from its start.
jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("job_type", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("routing_key", Text, nullable=False),
    # Kind of worker that takes it.
    Column("worker", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("source", Text, nullable=False),
    # The job that it followed from; `pipeline`: the first job of that line.
    Column("parent_id", Text),
    Column("pipeline", Text),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("redrives", Integer, nullable=False),
    # Claims since the last redrive that ended with the worker's death.
    Column("crashes", Integer, nullable=False),
    # Worker that runs it, or ran it last; `claim_id` is the fencing token of its claim.
    Column("worker_id", Text),
    Column("claim_id", Text),
    Column("created_at", Double, nullable=False),
    Column("queued_at", Double),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("updated_at", Double, nullable=False),
    Column("run_at", Double),
    Column("expires_at", Double),
    Column("reason", Text),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("idempotency_key", Text),
    # Hash of job type and payload, for jobs with an idempotency key: the same key with another
    # hash is a conflict.
    Column("fingerprint", Text),
    # The backfill or rerun that published it, or the job that it followed from.
    Column("operation_id", Text),
    # The message without its payload.
    Column("metadata", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("result", Text),
    # The last three are NULL for most jobs: then it costs nothing that the long columns are read
    # before them.
    # The job that waits for this one, and for what follows from it.
    Column("join_id", Text),
    # 1: waits, or has waited, for other jobs.
    Column("joins", Integer),
    # When its cancellation was first requested while it ran.
    Column("cancel_asked_at", Double),
)


def _partial(name: str, *columns: Column[object], where: str, unique: bool = False) -> Index:
    condition = text(where)
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


# Each index costs time for every job. `ix_jobs_state` serves the outbox, the running jobs of a
# worker and the counts, which need no row; a partial index costs only the jobs in it.
Index("ix_jobs_created", jobs.c.created_at, jobs.c.id)
Index("ix_jobs_state", jobs.c.state, jobs.c.lane, jobs.c.created_at)
_partial(
    "uq_jobs_idempotency_key",
    jobs.c.idempotency_key,
    where="idempotency_key IS NOT NULL",
    unique=True,
)
_partial("ix_jobs_run_at", jobs.c.run_at, where="state = 'scheduled'")
_partial("ix_jobs_dead", jobs.c.updated_at, where="state = 'dead'")
_partial("ix_jobs_pipeline", jobs.c.pipeline, where="pipeline IS NOT NULL")
_partial("ix_jobs_parent", jobs.c.parent_id, where="parent_id IS NOT NULL")
_partial(
    "ix_jobs_join",
    jobs.c.join_id,
    jobs.c.created_at,
    jobs.c.id,
    where="join_id IS NOT NULL",
)
_partial("ix_jobs_operation", jobs.c.operation_id, jobs.c.state, where="operation_id IS NOT NULL")

# Attempts that did not simply succeed. Record: `AttemptRecord`.
attempts = Table(
    "attempts",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("job_id", Text, nullable=False, index=True),
    # Number of the redrive that the attempt belongs to; 0 before the first one.
    Column("redrive", Integer, nullable=False),
    # From 1 in each redrive.
    Column("attempt", Integer, nullable=False),
    Column("worker_id", Text),
    Column("started_at", Double),
    Column("finished_at", Double, nullable=False),
    # An `AttemptOutcome`.
    Column("outcome", Text, nullable=False),
    Column("error_type", Text),
    Column("error_message", Text),
)

# Letters that were seen in `jobs.dead`. Record: `DeadLetter`.
dead_letters = Table(
    "dead_letters",
    metadata,
    # The job's id, or `raw-…` for a body without one.
    Column("id", Text, primary_key=True),
    Column("job_id", Text),
    Column("job_type", Text),
    Column("lane", Text),
    Column("routing_key", Text),
    Column("reason", Text, nullable=False),
    Column("error_type", Text),
    Column("error_message", Text),
    Column("traceback", Text),
    # With `redrives`, the letter's generation: an older letter changes no newer one.
    Column("attempts", Integer, nullable=False),
    Column("redrives", Integer, nullable=False),
    Column("worker", Text),
    # When the first letter of this id died; `dead_at`: when the present one did.
    Column("first_at", Double, nullable=False),
    Column("dead_at", Double, nullable=False),
    # Messages in `jobs.dead` that were seen since the letter last began to wait.
    Column("copies", Integer, nullable=False),
    # A `DeadLetterState`.
    Column("state", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
    # Hash of the cause of death: letters with the same one are one group. Not the job's
    # `fingerprint`.
    Column("fingerprint", Text),
    Column("headers", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
Index("ix_dead_letters_dead", dead_letters.c.dead_at, dead_letters.c.id)
# All that the groups need, so that they are counted without reading a row.
Index(
    "ix_dead_letters_group",
    dead_letters.c.state,
    dead_letters.c.fingerprint,
    dead_letters.c.dead_at,
    dead_letters.c.id,
)
# Those that wait, few of many: listed and counted without a look at the others.
_partial(
    "ix_dead_letters_waiting",
    dead_letters.c.dead_at,
    dead_letters.c.id,
    dead_letters.c.lane,
    dead_letters.c.reason,
    where="state = 'waiting'",
)

# As literal text, for only with it do the databases use the partial indexes.
IS_DEAD = jobs.c.state == literal_column("'dead'")
IS_WAITING = dead_letters.c.state == literal_column("'waiting'")

job_tags = Table(
    "job_tags",
    metadata,
    Column("job_id", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    # When the job was made, as in `jobs`.
    Column("created_at", Double, nullable=False),
)
# By it, jobs with a tag are read by age, however many others there are.
Index(
    "ix_job_tags_value", job_tags.c.name, job_tags.c.value, job_tags.c.created_at, job_tags.c.job_id
)

# What one bulk operation did with one job. Record: `JobActionRecord`.
job_actions = Table(
    "job_actions",
    metadata,
    # Begins with the action: `cancel-…`, `rerun-…`, `move-…`.
    Column("operation_id", Text, primary_key=True),
    Column("job_id", Text, primary_key=True),
    Column("acted_at", Double, nullable=False),
    # For a rerun: id of the new job.
    Column("new_job_id", Text),
    # For a move: the job's earlier lane and priority, JSON.
    Column("before", Text),
)
Index("ix_job_actions_job", job_actions.c.job_id)

# Letters that a redrive sends back, noted before they are sent.
redriven_letters = Table(
    "redriven_letters",
    metadata,
    Column("operation_id", Text, primary_key=True),
    Column("letter_id", Text, primary_key=True),
    # Redrives of the copy that is sent: one more than the letter had.
    Column("redrives", Integer, nullable=False),
    # A `RedriveOutcome`; NULL while it is open.
    Column("outcome", Text),
)
Index("ix_redriven_letters_letter", redriven_letters.c.letter_id)
_partial(
    "ix_redriven_letters_open",
    redriven_letters.c.operation_id,
    redriven_letters.c.letter_id,
    where="outcome IS NULL",
)

# Letters that are over, but whose messages are still in `jobs.dead`. Record: `LeftoverLetter`.
leftover_letters = Table(
    "leftover_letters",
    metadata,
    Column("letter_id", Text, primary_key=True),
    # Redrives of the letter.
    Column("redrives", Integer, nullable=False),
    # Messages that are still to be taken out.
    Column("copies", Integer, nullable=False),
)

# Complete files of the archive. Record: `ArchiveFile`.
archive_files = Table(
    "archive_files",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    # Key in the storage.
    Column("key", Text, nullable=False),
    # Numbers of jobs and of their attempts in the file.
    Column("jobs", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sha256", Text, nullable=False),
    # When the oldest and the newest of its jobs were made.
    Column("oldest_at", Double, nullable=False),
    Column("newest_at", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    # When the last of its jobs was removed from the ledger; NULL while some may be in both.
    Column("settled_at", Double),
    # Ids of its jobs that were not removed, as something needed them again, a JSON list: for these,
    # the record in the ledger holds.
    Column("kept_ids", Text),
)

# Letters that a redrive sends back with a change. Record: `LetterEdit`.
letter_edits = Table(
    "letter_edits",
    metadata,
    Column("letter_id", Text, primary_key=True),
    # Redrives of the letter; its copy has one more.
    Column("redrives", Integer, primary_key=True, autoincrement=False),
    Column("operation_id", Text, nullable=False, index=True),
    # Routing key of the copy.
    Column("routing_key", Text, nullable=False),
    Column("edited_by", Text, nullable=False),
    Column("edited_at", Double, nullable=False),
    # When it was taken back, before it ran.
    Column("undone_at", Double),
    # When the original was in `jobs.dead` again.
    Column("restored_at", Double),
    # AMQP headers of the letter, JSON.
    Column("headers", Text, nullable=False),
    # The body before and after the change.
    Column("original", LargeBinary, nullable=False),
    Column("edited", LargeBinary, nullable=False),
)

# Worker processes. Record: `WorkerRecord`.
workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    # `kinds`, `lanes` and `job_types` are JSON lists.
    Column("kinds", Text, nullable=False),
    Column("lanes", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("concurrency", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    # Counts up with each heartbeat: a counter that stands still is a dead worker.
    Column("beat", BigInteger, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("stopped_at", Double),
    # Last heartbeat before which it took a hot job.
    Column("hot_at", Double),
    # Identification of its process (`instance_ids.process_mark`).
    Column("mark", Text),
    # Job types that it can run; NULL where it has not reported them.
    Column("job_types", Text),
    Column("memory_bytes", BigInteger),
    # Since when it takes no more jobs, and waits for its running ones to end.
    Column("stopping_at", Double),
)

# Job types, for processes that lack the type's module. Record: `JobTypeRecord`.
job_types = Table(
    "job_types",
    metadata,
    Column("name", Text, primary_key=True),
    Column("worker", Text, nullable=False),
    Column("lanes", Text, nullable=False),
    # Seconds that one attempt may take.
    Column("timeout", Double, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("payload_schema", Text, nullable=False),
    # Keys of the payload that only this system's hosts may set, and what others do instead; JSON.
    Column("local_keys", Text, nullable=False),
    Column("module", Text, nullable=False),
    # Hash of the columns above.
    Column("digest", Text, nullable=False),
    Column("registered_by", Text, nullable=False),
    Column("registered_at", Double, nullable=False),
    # When a process last reported that it has this type.
    Column("seen_at", Double, nullable=False),
)

# Event loops that ran one callback for too long. Record: `LoopBlock`.
loop_blocks = Table(
    "loop_blocks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("worker_id", Text, nullable=False),
    Column("job_id", Text),
    Column("job_type", Text),
    # The code that ran: file, line and function.
    Column("place", Text, nullable=False),
    Column("began_at", Double, nullable=False),
    Column("seconds", Double, nullable=False),
    # 0 while it lasts, and for ever where the worker died of it; then 1.
    Column("ended", Integer, nullable=False),
)

# The one row names the system of this ledger. Record: `SystemRecord`.
system_id = Table(
    "system_id",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    # Whole seconds since the epoch when ledger and broker last agreed on it; 0: never yet.
    Column("generation", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    # Programs that know this revision of the tables, or a later one, may use them; NULL: only those
    # that know the newest.
    Column("oldest_program", Text),
    # The key with which `JobIds` derives ids, hexadecimal.
    Column("job_id_key", Text),
)

# Each is held by one process at a time (`ledger.leases`).
leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires_at", Double, nullable=False),
)

# Keys of the API. Record: `ApiKeyRecord`.
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    # SHA-256 of the key, hexadecimal.
    Column("key_hash", Text, nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
    # A `KeyLimits`, JSON.
    Column("limits", Text),
)

# Requests and tokens that a key with limits may still use; tokens below 0 where it has
# used more.
api_key_allowances = Table(
    "api_key_allowances",
    metadata,
    Column("key_id", Text, primary_key=True),
    # When the two numbers held; they grow with time, at the rates of
    # the key.
    Column("at", Double, nullable=False),
    Column("requests", Double, nullable=False),
    Column("tokens", Double, nullable=False),
)

# Sessions of the dashboard.
sessions = Table(
    "sessions",
    metadata,
    # Hashes of the cookie and of the API key that it stands for.
    Column("token_hash", Text, primary_key=True),
    Column("key_hash", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
)

# What each lane did in one minute. Record: `LaneMinute`.
lane_minutes = Table(
    "lane_minutes",
    metadata,
    # End of the minute.
    Column("at", Double, primary_key=True),
    Column("lane", Text, primary_key=True),
    # Up to when the three numbers were counted.
    Column("counted_at", Double, nullable=False),
    # Jobs that were published, ended and died since the count before.
    Column("published", Integer, nullable=False),
    Column("ended", Integer, nullable=False),
    Column("dead", Integer, nullable=False),
    # Unfinished jobs at the time of the count.
    Column("open_jobs", Integer, nullable=False),
    # Messages in the lane's queues; NULL where the broker could not be asked.
    Column("ready", Integer),
    # Seconds that jobs waited which began in the minute; of the hot lane alone.
    Column("wait_p50", Double),
    Column("wait_p99", Double),
)

# Redrives, backfills and other operations on many jobs. Record: `BulkOperation`.
bulk_operations = Table(
    "bulk_operations",
    metadata,
    Column("id", Text, primary_key=True),
    # backfill, redrive, …
    Column("kind", Text, nullable=False),
    Column("title", Text, nullable=False),
    # A `BulkState`.
    Column("state", Text, nullable=False),
    # Jobs per second, at most.
    Column("rate", Double),
    # Unfinished jobs of the operation, at most.
    Column("max_open", Integer),
    Column("created_by", Text, nullable=False),
    # Why it was started, in the operator's words; `note`: the reason for the present state.
    Column("reason", Text),
    Column("note", Text),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("updated_at", Double, nullable=False),
    Column("finished_at", Double),
    # The process that runs it, and until when it is reserved for that process.
    Column("holder", Text),
    Column("lease_until", Double),
    # What to do, the position from which it continues, and what it has done: JSON.
    Column("spec", Text, nullable=False),
    Column("cursor", Text),
    Column("counts", Text, nullable=False),
    # Maximum cost of its calls of language models, in the currency of JOBS_LLM_PRICES.
    Column("budget", Double),
)
Index("ix_bulk_operations_created", bulk_operations.c.created_at, bulk_operations.c.id)


# Alerts that were sent, so that each is sent once (`ledger.sent_alerts`).
alerts = Table(
    "alerts",
    metadata,
    Column("key", Text, primary_key=True),
    # When it was sent.
    Column("told_at", Double, nullable=False),
)


# Last progress that a job has reported. Record: `ProgressRecord`.
job_progress = Table(
    "job_progress",
    metadata,
    Column("job_id", Text, primary_key=True),
    # Claim under which it was reported: that of an earlier attempt is not shown.
    Column("claim_id", Text, nullable=False),
    # From 0 to 1; NULL where unknown.
    Column("fraction", Double),
    Column("note", Text, nullable=False),
    Column("reported_at", Double, nullable=False),
)

# State that an attempt stores for the next one.
job_checkpoints = Table(
    "job_checkpoints",
    metadata,
    Column("job_id", Text, primary_key=True),
    # Hash of job type and payload: no checkpoint is given to a job whose payload was changed.
    Column("work", Text, nullable=False),
    Column("kept_at", Double, nullable=False),
    Column("data", Text, nullable=False),
)


# Jobs that wait for other jobs. Record: `JoinRecord`.
joins = Table(
    "joins",
    metadata,
    # The job that waits.
    Column("id", Text, primary_key=True),
    # A `WhenDead`.
    Column("when_dead", Text, nullable=False),
    # 1 until the join is sealed: more jobs may be added to it.
    Column("held", Integer, nullable=False),
    # Jobs that it waits or waited for, and among them the unfinished, dead and cancelled ones.
    Column("total", Integer, nullable=False),
    Column("open_jobs", Integer, nullable=False),
    Column("dead", Integer, nullable=False),
    Column("cancelled", Integer, nullable=False),
    Column("made_at", Double, nullable=False),
    # When the waiting job was released for publishing.
    Column("fulfilled_at", Double),
    # 1: once released, the waiting job is copied each time that all the others have ended anew.
    Column("again", Integer, nullable=False, server_default=text("0")),
)
# For the doctor, which reads the joins that still wait: a few of all.
Index(
    "ix_joins_waiting",
    joins.c.open_jobs,
    sqlite_where=text("fulfilled_at IS NULL"),
    postgresql_where=text("fulfilled_at IS NULL"),
)


# Record: `ScheduleRecord`.
schedules = Table(
    "schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("cron", Text, nullable=False),
    Column("timezone", Text, nullable=False),
    Column("routing_key", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Column("priority", Integer),
    Column("max_attempts", Integer),
    # Seconds by which a firing is put off, at most.
    Column("jitter", Double, nullable=False),
    # Seconds after a due time in which it may still be fired.
    Column("grace", Double, nullable=False),
    # `file`, `default`, or `added` (by a command or over HTTP).
    Column("origin", Text, nullable=False),
    # Whether the payload came over HTTP.
    Column("remote", Boolean, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("paused_at", Double),
    # The next due time that nothing was decided about; `fire_at`: the same time plus its jitter.
    Column("next_at", Double, nullable=False),
    Column("fire_at", Double, nullable=False),
    # Tags of its jobs, JSON.
    Column("tags", Text),
    # Version of the payload when it was written; NULL: the present one.
    Column("payload_version", Integer),
)

# What became of the due times of schedules. Record: `Firing`.
schedule_firings = Table(
    "schedule_firings",
    metadata,
    # One row for each due time: the process that writes the row fires it, and no other.
    Column("schedule", Text, primary_key=True),
    Column("due_at", Double, primary_key=True),
    # A `FiringOutcome`.
    Column("outcome", Text, nullable=False),
    Column("job_id", Text),
    # When the outcome was decided or last changed.
    Column("noted_at", Double, nullable=False),
    # Number of due times that the row stands for: more than one where they were missed together.
    Column("times", Integer, nullable=False),
    Column("note", Text),
)
_OPEN = text("outcome = 'due'")
Index(
    "ix_schedule_firings_due",
    schedule_firings.c.due_at,
    sqlite_where=_OPEN,
    postgresql_where=_OPEN,
)


# Record: `PauseRecord`.
pauses = Table(
    "pauses",
    metadata,
    Column("id", Text, primary_key=True),
    # A `PauseScope`; `target` names the lane, job type, source or queue.
    Column("scope", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("reason", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    # When it ends by itself; NULL: not before it is resumed.
    Column("ends_at", Double),
    # When it ended; NULL while it is in force.
    Column("ended_at", Double),
    # Who ended or replaced it; NULL where its time was over.
    Column("ended_by", Text),
)
_partial(
    "uq_pauses_target",
    pauses.c.scope,
    pauses.c.target,
    where="ended_at IS NULL",
    unique=True,
)


# Named limits, one row for each of a limit's keys. Its row is locked while permits are decided.
limits = Table(
    "limits",
    metadata,
    Column("name", Text, primary_key=True),
    # Whose share of the limit it is, such as an account; empty where all jobs share one.
    Column("key", Text, primary_key=True),
    # The three sizes (`LimitSize`); NULL: unlimited.
    Column("concurrency", Integer),
    Column("per_minute", Integer),
    Column("tokens_per_minute", BigInteger),
    Column("updated_at", Double, nullable=False),
    # Jobs and tokens of the last minute by second, JSON (`RateWindow`).
    Column("bins", Text, nullable=False),
)

# Permits in use.
limit_holds = Table(
    "limit_holds",
    metadata,
    # Id of the permits that one delivery got: one row for each limit that the job needs.
    Column("hold", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("job_id", Text, nullable=False, index=True),
    # The process that holds them, and must renew them before `expires_at`.
    Column("holder", Text, nullable=False, index=True),
    # Second since the epoch in which the job started, as in `limits.bins`.
    Column("second", BigInteger, nullable=False),
    # Estimated.
    Column("tokens", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
)
Index("ix_limit_holds_limit", limit_holds.c.name, limit_holds.c.key, limit_holds.c.expires_at)

# Jobs that were put off because a limit was used up. Record: `PendingPermit`.
limit_waits = Table(
    "limit_waits",
    metadata,
    Column("job_id", Text, primary_key=True),
    # The limit that was used up.
    Column("name", Text, nullable=False),
    Column("key", Text, nullable=False),
    # Queue to which its message goes when it is woken.
    Column("queue", Text, nullable=False, index=True),
    Column("tokens", BigInteger, nullable=False),
    # Its urgency: the least comes first; then, who has waited longest.
    Column("rank", Integer, nullable=False, server_default=text("0")),
    Column("since", Double, nullable=False),
    # Number of times that it was put off.
    Column("times", Integer, nullable=False),
    # When its delay ends and the broker queues it again, unless it is woken before.
    Column("back_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False, index=True),
    # Number of times that it was woken.
    Column("calls", Integer, nullable=False),
    # Until when permits are reserved for it; 0: it was not woken.
    Column("called_until", Double, nullable=False),
    # It is not woken again before this time.
    Column("call_after", Double, nullable=False),
    # The message, for waking it; NULL where it is too large to be kept.
    Column("body", LargeBinary),
)
# For programs older than tables 0044, until a later release contracts.
Index("ix_limit_waits_limit", limit_waits.c.name, limit_waits.c.key, limit_waits.c.since)
Index(
    "ix_limit_waits_order",
    limit_waits.c.name,
    limit_waits.c.key,
    limit_waits.c.rank,
    limit_waits.c.since,
)
IN_ORDER = (limit_waits.c.rank, limit_waits.c.since, limit_waits.c.job_id)
"""The order in which jobs that wait for a limit get permits."""
WAS_WOKEN = limit_waits.c.called_until > literal_column("0")
"""Condition for woken jobs, which are few; a query with it uses the index."""
Index(
    "ix_limit_waits_called",
    limit_waits.c.name,
    limit_waits.c.key,
    limit_waits.c.called_until,
    sqlite_where=WAS_WOKEN,
    postgresql_where=WAS_WOKEN,
)
