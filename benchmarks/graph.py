"""`make bench ARGS=graph`: a large graph on each database: asked, told, and ranked."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, insert, select, text, update

from benchmarks.common import resident_memory
from benchmarks.measurements import Measurement, Row
from benchmarks.stage import Stage
from switchyard.services.engine.ledger import Ledger, upgrade
from switchyard.services.pipeline.graph.descriptions import citation_edges, describe_document
from switchyard.services.pipeline.graph.pagerank import Edges, Ranks, rank, read_edges
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.ledger.pipeline_tables import (
    graph_counters,
    graph_edges,
    graph_keys,
    graph_nodes,
)
from switchyard.services.pipeline.records.graph import EdgeKind, Ranking

EDGES_PER_WORK = 8
ASKED = 500
"""Nodes that are asked about, the much-cited as often as they are cited."""
TOLD = 50
"""Documents of 30 references each that are told to the full graph."""
_BATCH = 20_000


# The graph's own tables are filled directly: to tell it so many documents would take hours.


def graph(stage: Stage, rounds: int, count: int) -> list[Row]:
    """A graph of that many citations, some works cited by many thousands: asked, told, ranked."""
    rows: list[Row] = []
    for ledger in ("postgresql", "sqlite"):
        url = f"sqlite+aiosqlite:///{stage.folder('graph') / 'ledger.db'}"
        if ledger == "postgresql":
            url = stage.postgres.create_database()
        rows += asyncio.run(_measured(url, ledger, rounds, count))
    return rows


async def _measured(url: str, name: str, rounds: int, count: int) -> list[Row]:
    near = Row(f"{name}: neighbours of a work, p95", "ms", target="under 20 ms")
    around = Row(f"{name}: around it, 2 edges, 100 nodes, p95", "ms")
    paths = Row(f"{name}: shortest path, p95", "ms")
    shared = Row(f"{name}: cited together, p95", "ms")
    told = Row(f"{name}: documents of 30 references", "documents/s")
    computed = Row(f"{name}: PageRank and communities", "s", target="under 60 s")
    memory = Row(f"{name}: memory of that process", "MB")
    whole = Row(f"{name}: read, computed, written and swapped", "s")
    await upgrade(url)
    async with await Ledger.open(url) as ledger:
        await _fill(ledger, count)
        picked = await _picked(ledger)
        for _ in range(rounds):
            near.rounds.append(
                await _p95(picked, PipelineLedger(ledger).graph_reads.graph_neighbours)
            )
            within = partial(PipelineLedger(ledger).graph_walks.graph_neighbourhood, depth=2)
            around.rounds.append(await _p95(picked[:100], within))
            far = partial(PipelineLedger(ledger).graph_walks.graph_paths, end=picked[-1])
            paths.rounds.append(await _p95(picked[:100], far))
            shared.rounds.append(
                await _p95(picked[:100], PipelineLedger(ledger).graph_reads.graph_cocited)
            )
            told.rounds.append(await _tell(ledger, picked))
            began = time.monotonic()
            generation = await PipelineLedger(ledger).graph_rankings.begin_ranking()
            edges = await read_edges(ledger)
            ranks, seconds, megabytes = await _ranked(edges)
            await PipelineLedger(ledger).graph_rankings.put_ranks(generation, ranks.rows())
            facts = Ranking(generation, time.time(), len(ranks.nodes), len(edges), 0, seconds)
            await PipelineLedger(ledger).graph_rankings.finish_ranking(facts)
            whole.rounds.append(time.monotonic() - began)
            computed.rounds.append(seconds)
            memory.rounds.append(megabytes)
    return [near, around, paths, shared, told, computed, memory, whole]


async def _fill(ledger: Ledger, count: int) -> None:
    """Works that cite others, as in the literature: a few are cited by very many."""
    rng = np.random.default_rng(0)
    works = max(count // EDGES_PER_WORK, 2)
    sources = np.repeat(np.arange(1, works + 1), EDGES_PER_WORK)
    targets = 1 + (rng.pareto(1.2, size=len(sources)) * works / 1000).astype(int) % works
    pairs = np.unique(np.stack([sources, targets]), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]

    async def put(table: Any, rows: list[dict[str, Any]]) -> None:
        for start in range(0, len(rows), _BATCH):
            some = rows[start : start + _BATCH]

            def work(connection: Connection, some: list[dict[str, Any]] = some) -> None:
                connection.execute(insert(table), some)

            await ledger.core.database.write(work)

    nodes = [
        {
            "id": node,
            "kind": "work",
            "key": f"doi:10.1234/{node}",
            "label": f"The work of number {node}",
            "title": f"the work of number {node}",
            "author": "",
            "provenance": "reference",
            "cited": 0,
        }
        for node in range(1, works + 1)
    ]
    await put(graph_nodes, nodes)
    await put(graph_keys, [{"key": each["key"], "node_id": each["id"]} for each in nodes])
    await put(
        graph_edges,
        [
            {
                "source": source,
                "kind": "cites",
                "target": target,
                "owner": source,
                "weight": 1.0,
                "provenance": "reference",
            }
            for source, target in pairs.T.tolist()
        ],
    )

    def settle(connection: Connection) -> None:
        cited = (
            select(func.count()).where(graph_edges.c.target == graph_nodes.c.id).scalar_subquery()
        )
        connection.execute(update(graph_nodes).values(cited=cited))
        connection.execute(update(graph_counters).values(value=works + 1))
        connection.execute(text("ANALYZE"))

    await ledger.core.database.write(settle)


async def _picked(ledger: Ledger) -> list[str]:
    """Keys of works, each as likely as its citations are many."""

    def work(connection: Connection) -> list[str]:
        total = connection.scalar(select(func.count()).select_from(graph_edges)) or 1
        query = (
            select(graph_nodes.c.key)
            .select_from(graph_edges)
            .join(graph_nodes, graph_nodes.c.id == graph_edges.c.target)
            .where(graph_edges.c.source % max(total // EDGES_PER_WORK // ASKED, 1) == 0)
        )
        return list(connection.scalars(query))

    keys = await ledger.core.database.read(work)
    random.Random(0).shuffle(keys)
    return keys[:ASKED]


async def _p95(keys: list[str], ask: Callable[[str], Awaitable[object]]) -> float:
    """Milliseconds."""
    took: list[float] = []
    for key in keys[:-1]:
        began = time.perf_counter()
        await ask(key)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.quantiles(took, n=20)[-1]


async def _tell(ledger: Ledger, keys: list[str]) -> float:
    """Documents a second, each citing 20 works that are known and 10 new ones."""
    rng = random.Random(1)
    began = time.monotonic()
    for number in range(TOLD):
        known: list[dict[str, Any]] = [
            {"doi": key.removeprefix("doi:")} for key in rng.sample(keys, 20)
        ]
        people = [{"family": f"{name}{number}", "given": "J"} for name in ("Roe", "Doe")]
        new: list[dict[str, Any]] = [
            {"title": f"Paper {number} and {each} of some length", "year": 2000, "authors": people}
            for each in range(10)
        ]
        document = describe_document(f"bench-{number}-{began}", title="A paper of the benchmark")
        await PipelineLedger(ledger).graph.put_in_graph(
            document, {EdgeKind.CITES: citation_edges(known + new)}
        )
    return TOLD / (time.monotonic() - began)


async def _ranked(edges: Edges) -> tuple[Ranks, float, float]:
    """In a process of its own, as the job does; with seconds and megabytes."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return await loop.run_in_executor(pool, _rank, edges)


def _rank(edges: Edges) -> tuple[Ranks, float, float]:
    began = time.monotonic()
    ranks = rank(edges)
    seconds = time.monotonic() - began
    return ranks, seconds, resident_memory("VmHWM")


ALL: dict[str, tuple[Measurement, int, int]] = {"graph": (graph, 1, 1_000_000)}
