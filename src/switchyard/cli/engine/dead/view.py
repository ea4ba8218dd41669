"""Show or watch a redrive on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from switchyard.cli.base.durations import age
from switchyard.cli.base.output import cell, inline_json, print_rows, say, styled
from switchyard.cli.engine.bulk.view import RecordDisplay

if TYPE_CHECKING:
    from switchyard.api.models.dead import RedriveView
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.bulk import BulkOperation


class RedriveDisplay(RecordDisplay):
    """Display of redrives, for the commands that all kinds of operations share."""

    noun = "redrive"
    command = "jobctl dead redrives"
    empty_text = "No redrives. Start one: `jobctl dead redrive --help`"
    columns = ("ID", "STATE", "REDRIVEN", "DONE", "FAILED", "BY", "AGE", "WHAT")
    right = ("REDRIVEN", "DONE", "FAILED")
    counted = "redriven"
    other_counts = ("succeeded", "failed", "unfinished")

    @property
    def kinds(self) -> tuple[str, ...]:
        from switchyard.services.engine.redrive.spec import KIND

        return (KIND,)

    async def read(self, ledger: Ledger, operation: BulkOperation) -> BulkOperation:
        from switchyard.services.engine.redrive.spec import with_outcomes

        return await with_outcomes(ledger, operation)

    def to_model(self, operation: BulkOperation) -> RedriveView:
        """Return a redrive as `--json` prints it."""
        from switchyard.api.views.dead import view_redrive

        return view_redrive(operation)

    def row(self, operation: BulkOperation) -> Sequence[str]:
        return (
            operation.id,
            styled(operation.state),
            f"{operation.counts.get('redriven', 0):,}",
            f"{operation.counts.get('succeeded', 0):,}",
            f"{operation.counts.get('failed', 0):,}",
            cell(operation.created_by),
            age(operation.created_at),
            cell(f"{operation.title}{f' ({operation.note})' if operation.note else ''}"),
        )

    def report(self, operation: BulkOperation) -> None:
        """Print everything that is known of a redrive."""
        from switchyard.services.engine.redrive.spec import RedriveProgress

        progress = RedriveProgress.from_operation(operation)
        total = f" of {progress.total:,}" if progress.total is not None else ""
        print_rows(
            [
                ("id", operation.id),
                ("what", operation.title),
                *self.facts(operation),
                ("redriven", f"{progress.redriven:,}{total}"),
                ("succeeded", f"{progress.succeeded:,}"),
                ("failed again", f"{progress.failed:,}" if progress.failed else ""),
                ("not at their end", f"{progress.unfinished:,}" if progress.unfinished else ""),
                ("undone", f"{progress.undone:,}" if progress.undone else ""),
                ("dropped", f"{progress.dropped:,}" if progress.dropped else ""),
                ("not valid", f"{progress.invalid:,}" if progress.invalid else ""),
                ("spec", inline_json(dict(operation.spec))),
            ]
        )
        for note in progress.notes:
            say(note)
