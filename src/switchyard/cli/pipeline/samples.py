"""`jobctl samples`: documents to try the system with, here or sent through the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from switchyard.cli.base.api_client import api_client
from switchyard.cli.base.errors import one_line, writing
from switchyard.cli.base.output import JsonOption, echo, print_json, print_json_line, say

SeedOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=2**53 - 1,
        help="Seed of the random generator: the same seed gives the same documents.",
    ),
]
KindOption = Annotated[
    list[str] | None,
    typer.Option("--kind", help="Only this kind; repeatable. Default: all kinds in turn."),
]
LanguageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--language", help="Only this language; repeatable. Default: all languages in turn."
    ),
]

app = typer.Typer(
    no_args_is_help=True, help="Sample documents: generate files of many kinds and languages."
)


@app.command()
def generate(
    count: Annotated[
        int, typer.Argument(min=1, max=1_000_000, metavar="COUNT", help="Number of documents.")
    ] = 10,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Output directory; it is created if missing. Files of the same name are replaced.",
        ),
    ] = Path("samples"),
    seed: SeedOption = 0,
    kind: KindOption = None,
    language: LanguageOption = None,
    truth: Annotated[
        bool,
        typer.Option(
            "--truth",
            help="Also write NAME.json for each file: its text and tables in reading order.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Generate sample documents as files, and print their paths.

    Kinds: text, report, paper, magazine, tables, figures, invoice, letter, scan (a PDF of images
    only), image (a JPEG). Languages: en, de, fr, es, ru, zh, he. Needs no broker, ledger or API.

    Example:

    ```
    jobctl samples generate 20 --kind scan --language de --out samples
    ```
    """
    import json

    from switchyard.services.pipeline.samples import generated_samples

    samples = generated_samples.generate(count, seed=seed, kinds=kind, languages=language)
    for sample in samples:
        path = out / sample.filename
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        with writing(path):
            path.write_bytes(sample.content)
            if truth:
                truth_path = path.with_suffix(".json")
                text = json.dumps(sample.truth, ensure_ascii=False, indent=1)
                truth_path.write_text(text, "utf-8")
        if as_json:
            facts = {name: sample.truth[name] for name in ("kind", "language", "title")}
            print_json_line({"path": str(path), **facts, "page_count": sample.page_count})
        else:
            echo(one_line(str(path)))


def generate_documents(
    count: Annotated[
        int, typer.Argument(min=1, max=50, metavar="COUNT", help="Number of documents.")
    ] = 5,
    seed: SeedOption = 0,
    kind: KindOption = None,
    language: LanguageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate sample documents and send them through the pipeline; prints the job id.

    `jobctl jobs show JOB` lists the documents. For kinds and languages see
    `jobctl samples generate --help`.
    """
    with api_client() as client:
        samples = client.generate_documents(count, seed=seed, kinds=kind, languages=language)
    if as_json:
        print_json(samples)
        return
    if samples.documents is None:
        echo(samples.job_id)
        return
    for document in samples.documents:
        echo(f"{document.document_id}  {one_line(document.filename)}")
    say(f"made by job {samples.job_id}")
