"""`make bench`: run the comparisons and print the report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    bulk,
    dashboard,
    fairness,
    footprint,
    gateway,
    graph,
    http_api,
    large,
    limits,
    llm,
    llm_http,
    measurements,
    redrives,
    year,
)
from benchmarks.documents import extract, recognise, through, vectors
from benchmarks.measurements import Measurement, Row
from benchmarks.other_load import DISTURBED, OtherLoad
from benchmarks.search import evaluation
from benchmarks.stage import Stage, stage

ALL = {
    **measurements.ALL,
    **limits.ALL,
    **fairness.ALL,
    **bulk.ALL,
    **dashboard.ALL,
    **redrives.ALL,
    **http_api.ALL,
    **llm.ALL,
    **llm_http.ALL,
    **graph.ALL,
    **footprint.ALL,
    **gateway.ALL,
    **evaluation.ALL,
    **extract.ALL,
    **recognise.ALL,
    **vectors.ALL,
    **through.ALL,
    **large.ALL,
    **year.ALL,
}
GROUPS = {"large": tuple(large.ALL), "year": tuple(year.ALL)}
"""Several under one name; they are measured only where they are named."""
_USUAL = [name for name in ALL if name not in {*large.ALL, *year.ALL}]
QUICK = {
    "publish": 8_000,
    "consume": 8_000,
    "hot": 600,
    "api": 3_000,
    "backfill": 20_000,
    "backfill-hot": 30_000,
    "redrive": 8_000,
    "footprint": 50,
}
"""What `--quick` measures, in one round of so many jobs or requests."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    choices = ", ".join([*ALL, *GROUPS])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {choices}; all but {', '.join(GROUPS)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"in ten minutes, one round of {', '.join(QUICK)}"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each, interleaved")
    parser.add_argument("--count", type=int, help="jobs in each round")
    parser.add_argument(
        "--tries",
        type=int,
        help="of each, where others keep the machine busy (default 2, with --quick 1)",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--collection", type=Path, metavar="DIR", help="search: public collections to search, too"
    )
    options = parser.parse_args()
    unknown = set(options.names) - ALL.keys() - GROUPS.keys()
    if unknown:
        parser.error(f"no measurement {', '.join(sorted(unknown))}: choose of {choices}")
    names = [each for name in options.names for each in GROUPS.get(name, (name,))]
    tries = options.tries or (1 if options.quick else 2)
    console = Console(width=None if sys.stdout.isatty() else 110)
    figures: dict[str, list[Row]] = {}
    failed: list[str] = []
    with stage() as ground:
        console.print(
            f"RabbitMQ {ground.broker_version}, Python {platform.python_version()}, "
            f"{os.cpu_count()} cores; medians of the rounds"
        )
        for name in names or (QUICK if options.quick else _USUAL):
            measure, rounds, count = ALL[name]
            if options.quick:
                rounds, count = 1, QUICK.get(name, count)
            console.print(f"\n[bold]{name}[/]: {measure.__doc__}")
            began = time.monotonic()
            try:
                wanted = (options.rounds or rounds, options.count or count)
                figures[name] = _undisturbed(measure, ground, wanted, tries, console)
            except Exception:
                # The figures of an hour are not given up for one that can't be had.
                console.print_exception()
                failed.append(name)
            else:
                if name == "search" and options.collection:
                    figures[name] += evaluation.collection_quality(options.collection)
                console.print(_table(figures[name]))
            console.print(f"[dim]{time.monotonic() - began:,.0f} s[/]")
            ground.clear()
            if options.json:
                options.json.write_text(json.dumps(_values(figures), indent=2) + "\n")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}; why stands above")


def _undisturbed(
    measure: Measurement, ground: Stage, wanted: tuple[int, int], tries: int, console: Console
) -> list[Row]:
    """Measure, and once more while others keep the machine busy; the rows of the quietest try."""
    quietest: tuple[float, list[Row]] | None = None
    for number in range(tries):
        if number:
            ground.clear()
        load = OtherLoad()
        rows = measure(ground, *wanted)
        share = load.share()
        if quietest is None or share < quietest[0]:
            quietest = share, rows
        console.print(f"[dim]others used {share:.0%} of the cores[/]")
        if share <= DISTURBED:
            break
    else:
        console.print("[yellow]disturbed: compare these figures with nothing[/]")
    assert quietest is not None
    return quietest[1]


def _values(figures: dict[str, list[Row]]) -> dict[str, list[dict[str, object]]]:
    return {
        name: [{**vars(row), "median": row.median} for row in rows]
        for name, rows in figures.items()
    }


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_column("spread", justify="right")
    table.add_column("rounds")
    table.add_column("ratio", justify="right")
    table.add_column("target")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.median:,.1f} {row.unit}"
            if row.median < 1000
            else f"{row.median:,.0f} {row.unit}",
            f"{row.spread:.0%}" if row.spread is not None else "",
            " ".join(
                f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in row.rounds[:6]
            ),
            f"{row.ratio:.2f}" if row.ratio is not None else "",
            row.target,
        )
    return table


if __name__ == "__main__":
    main()
