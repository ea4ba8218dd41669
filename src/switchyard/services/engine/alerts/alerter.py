"""Run the doctor's checks at intervals, and post new findings to a webhook.

The ledger records which alerts were sent: another scheduler continues from there, and a message
that could not be delivered is sent after the next check.
"""

from __future__ import annotations

import asyncio

import httpx
import structlog

from switchyard.broker.tls import authorities
from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.signing import HEADER, signature
from switchyard.services.engine.alerts.messages import (
    Alert,
    finding_alert,
    operation_alert,
    operation_key,
)
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.monitoring.check import Diagnostic, Finding
from switchyard.services.engine.monitoring.doctor import diagnose
from switchyard.services.engine.records.bulk import STOPPED, BulkOperation
from switchyard.services.engine.records.errors import LedgerError

SENT_WARNINGS = frozenset(
    {Finding.WORKERS_SILENT, Finding.DISK_LOW, Finding.DISPLACED, Finding.CONSUMER_LOST}
)
"""Warnings that are sent; failures are always sent."""
RECENT_SECONDS = 86_400.0
"""Seconds after an operation's end in which its alert may be sent; twice as long it is remembered
as sent."""
MAX_EXAMINED = 200
"""Bulk operations that one check reads, at most."""
DELIVERY_TIMEOUT = 5.0
"""Seconds to deliver one message."""


class Alerter:
    """Sends alerts from the active scheduler, where JOBS_ALERT_WEBHOOK is set."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._log = structlog.get_logger("alerts")
        self._previous: dict[str, Diagnostic] = {}
        """Findings of the previous check: only those that two checks in a row find are sent."""

    async def run(self) -> None:
        """Check at each interval, until cancelled."""
        while True:
            try:
                await self.check()
            except LedgerError as error:
                self._log.warning("alerts not checked", error=str(error))
            await asyncio.sleep(self._settings.alert_interval)

    async def check(self) -> None:
        """Post new alerts; one that is not delivered is posted again by the next check. Raises
        LedgerError."""
        findings = {str(each.finding): each for each in await self._findings()}
        confirmed = {key: check for key, check in findings.items() if key in self._previous}
        self._previous = findings
        system, now = str(await self._ledger.system.system()), self._ledger.clock.time()
        sent = await self._ledger.alerts.sent_alerts()
        for key, check in confirmed.items():
            if key not in sent:
                await self._send(finding_alert(check, firing=True, system=system, at=now))
        for operation in await self._ended_operations(now):
            if operation_key(operation) not in sent:
                await self._send(operation_alert(operation, system=system, at=now))
        for key in (key for key in sent if key in set(Finding) and key not in findings):
            resolved = Diagnostic(key, "ok", "it is no more", finding=Finding(key))
            if await self._deliver(finding_alert(resolved, firing=False, system=system, at=now)):
                await self._ledger.alerts.forget_alert(key)
        await self._ledger.alerts.forget_alerts_before(
            now - 2 * RECENT_SECONDS, keep=[str(each) for each in Finding]
        )

    async def _findings(self) -> list[Diagnostic]:
        checks = [check async for check in diagnose(self._settings)]
        return [
            check
            for check in checks
            if check.finding is not None
            and (check.status == "wrong" or check.finding in SENT_WARNINGS)
        ]

    async def _ended_operations(self, now: float) -> list[BulkOperation]:
        page = await self._ledger.bulk.list_bulk(states=STOPPED, limit=MAX_EXAMINED)
        return [each for each in page.items if each.updated_at > now - RECENT_SECONDS]

    async def _send(self, alert: Alert) -> None:
        if await self._deliver(alert):
            await self._ledger.alerts.remember_alert(alert.key, alert.at)
            self._log.info("alert sent", alert=alert.key, status=alert.status)

    async def _deliver(self, alert: Alert) -> bool:
        """Post the alert; return False where it was not accepted."""
        try:
            await self._post(alert)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            # The error's text has the webhook's address, which is a secret.
            name = type(error).__name__
            self._log.warning("alert not delivered", alert=alert.key, error=name)
            return False
        return True

    async def _post(self, alert: Alert) -> None:
        url, secret = self._settings.alert_webhook, self._settings.alert_secret
        if url is None:
            return
        body = alert.body(self._settings.alert_format)
        headers = {"Content-Type": "application/json"}
        if secret is not None:
            headers[HEADER] = signature(body, secret.get_secret_value())
        # Only the status of the response is read: its body may be endless.
        deadline = asyncio.timeout(DELIVERY_TIMEOUT)
        try:
            async with (
                deadline,
                httpx.AsyncClient(timeout=DELIVERY_TIMEOUT, verify=authorities()) as client,
                client.stream(
                    "POST", url.get_secret_value(), content=body, headers=headers
                ) as response,
            ):
                response.raise_for_status()
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise httpx.ReadTimeout("no answer in time") from error
