"""`jobctl samples`: documents to try the system with, here or sent through the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from switchyard.cli.base.calling import calling
from switchyard.cli.base.errors import one_line
from switchyard.cli.base.output import JsonOption, echo, print_json, print_json_line, say

SeedOption = Annotated[
    int, typer.Option(min=0, max=2**53 - 1, help="The same seed gives the same documents.")
]
KindOption = Annotated[
    list[str] | None, typer.Option("--kind", help="Only of this kind; repeatable.")
]
LanguageOption = Annotated[
    list[str] | None, typer.Option("--language", help="Only in this language; repeatable.")
]

app = typer.Typer(no_args_is_help=True, help="Sample documents of many kinds and languages.")


@app.command()
def generate(
    count: Annotated[int, typer.Argument(min=1, max=1_000_000, metavar="COUNT")] = 10,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the files, made if need be.")
    ] = Path("samples"),
    seed: SeedOption = 0,
    kind: KindOption = None,
    language: LanguageOption = None,
    truth: Annotated[
        bool,
        typer.Option(
            "--truth", help="Also NAME.json beside each: its text and tables in reading order."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make sample documents up and write them as files; prints their paths.

    Kinds: text, report, paper, magazine, tables, figures, invoice, letter, scan (a PDF of pictures
    alone), image (a JPEG). Languages: en, de, fr, es, ru, zh, he. No broker, ledger or API is
    needed.
    """
    import json

    from switchyard.services.samples.generating import generate as generated

    drawn = generated(count, seed=seed, kinds=kind, languages=language)
    out.mkdir(parents=True, exist_ok=True)
    for sample in drawn:
        path = out / sample.filename
        path.write_bytes(sample.content)
        if truth:
            beside = path.with_suffix(".json")
            beside.write_text(json.dumps(sample.truth, ensure_ascii=False, indent=1), "utf-8")
        if as_json:
            about = {name: sample.truth[name] for name in ("kind", "language", "title")}
            print_json_line({"path": str(path), **about, "page_count": sample.page_count})
        else:
            echo(one_line(str(path)))


def generate_documents(
    count: Annotated[int, typer.Argument(min=1, max=50, metavar="COUNT")] = 5,
    seed: SeedOption = 0,
    kind: KindOption = None,
    language: LanguageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have sample documents made and sent through the pipeline; prints the job that makes them.

    `jobctl jobs show JOB` names them. Kinds and languages are those of `jobctl samples generate`.
    """
    with calling() as client:
        made = client.generate_documents(count, seed=seed, kinds=kind, languages=language)
    if as_json:
        print_json(made.model_dump(mode="json"))
        return
    if made.documents is None:
        echo(made.job_id)
        return
    for document in made.documents:
        echo(f"{document.document_id}  {one_line(document.filename)}")
    say(f"made by job {made.job_id}")
