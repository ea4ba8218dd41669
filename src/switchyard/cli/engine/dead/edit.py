"""`jobctl dead edit` and `undo`: change a payload in the user's editor; take the change back."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.cli.base.common import (
    IncludeOption,
    load_registry,
    load_settings,
    open_ledger,
    quiet_logs,
    require_broker,
    run,
)
from switchyard.cli.base.errors import CommandFailed, WrongUsage
from switchyard.cli.base.output import (
    JsonOption,
    YesOption,
    confirm,
    echo,
    indented_json,
    print_json,
    require_answer,
    say,
)
from switchyard.cli.engine.dead.letters import index_new_letters
from switchyard.cli.engine.dead.options import IdsArgument, full_letter_id

if TYPE_CHECKING:
    from switchyard.services.engine.dead.undo import UndoResult
    from switchyard.services.engine.records.results import DeadLetter

HEADER = "# Save and close to go on; leave it as it is to change nothing.\n"


def edit(
    letter_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id of the dead letter, from `jobctl dead list`; the first six characters or more "
            "are enough.",
        ),
    ],
    from_ledger: Annotated[
        bool,
        typer.Option(
            "--from-ledger", help="Use the ledger's copy of a letter that the broker no longer has."
        ),
    ] = False,
    yes: YesOption = False,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Edit the payload of a dead letter in $EDITOR, and redrive the letter.

    The result is validated; if it is not valid for the job type, you can continue editing. The
    command shows the difference and asks for confirmation. `jobctl dead undo ID` reverts it as
    long as the job has not started.
    """
    if not yes:
        require_answer("edit")
    quiet_logs()
    run(_edit(letter_id, include, from_ledger=from_ledger, yes=yes, as_json=as_json))


async def _edit(
    letter_id: str, include: list[str] | None, *, from_ledger: bool, yes: bool, as_json: bool
) -> None:
    from switchyard.cli.engine.dead.redrive import run_and_report
    from switchyard.services.engine.dead.changes import Change
    from switchyard.services.engine.dead.letters import LetterFilter
    from switchyard.services.engine.redrive.spec import RedriveSpec

    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    async with open_ledger(settings, registry) as ledger:
        await index_new_letters(settings, ledger, registry)
        letter_id = await full_letter_id(ledger, letter_id)
        letter = await ledger.dead_letters.require_dead(letter_id)
        payload = _edit_payload(letter, registry, yes=yes)
        if payload is None:
            say("nothing was changed")
            return
        if not yes:
            confirm("Redrive it with these changes?", abort=True)
        spec = RedriveSpec(
            LetterFilter(ids=frozenset({letter_id})),
            Change(payload=payload),
            from_ledger=from_ledger,
            remote=False,
        )
        await run_and_report(settings, registry, ledger, spec, why="edited", as_json=as_json)


def _edit_payload(letter: DeadLetter, registry: Any, *, yes: bool) -> dict[str, Any] | None:
    """Return the new payload; None if it was not changed. Raises CommandFailed, InvalidRedrive."""
    from switchyard.services.engine.dead.changes import (
        Change,
        InvalidRedrive,
        make_copy,
        payload_difference,
        why_no_job,
    )
    from switchyard.services.engine.dead.stored import stored_letter
    from switchyard.services.engine.jobs.secret_fields import hide_secrets

    stored = stored_letter(letter)
    if stored.message is None:
        raise CommandFailed(why_no_job(stored))
    secrets = registry.secrets_of(stored.message.job_type)
    before = hide_secrets(stored.message.payload, secrets)
    text = indented_json(before)
    while True:
        text = in_editor(HEADER + text).removeprefix(HEADER)
        try:
            payload = json.loads(text)
            if not isinstance(payload, dict):
                raise InvalidRedrive("the payload must be a JSON object")
            make_copy(stored, Change(payload=payload), registry)
        except ValueError as error:  # InvalidRedrive is one, too
            if yes or not confirm(f"{error}\nEdit it again?", default=True):
                raise CommandFailed(f"not redriven: {error}") from error
            continue
        lines = payload_difference(stored.message.payload, payload, secrets)
        for line in lines:
            say(line)
        return payload if lines else None


def in_editor(text: str) -> str:
    """Open the text in the user's editor, and return it as saved. Raises CommandFailed."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="jobctl-edit-") as directory:
        file = Path(directory) / "payload.json"
        file.write_text(text, encoding="utf-8")
        try:
            completed = subprocess.run([*shlex.split(command), str(file)], check=False)
        except (OSError, ValueError) as error:
            raise CommandFailed(f"can't run {command!r}: set EDITOR") from error
        if completed.returncode != 0:
            raise CommandFailed(
                f"{command!r} ended with {completed.returncode}: nothing was changed"
            )
        return file.read_text(encoding="utf-8")


def undo(
    ids: IdsArgument = None,
    redrive: Annotated[
        str | None, typer.Option(metavar="ID", help="All letters that this redrive has changed.")
    ] = None,
    include: IncludeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo a redrive with changes, for letters whose job has not started.

    The copy in the lane will not run, and the original dead letter is restored. Exit code 1: at
    least one job had already started.
    """
    from switchyard.services.engine.bulk.control import require_bulk
    from switchyard.services.engine.dead.undo import latest_edits
    from switchyard.services.engine.dead.undo import undo as undo_edits

    if not ids and redrive is None:
        raise WrongUsage("which ones? name ids, or --redrive")
    settings = load_settings()
    require_broker(settings)
    registry = load_registry(settings, include)
    quiet_logs()

    async def work() -> list[UndoResult]:
        from switchyard.broker.publish.publisher import Publisher

        async with (
            open_ledger(settings, registry) as ledger,
            Publisher(settings, name="undo") as publisher,
        ):
            full_ids = [await full_letter_id(ledger, each) for each in ids or ()]
            operation = None if redrive is None else (await require_bulk(ledger, redrive)).id
            edits = await latest_edits(ledger, letter_ids=full_ids, operation_id=operation)
            undone = await undo_edits(ledger, registry, publisher, edits)
            await index_new_letters(settings, ledger, registry)
            return undone

    results = run(work())
    if as_json:
        print_json(
            [{"id": each.letter_id, "done": each.done, "note": each.note} for each in results]
        )
    else:
        for each in results:
            echo(f"{each.letter_id} {each.note}" if each.done else f"{each.letter_id}: {each.note}")
    failed = sum(not each.done for each in results)
    if failed:
        raise CommandFailed(f"{failed} of {len(results)} could not be undone")
