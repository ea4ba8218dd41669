"""Turn the commands that a finding's remedy names into buttons that do the same, or links to the
page where it is done."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import quote, urlencode

from switchyard.api.dashboard.formats import code_parts
from switchyard.api.dashboard.sessions import PATH
from switchyard.broker import patterns

MAX_ACTIONS = 3
"""Actions shown for one finding."""


@dataclass(frozen=True, slots=True)
class RemedyAction:
    """A button or a link."""

    text: str
    address: str
    fields: Mapping[str, str] = field(default_factory=dict)
    is_post: bool = False


def actions_of(remedy: str) -> list[RemedyAction]:
    """Return actions for the commands in a remedy, as far as the dashboard has any, in their
    order."""
    actions: dict[str, RemedyAction] = {}
    for part, is_code in code_parts(remedy):
        action = _action_of(part) if is_code else None
        if action is not None:
            actions.setdefault(action.address, action)
    return list(actions.values())[:MAX_ACTIONS]


def _action_of(command: str) -> RemedyAction | None:
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if words[:1] != ["jobctl"]:
        return None
    for beginning, make in _MADE:
        if words[1 : len(beginning) + 1] == beginning:
            return make(words[len(beginning) + 1 :])
    return None


def _resume_pause(rest: Sequence[str]) -> RemedyAction | None:
    if not rest or re.match(patterns.PAUSE_ID, rest[0]) is None:
        return None
    address = f"{PATH}/pauses/{rest[0]}/resume"
    return RemedyAction("Resume", address, {"from": "overview"}, is_post=True)


def _resume_server(rest: Sequence[str]) -> RemedyAction | None:
    if not rest:
        return None
    return RemedyAction(f"Ask {rest[0]} again", f"{PATH}/llm/resume", {"server": rest[0]}, True)


def _job(rest: Sequence[str]) -> RemedyAction | None:
    if not rest or rest[0] == "ID" or re.match(patterns.JOB_ID, rest[0]) is None:
        return None
    return RemedyAction("Open the job", f"{PATH}/jobs/{quote(rest[0], safe='')}")


def _run_schedule(rest: Sequence[str]) -> RemedyAction | None:
    if not rest or re.match(patterns.DASHED_NAME, rest[0]) is None:
        return None
    return RemedyAction(f"Run {rest[0]} now", f"{PATH}/schedules/{rest[0]}/run", {}, True)


def _operation(at: str) -> Callable[[Sequence[str]], RemedyAction | None]:
    def make(rest: Sequence[str]) -> RemedyAction | None:
        if not rest or re.match(patterns.BACKFILL_ID, rest[0]) is None:
            return None
        return RemedyAction(f"Open {rest[0]}", f"{PATH}/{at}/{rest[0]}")

    return make


def _list(text: str, at: str, **options: str) -> Callable[[Sequence[str]], RemedyAction | None]:
    """Make a link to a list, with those of the command's options that the list knows."""

    def make(rest: Sequence[str]) -> RemedyAction | None:
        options = dict(pairwise(rest))
        filters = {name: options[option] for option, name in known.items() if option in options}
        query = f"?{urlencode(filters)}" if filters else ""
        group = options.get("--group", "")
        if at == "dead" and re.match(patterns.GROUP_ID, group):
            return RemedyAction("Open this group", f"{PATH}/dead/groups/{group}")
        return RemedyAction(text, f"{PATH}/{at}{query}")

    known = {f"--{option}": name for option, name in options.items()}
    return make


_LETTERS = _list("Look at the dead letters", "dead", reason="reason", type="job_type", lane="lane")
_JOBS = _list("Look at these jobs", "jobs", state="state", type="type", lane="lane")
_MADE: Sequence[tuple[list[str], Callable[[Sequence[str]], RemedyAction | None]]] = (
    (["resume"], _resume_pause),
    (["pauses"], _list("See what is paused", "workers")),
    (["llm", "resume"], _resume_server),
    (["llm", "status"], _list("Look at the servers", "llm")),
    (["llm", "spend"], _list("Look at the costs", "llm")),
    (["jobs", "show"], _job),
    (["jobs", "cancel"], _job),
    (["jobs", "list"], _JOBS),
    (["backfill", "show"], _operation("backfills")),
    (["backfill", "list"], _list("Look at the backfills", "backfills")),
    (["dead", "redrives", "show"], _operation("dead/redrives")),
    (["dead", "redrives"], _LETTERS),
    (["dead", "groups"], _LETTERS),
    (["dead", "list"], _LETTERS),
    (["dead", "redrive"], _LETTERS),
    (["schedules", "run"], _run_schedule),
    (["schedules"], _list("Look at the schedules", "schedules")),
)
"""The beginning of a command, and what a page has for it."""
