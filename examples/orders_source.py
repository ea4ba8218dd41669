"""A backfill source of your own: each row of a table becomes a job.

Start the system as README.md says. The first line makes a table to try it with:

    python orders_source.py shop.db
    jobctl backfill start source orders --option database=$PWD/shop.db --watch

The rows are read in the order of their ids, and the cursor is the last id. So a backfill that was
paused or killed goes on where it was, and publishes nothing twice.
"""

import sqlite3
import sys
from collections.abc import AsyncIterator
from typing import Annotated

import aiosqlite
from pydantic import BaseModel

from switchyard import Done, JobContext, LocalOnly, Outcome, job
from switchyard.services.engine.backfill.sources import Cursor, Item, Source, SourceFailed

PAGE = 500
"""Rows that are read at once."""


class Orders(Source):
    name = "orders"
    job_type = "write_invoice"

    class Options(BaseModel):
        database: Annotated[str, LocalOnly()]  # a path: jobctl may set it, and nobody over HTTP

    async def items(self, cursor: Cursor | None) -> AsyncIterator[Item]:
        last = cursor["id"] if cursor else 0
        query = "SELECT id, total FROM orders WHERE id > ? ORDER BY id LIMIT ?"
        while rows := await self._read(query, last, PAGE):
            for last, total in rows:
                yield Item(str(last), {"order": last, "total": total}, cursor={"id": last})

    async def total(self) -> int:
        [(number,)] = await self._read("SELECT count(*) FROM orders")
        return int(number)

    async def _read(self, query: str, *values: int) -> list[sqlite3.Row]:
        try:
            async with aiosqlite.connect(self.options.database) as database:
                return list(await database.execute_fetchall(query, values))
        except sqlite3.Error as error:  # after SourceUnreachable, it would be tried again
            raise SourceFailed(f"{self.options.database}: {error}") from error


class Order(BaseModel):
    order: int
    total: float


@job("write_invoice", worker="invoices", lanes=("backfill",))
async def write_invoice(payload: Order, ctx: JobContext) -> Outcome:
    return Done({"invoice": f"Order {payload.order}: {payload.total:.2f}"})  # your work here


def make_table(path: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL)")
        database.executemany("INSERT INTO orders (total) VALUES (?)", ([n / 4] for n in range(100)))


if __name__ == "__main__":
    make_table(sys.argv[1])
