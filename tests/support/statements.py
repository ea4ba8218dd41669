"""Record the statements that are sent to a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


@contextmanager
def record_statements() -> Iterator[list[str]]:
    """Yield a list to which each statement is added while the context is open, except those that
    begin and end transactions."""
    executed: list[str] = []

    def record(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.split()[0] not in ("BEGIN", "PRAGMA", "SHOW", "COMMIT"):
            executed.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", record)
