"""Check that exchanges, queues, bindings and policies are as declared."""

from __future__ import annotations

import shlex

from switchyard.broker.lanes import STAND_IN_PREFIX
from switchyard.broker.management.live_topology import LiveTopology
from switchyard.broker.management.model import Topology
from switchyard.broker.settings import Profile
from switchyard.broker.topology.build import build
from switchyard.broker.topology.differences import Deviation, Difference, diff
from switchyard.broker.wire.depths import query_queues
from switchyard.broker.wording import pluralize
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    failure,
    first_few,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext


async def topology(context: DoctorContext) -> list[Diagnostic]:
    """Compare the broker's topology with the declared one."""
    live = await context.need_management().fetch()
    differences = diff(_declared_topology(context, context.settings.profile), live)
    if any(each.name.startswith(STAND_IN_PREFIX) for each in differences):
        return [_unfinished_migration(context, differences)]
    overridden = [each for each in differences if each.problem is Deviation.OVERRIDDEN]
    extra = [each for each in differences if each.is_extra]
    others = [each for each in differences if each not in overridden and not each.is_extra]
    return [
        _check_declared(context, live, others),
        _check_policies(context, live, overridden),
        *await _check_extra(context, extra),
    ]


def _declared_topology(context: DoctorContext, profile: Profile) -> Topology:
    delays = context.settings.retry_delays
    return build(profile, context.registry.routes, retry_delays=delays)


def _other_profile(profile: Profile) -> Profile:
    return "quorum" if profile == "classic" else "classic"


def _check_declared(
    context: DoctorContext, live: LiveTopology, differences: list[Difference]
) -> Diagnostic:
    texts = [each.text for each in differences]
    if not differences:
        return ok("topology", "exchanges, queues, bindings and policies are as declared")
    if all(each.fixable for each in differences):
        remedy = "run `jobctl topology apply`"
        return failure("topology", Finding.TOPOLOGY_MISSING, first_few(texts), remedy)
    other = _other_profile(context.settings.profile)
    if not any(each.blocking for each in diff(_declared_topology(context, other), live)):
        detail = f"the lanes on the broker are those of the profile {other}: {first_few(texts)}"
        remedy = (
            f"`export JOBS_PROFILE={other}` for every process, or change the queues: "
            f"`jobctl topology migrate --to {context.settings.profile}`"
        )
        return failure("topology", Finding.PROFILE_WRONG, detail, remedy)
    remedy = "see docs/topology.md#changing-a-live-broker: empty it, delete it, apply"
    return failure("topology", Finding.TOPOLOGY_OTHER, first_few(texts), remedy)


def _unfinished_migration(context: DoctorContext, differences: list[Difference]) -> Diagnostic:
    """Report an unfinished migration of queues, and nothing else: it also causes the other
    differences, which nobody must correct by hand before it has ended."""
    names = {each.name.removeprefix(STAND_IN_PREFIX) for each in differences if each.is_extra}
    detail = (
        "queues are being changed to the other profile, or that was broken off; it has come to "
        f"{first_few(sorted(names))}"
    )
    profile = context.settings.profile
    remedy = (
        f"`jobctl topology migrate --to {profile}` goes on where it was, or the same with "
        f"`--to {_other_profile(profile)}`, if that was begun; either also undoes the other"
    )
    return failure("topology", Finding.MIGRATION_UNFINISHED, detail, remedy)


def _check_policies(
    context: DoctorContext, live: LiveTopology, overridden: list[Difference]
) -> Diagnostic:
    if not overridden:
        return ok("policies", "every queue is under its own policy")
    texts = [each.text for each in overridden]
    names = {each.name for each in overridden}
    declared_names = {
        policy.name for policy in _declared_topology(context, context.settings.profile).policies
    }
    foreign = {
        queue.policy for queue in live.queues if queue.name in names and queue.policy
    } - declared_names
    rabbitmqctl = f"rabbitmqctl -p {shlex.quote(context.settings.vhost)}"
    if foreign:
        commands = [f"`{rabbitmqctl} clear_policy {shlex.quote(each)}`" for each in sorted(foreign)]
        remedy = f"{first_few(commands)}, or narrow its pattern or lower its priority"
    else:
        remedy = f"`{rabbitmqctl} list_policies` and `{rabbitmqctl} list_operator_policies`"
        remedy += " show them all"
    return failure("policies", Finding.POLICY_OVERRIDDEN, first_few(texts), remedy)


async def _check_extra(context: DoctorContext, extra: list[Difference]) -> list[Diagnostic]:
    """Report queues and policies of our namespace that are not declared: of job types that are not
    loaded, or left over. Never advise to remove a queue that holds jobs."""
    queues = [each.name for each in extra if each.kind == "queue"]
    depths = await query_queues(context.settings.require_amqp_url(), queues) if queues else {}
    occupied = {
        name: each.ready for name, each in depths.items() if each is not None and each.ready
    }
    checks = []
    if occupied:
        texts = [
            f"{pluralize(number, 'job waits', 'jobs wait')} in {name}, which is not declared"
            for name, number in occupied.items()
        ]
        kinds = " ".join(sorted({name.partition(".")[2] for name in occupied}))
        remedy = (
            "name the modules of their job types in JOBS_MODULES, and start "
            f"`jobctl worker {kinds}`; don't remove a queue that holds a job"
        )
        checks.append(failure("unknown jobs", Finding.TYPES_UNKNOWN, first_few(texts), remedy))
    removable = [each for each in extra if each.name not in occupied]
    if removable:
        commands = [_removal_command(context, each) for each in removable]
        remedy = "load their job types with JOBS_MODULES; if there are none any more: " + first_few(
            [each for each in commands if each] or ["remove them by the management page"]
        )
        texts = [each.text for each in removable]
        checks.append(warning("leftovers", Finding.LEFTOVER, first_few(texts), remedy))
    return checks


def _removal_command(context: DoctorContext, difference: Difference) -> str | None:
    vhost = shlex.quote(context.settings.vhost)
    name = shlex.quote(difference.name)
    if difference.kind == "queue":
        return f"`rabbitmqctl -p {vhost} delete_queue {name} --if-empty --if-unused`"
    if difference.kind == "policy":
        return f"`rabbitmqctl -p {vhost} clear_policy {name}`"
    return None
