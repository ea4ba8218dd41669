"""`jobctl jobs`: its commands, from the modules beside this one."""

from __future__ import annotations

import typer

from switchyard.cli.engine.jobs import cancel, jobs, joins, republish

app = typer.Typer(no_args_is_help=True, help="Jobs: list, show, watch, cancel, release, republish.")
app.command(name="list")(jobs.list_jobs)
app.command()(jobs.show)
app.command()(jobs.watch)
app.command()(cancel.cancel)
app.command()(joins.release)
app.command()(republish.republish)
