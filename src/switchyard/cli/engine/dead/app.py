"""The group `jobctl dead`, with the commands of the modules beside this one."""

from __future__ import annotations

import typer

from switchyard.cli.engine.dead import edit, files, groups, letters, purge, redrive, redrives

app = typer.Typer(
    no_args_is_help=True, help="Dead letters: list, group by cause, edit, redrive, export, purge."
)
app.command(name="list")(letters.list_dead)
app.command()(letters.show)
app.command(name="index")(purge.index)
app.command()(groups.groups)
app.command()(redrive.redrive)
app.add_typer(redrives.app, name="redrives")
app.command()(edit.edit)
app.command()(edit.undo)
app.command()(files.replay)
app.command()(files.export)
app.command(name="import")(files.import_)
app.command()(purge.purge)
app.command()(purge.purges)
