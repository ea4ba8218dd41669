"""What is said to a database, to count it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


@contextmanager
def statements() -> Iterator[list[str]]:
    """What is said to the database meanwhile, but for the beginning and end of transactions."""
    said: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.split()[0] not in ("BEGIN", "PRAGMA", "SHOW", "COMMIT"):
            said.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(Engine, "before_cursor_execute", note)
