"""Options that all sources of `jobctl backfill start` share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from switchyard.cli.base.common import IncludeOption, NotifyOption, PriorityOption
from switchyard.cli.base.output import JsonOption
from switchyard.cli.base.payloads import read_argument
from switchyard.cli.base.shared_options import TagOption, tags_of
from switchyard.cli.engine.bulk.rates import RateOption, WhyOption, parse_optional_rate


class DeadChoice(StrEnum):
    """The choices of --when-dead; a test compares them with
    `services.engine.records.joins.WHEN_DEAD`."""

    WAIT = "wait"
    GO_ON = "go_on"
    FAIL = "fail"


TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="JOB_TYPE",
        help="Job type to publish for each item. Default: the source's own, if it has one.",
    ),
]
LaneOption = Annotated[str, typer.Option(help="Lane of the jobs.")]
PayloadOption = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|@FILE",
        help="Template of the payload: {field} is replaced by the item's value. "
        "Default: the item itself.",
    ),
]
AttemptsOption = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Maximum attempts per job. Default: the job type's."),
]
OpenOption = Annotated[
    int | None,
    typer.Option(
        "--max-open",
        min=1,
        help="Maximum number of its jobs that are unfinished at the same time. Default: no limit.",
    ),
]
LowOption = Annotated[
    int | None,
    typer.Option(
        min=0, help="Queue length below which publishing continues. Default: half of --high."
    ),
]
HighOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Queue length at which publishing waits. Default: half of the queue's limit."
    ),
]
_WEIGHT = typer.Option(
    min=0.001,
    max=1000,
    help="Relative share of the queue when several backfills use it: 2 gets twice as much as 1.",
)
WeightOption = Annotated[float, _WEIGHT]
NewWeightOption = Annotated[float | None, _WEIGHT]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        metavar="AMOUNT",
        help="Maximum total cost of its language model calls, in the currency of "
        "JOBS_LLM_PRICES. Default: no limit.",
    ),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"],
        help="Stop publishing at this time: a day, or 2026-01-31T12:00 with or without "
        "seconds. Local time, unless it ends with Z or +01:00.",
    ),
]
ThenOption = Annotated[
    str | None,
    typer.Option(
        metavar="[LANE.]JOB_TYPE",
        help="Job to publish once, after all jobs of the backfill and their follow-up "
        "jobs have ended.",
    ),
]
ThenPayloadOption = Annotated[
    str | None, typer.Option(metavar="JSON|@FILE", help="Payload of the --then job.")
]
WhenDeadOption = Annotated[
    DeadChoice,
    typer.Option(
        help="What the --then job does if jobs are dead: wait until they are redriven "
        "or released, go_on (run without them), or fail."
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Publish nothing; show the number of items, the first jobs and the estimated cost.",
    ),
]
WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch", help="Follow the backfill until it ends. Exit code 1: not every item succeeded."
    ),
]


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Values of the options that all sources share (`common_options`), as they were given."""

    spec: dict[str, Any]
    rate: float | None
    max_open: int | None
    budget: float | None
    why: str | None
    dry_run: bool
    watch: bool
    include: list[str] | None
    as_json: bool


def common_options(
    job_type: TypeOption = None,
    lane: LaneOption = "backfill",
    payload: PayloadOption = None,
    priority: PriorityOption = None,
    max_attempts: AttemptsOption = None,
    tags: TagOption = None,
    rate: RateOption = None,
    max_open: OpenOption = None,
    budget: BudgetOption = None,
    weight: WeightOption = 1.0,
    low: LowOption = None,
    high: HighOption = None,
    until: UntilOption = None,
    then: ThenOption = None,
    then_payload: ThenPayloadOption = None,
    when_dead: WhenDeadOption = DeadChoice.WAIT,
    notify: NotifyOption = None,
    why: WhyOption = None,
    dry_run: DryRunOption = False,
    watch: WatchOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> CommonOptions:
    return CommonOptions(
        spec={
            "job_type": job_type,
            "lane": lane,
            "payload": None if payload is None else read_argument(payload),
            "priority": priority,
            "max_attempts": max_attempts,
            "tags": tags_of(tags),
            "low": low,
            "high": high,
            "weight": weight,
            "until": None if until is None else until.astimezone().isoformat(),
            "then": then,
            "then_payload": {} if then_payload is None else read_argument(then_payload),
            "when_dead": when_dead.value,
            "notify_url": notify,
            "remote": False,
        },
        rate=parse_optional_rate(rate),
        max_open=max_open,
        budget=budget,
        why=why,
        dry_run=dry_run,
        watch=watch,
        include=include,
        as_json=as_json,
    )
