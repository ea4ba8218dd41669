"""What every source of `jobctl backfill start` is asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from switchyard.cli.base.common import IncludeOption, NotifyOption
from switchyard.cli.base.output import JsonOption
from switchyard.cli.base.payloads import read_argument
from switchyard.cli.bulk.rates import RateOption, WhyOption, optional_rate


class DeadChoice(StrEnum):
    """The choices, for the command line; held against `services.records.WHEN_DEAD` by a test."""

    WAIT = "wait"
    GO_ON = "go_on"
    FAIL = "fail"


TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="JOB_TYPE", help="What is to be done with each item."),
]
LaneOption = Annotated[str, typer.Option(help="The lane of its jobs.")]
PayloadOption = Annotated[
    str | None,
    typer.Option(
        metavar="JSON|@FILE",
        help="Template of the payloads: {field} becomes the item's value. The item itself where "
        "not given.",
    ),
]
PriorityOption = Annotated[int | None, typer.Option(min=0, max=10, help="Within the lane.")]
AttemptsOption = Annotated[int | None, typer.Option(min=1, max=1000, help="Tries of each job.")]
OpenOption = Annotated[
    int | None, typer.Option("--max-open", min=1, help="Unfinished jobs of it at most.")
]
LowOption = Annotated[
    int | None,
    typer.Option(min=0, help="Jobs in a queue at which it publishes again; half of --high."),
]
HighOption = Annotated[
    int | None,
    typer.Option(min=1, help="Jobs in a queue at which it waits; half of the queue's limit."),
]
WeightOption = Annotated[
    float,
    typer.Option(
        min=0.001,
        max=1000,
        help="Its part of the room, where backfills share a queue.",
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        metavar="AMOUNT",
        help="What its calls of language models may cost, in the currency of JOBS_LLM_PRICES.",
    ),
]
UntilOption = Annotated[
    datetime | None,
    typer.Option(
        formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"],
        help="Publish nothing after this time; local without Z or +01:00 behind it.",
    ),
]
ThenOption = Annotated[
    str | None,
    typer.Option(
        metavar="[LANE.]JOB_TYPE",
        help="A job that follows when all its jobs, and all that followed from them, have ended.",
    ),
]
ThenPayloadOption = Annotated[
    str | None, typer.Option(metavar="JSON|@FILE", help="The payload of that job.")
]
WhenDeadOption = Annotated[
    DeadChoice,
    typer.Option(help="What becomes of that job when some are dead."),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Only show the number of items, the first jobs and the cost."),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Follow it; exit code 1 when not every item was done.")
]


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """What all sources are asked: the options of `common_options`, as they were given."""

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
        rate=optional_rate(rate),
        max_open=max_open,
        budget=budget,
        why=why,
        dry_run=dry_run,
        watch=watch,
        include=include,
        as_json=as_json,
    )
