"""Whether the broker is there, lets us in, and is one that the profile can be used with."""

from __future__ import annotations

import re
import shlex
from urllib.parse import unquote, urlsplit

from switchyard.broker.addresses import address_of
from switchyard.broker.errors import BrokerAuthError, BrokerUnavailable, LimitReached
from switchyard.broker.wire.connection import connected, underlying
from switchyard.services.engine.monitoring.check import Diagnostic, Finding, failure, ok
from switchyard.services.engine.monitoring.checks import certificates
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext

CONNECTION = "doctor"
"""The name under which the broker shows its connections."""
WITHOUT_VHOST = "it refuses the vhost"
"""What is said where user and password are right, and the vhost is not."""
MIN_VERSION = {"classic": (3, 10), "quorum": (4, 3)}
"""The first release with all that a profile needs."""


async def broker(system: DoctorContext) -> list[Diagnostic]:
    """Reach it."""
    url = system.settings.require_amqp_url()
    try:
        async with connected(url, CONNECTION) as connection:
            system.broker = dict(underlying(connection).server_properties)
    except BrokerAuthError as error:
        if WITHOUT_VHOST in str(error):
            return [_without_vhost(system, error)]
        remedy = (
            "correct user, password and vhost in JOBS_AMQP_URL (of a system that `jobctl up` runs: "
            "`source .switchyard/env`), or set the password there: "
            "`rabbitmqctl change_password USER PASSWORD`"
        )
        return [failure("broker", Finding.BROKER_REFUSES, str(error), remedy)]
    except BrokerUnavailable as error:
        return [away(system, error)]
    return [ok("broker", f"reached at {address_of(url)}")]


def _without_vhost(system: DoctorContext, error: BrokerAuthError) -> Diagnostic:
    """There is none of that name, or it is not for this user."""
    vhost = shlex.quote(system.settings.vhost)
    user = shlex.quote(unquote(urlsplit(system.settings.require_amqp_url()).username or "guest"))
    remedy = (
        "correct the vhost in JOBS_AMQP_URL: `rabbitmqctl list_vhosts` shows all. One that was "
        f"deleted: `rabbitmqctl add_vhost {vhost}`, `rabbitmqctl set_permissions -p {vhost} {user} "
        "'.*' '.*' '.*'`, then `jobctl topology apply` and `jobctl jobs republish`: docs/backup.md"
    )
    return failure("broker", Finding.BROKER_REFUSES, str(error), remedy)


def _over_limit(system: DoctorContext, error: LimitReached) -> Diagnostic:
    """Nothing is wrong with the address: too many have come in by it."""
    _, _, text = str(error).partition("NOT_ALLOWED")
    user = shlex.quote(unquote(urlsplit(system.settings.require_amqp_url()).username or "guest"))
    what = "channels" if "number of channels" in text else "connections"
    vhost = shlex.quote(system.settings.vhost)
    if "node connection limit" in text or "opened on node" in text:
        limit = "channel_max_per_node" if what == "channels" else "connection_max"
        raises = f"raise `{limit}` in the node's rabbitmq.conf, and restart it"
    elif "user connection limit" in text or what == "channels":
        raises = f"""`rabbitmqctl set_user_limits {user} '{{"max-{what}": NUMBER}}'`"""
    else:
        raises = f"""`rabbitmqctl set_vhost_limits -p {vhost} '{{"max-{what}": NUMBER}}'`"""
    remedy = (
        "look who has so many: `rabbitmqctl list_connections user vhost client_properties`; end "
        f"what nobody needs, or raise the limit: {raises}. Workers, API and scheduler wait, and go "
        "on by themselves"
    )
    return failure("broker", Finding.BROKER_LIMIT, str(error), remedy)


def away(system: DoctorContext, error: BrokerUnavailable) -> Diagnostic:
    """It is not there, says nothing or lets nobody more in, and what to do about it."""
    if isinstance(error, LimitReached):
        return _over_limit(system, error)
    remedy = certificates.remedy(error, "JOBS_AMQP_URL")
    if remedy is None:
        remedy = "start the broker, or correct host and port in JOBS_AMQP_URL"
    if isinstance(error.__cause__, TimeoutError):
        remedy = (
            "its host is cut off, or the broker is frozen: look at the host and the network; kill "
            "a frozen broker, and start it; or correct host and port in JOBS_AMQP_URL"
        )
    return failure("broker", Finding.BROKER_AWAY, str(error), remedy)


async def version(system: DoctorContext) -> list[Diagnostic]:
    """Tell whether it has all that the profile needs."""
    value = (system.broker or {}).get("version", "")
    text = value.decode() if isinstance(value, bytes) else str(value)
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:2])
    profile = system.settings.profile
    if numbers >= MIN_VERSION[profile]:
        return [ok("version", f"RabbitMQ {text} with the profile {profile}")]
    needed = ".".join(map(str, MIN_VERSION[profile]))
    return [
        failure(
            "version",
            Finding.BROKER_TOO_OLD,
            f"the profile {profile} needs RabbitMQ {needed} or later, this is {text}",
            "`export JOBS_PROFILE=classic`" if profile == "quorum" else "upgrade the broker",
        )
    ]
