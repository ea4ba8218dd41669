"""Metrics of API processes that share a port (`jobctl api --processes`).

A scrape reaches any one of them, and each counts its own work. So whichever is asked shows what all
of them have counted, each under its number: the label `process`. To add them up here would be
wrong: a process that is started again begins at zero, and the sum would seem to have done so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from switchyard.services.engine.monitoring.metrics import FamilySource, Metrics

LABEL: Final = "process"
READ_TIMEOUT: Final = 2.0
"""Seconds for another process to send its metrics; then this scrape leaves them out."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """The processes that share a port, as seen by one of them."""

    directory: Path
    """Directory of all these processes, private to their user: each listens on a socket in it."""
    number: int

    @asynccontextmanager
    async def telling(self, metrics: Metrics) -> AsyncIterator[None]:
        """Tell the others these metrics for as long as the context lasts. Raises OSError."""

        async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await metrics.scrape())
            with suppress(OSError):  # it has waited long enough
                await writer.drain()
            writer.close()

        path = self._socket(self.number)
        path.unlink(missing_ok=True)  # of one that was killed
        server = await asyncio.start_unix_server(tell, path)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def scrape(self, own: bytes) -> bytes:
        """Return this process's metrics with those of all others, each with its number as a label.

        `own` and the result are in Prometheus' text format.
        """
        others = [each for each in self._numbers() if each != self.number]
        texts = await asyncio.gather(*(self._read(number) for number in others))
        told = {self.number: own, **dict(zip(others, texts, strict=True))}
        return labelled({number: told[number] for number in sorted(told)})

    def _socket(self, number: int) -> Path:
        return self.directory / f"{number}.sock"

    def _numbers(self) -> Iterator[int]:
        return (int(path.stem) for path in self.directory.glob("*.sock"))

    async def _read(self, number: int) -> bytes:
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                reader, writer = await asyncio.open_unix_connection(self._socket(number))
                try:
                    return await reader.read()
                finally:
                    writer.close()
        except OSError as error:  # TimeoutError is one
            structlog.get_logger("metrics").warning(
                "metrics of a process left out",
                process=number,
                error=str(error) or type(error).__name__,
            )
            return b""


def labelled(texts: dict[int, bytes]) -> bytes:
    """Return the metrics of these processes as one text: each sample with the number of its process
    as a label."""
    families: dict[str, Family] = {}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text.decode()):
            shown = families.setdefault(
                family.name, Family(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                shown.samples.append(sample._replace(labels={**sample.labels, LABEL: str(number)}))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FamilySource(families.values))
    return generate_latest(registry)
