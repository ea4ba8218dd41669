"""Metrics of API processes that share a port (`jobctl api --processes`).

A scrape reaches any one of them, and each counts its own work. So the one that is reached exposes
the metrics of all, with their numbers as the label `process`. Sums would be wrong: a restarted
process begins at zero, and the sum would fall.
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
    async def serving(self, metrics: Metrics) -> AsyncIterator[None]:
        """Serve these metrics to the other processes for as long as the context lasts. Raises
        OSError."""

        async def send_metrics(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await metrics.scrape())
            with suppress(OSError):  # the reader has given up
                await writer.drain()
            writer.close()

        path = self._socket(self.number)
        path.unlink(missing_ok=True)  # left by a process that was killed
        server = await asyncio.start_unix_server(send_metrics, path)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def scrape(self, own: bytes) -> bytes:
        """Return this process's metrics with those of all others, each with its number as a label.

        `own` and the result are in Prometheus' text format.
        """
        others = [each for each in self._process_numbers() if each != self.number]
        texts = await asyncio.gather(*(self._read(number) for number in others))
        texts_by_number = {self.number: own, **dict(zip(others, texts, strict=True))}
        return label_by_process(
            {number: texts_by_number[number] for number in sorted(texts_by_number)}
        )

    def _socket(self, number: int) -> Path:
        return self.directory / f"{number}.sock"

    def _process_numbers(self) -> Iterator[int]:
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


def label_by_process(texts: dict[int, bytes]) -> bytes:
    """Return the metrics of these processes as one text: each sample with the number of its process
    as a label."""
    families: dict[str, Family] = {}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text.decode()):
            labelled_family = families.setdefault(
                family.name, Family(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labelled_family.samples.append(
                    sample._replace(labels={**sample.labels, LABEL: str(number)})
                )
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FamilySource(families.values))
    return generate_latest(registry)
