"""What `jobctl jobs show` says of a job that waits for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.services.engine.records.joins import JoinRecord


def told(join: JoinRecord) -> str:
    """How far it is, in a line."""
    parts = [f"{join.total - join.open - join.dead:,} of {join.total:,} jobs have ended"]
    parts += [f"{join.dead:,} are dead"] if join.dead else []
    parts += ["more may come"] if join.held else []
    choice = {
        "wait": "waits until those are redriven",
        "go_on": "goes on without the dead",
        "fail": "is dead when one of them is",
    }
    return f"{', '.join(parts)}; {choice[join.when_dead]}"


def hint(join: JoinRecord, dead: list[str]) -> str:
    """What to do about one that waits for dead jobs alone."""
    some = ", ".join(dead) + (", …" if join.dead > len(dead) else "")
    return (
        f"It waits for dead jobs ({some}): `jobctl dead redrive {dead[0]}`, or without them: "
        f"`jobctl jobs release {join.id}`."
    )


def public(join: JoinRecord) -> dict[str, Any]:
    """As `--json` has it."""
    from switchyard.cli.base.output import plain

    shown: dict[str, Any] = plain(join)
    return shown
