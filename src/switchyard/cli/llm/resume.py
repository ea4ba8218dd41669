"""`jobctl llm resume`: a paused model server is asked again at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.broker.wording import pluralize
from switchyard.cli.base.common import load_settings, open_ledger, run
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import JsonOption, echo, plain, print_json
from switchyard.services.llm.ledger.ledger import LlmLedger

if TYPE_CHECKING:
    from switchyard.services.llm.records.llm import PauseEnded


def resume(
    server: Annotated[
        str, typer.Argument(metavar="SERVER", help="Its name in `jobctl llm status`.")
    ],
    as_json: JsonOption = False,
) -> None:
    """End the pause of a model server: requests that wait for it go on.

    A server that still refuses them is paused again. Exit code 1: no such server was called.
    """

    async def end() -> PauseEnded | None:
        async with open_ledger(load_settings()) as ledger:
            return await LlmLedger(ledger).slots.end_llm_pause(server)

    ended = run(end())
    if ended is None:
        raise CommandFailed(f"no model server {server!r} was called: see `jobctl llm status`")
    if as_json:
        print_json({"server": server, **plain(ended)})
    elif not ended.paused_for:
        echo(f"{server} is not paused")
    else:
        jobs = pluralize(ended.jobs, "waiting job is", "waiting jobs are")
        echo(f"{server} is asked again; {jobs} published again by the scheduler")
