"""`jobctl dead groups` on terminals of different widths."""

import io
import time

import pytest
from rich.console import Console

from switchyard.api.views.dead import view_group
from switchyard.cli.engine.dead.groups import groups_table
from switchyard.services.engine.records.results import DeadGroup, DeadLetter

MESSAGE = "the model server refused the prompt: too long"


def make_group() -> DeadGroup:
    now = time.time()
    sample = DeadLetter(
        id="01J",
        job_id="01J",
        job_type="summarize_content",
        lane="hot",
        routing_key="hot.summarize_content",
        reason="permanent",
        error_type="PromptTooLong",
        error_message=MESSAGE,
        traceback=None,
        attempts=1,
        redrives=0,
        worker="llm",
        state="waiting",
        copies=1,
        dead_at=now,
        first_at=now,
        updated_at=now,
        headers={},
        body=b"{}",
        fingerprint="ab12cd34",
    )
    return DeadGroup("ab12cd34", 1_234, now - 7_200, now - 60, tuple(range(24)), sample)


def draw(width: int) -> list[str]:
    screen = Console(width=width, file=io.StringIO(), force_terminal=False)
    screen.print(groups_table([view_group(make_group())], width))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_shows_the_start_of_the_cause(width: int) -> None:
    head, line = draw(width)
    assert head.split() == ["GROUP", "COUNT", "LAST", "CAUSE"]
    assert "ab12cd34" in line
    assert "1,234" in line
    assert "summarize_content: PromptTooLong: the model serv" in line
    assert len(line) <= width


def test_a_wide_terminal_shows_everything() -> None:
    head, line = draw(160)
    assert head.split() == ["GROUP", "COUNT", "FIRST", "LAST", "24", "H", "JOB", "REASON", "ERROR"]
    assert "▁" in line
    assert MESSAGE in line
