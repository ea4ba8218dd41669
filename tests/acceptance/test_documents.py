"""`jobctl documents` and `jobctl search`, which use the HTTP API."""

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.cli.pipeline.search import ModeName
from switchyard.services.common.settings import Settings
from switchyard.services.pipeline.index.search_modes import SearchMode
from switchyard.services.pipeline.samples.articles import sample
from tests.acceptance.conftest import CommandLine, clean_environment
from tests.support.api_server import serving
from tests.support.ledgers import make_ledger

KEY = "a-key-of-the-settings-alone"


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[CommandLine]:
    """A command line that knows only the address of an API without a broker."""
    settings = Settings(amqp_url=None, data_dir=tmp_path / "data", api_keys=SecretStr(KEY))
    await make_ledger(settings.ledger_url)
    async with serving(settings) as api:
        yield CommandLine(clean_environment(api_url=api.url, api_key=KEY), tmp_path)


@pytest.fixture
async def jobctl_without_workers(jobctl: CommandLine) -> AsyncIterator[CommandLine]:
    """A command line with an API but no workers, so that documents wait."""
    async with serving(Settings()) as api:
        jobctl.environment["JOBS_API_URL"] = api.url
        yield jobctl


@pytest.fixture
def papers(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"paper-{n}.pdf" for n in range(2)]
    for n, path in enumerate(paths):
        path.write_bytes(sample(n).content)
    return [str(path) for path in paths]


def test_documents_are_sent_shown_and_found(shell: CommandLine, papers: list[str]) -> None:
    first_id, first_path, second_id, second_path = shell.ok("documents", "upload", *papers).split()
    assert [first_path, second_path] == papers
    details = shell.json("documents", "show", first_id)
    assert (details["state"], details["filename"]) == ("completed", "paper-0.pdf")
    assert "completed" in shell.ok("documents", "show", first_id)
    assert {document["document_id"] for document in shell.json("documents", "list")} == {
        first_id,
        second_id,
    }
    assert first_id in shell.ok("documents", "list")
    newest = shell.run("documents", "list", "--limit", "1")
    assert second_id in newest.stdout
    assert first_id not in newest.stdout
    assert "more with --limit" in newest.stderr
    assert shell.json("documents", "list", "--state", "failed") == []
    assert shell.ok("documents", "wait", first_id).split() == [first_id, "completed"]
    result = shell.json("documents", "result", first_id, "--text")
    for text in (
        result["title"],
        result["summary"]["summary"].split()[0],
        result["pages"][0]["text"],
    ):
        assert text in shell.ok("documents", "result", first_id, "--text")
    bibliography = shell.ok("documents", "bibliography", papers[0], "--format", "csl")
    assert json.loads(bibliography) == []
    assert "0 references" in shell.run("documents", "bibliography", papers[0]).stderr
    page = shell.ok("documents", "page", first_id, "1")
    assert page.strip() == result["pages"][0]["text"]
    words = " ".join(result["pages"][0]["text"].split()[:8])
    hits = shell.json("search", words, "--mode", "keyword", "--document", first_id, "--limit", "2")
    assert {hit["document_id"] for hit in hits} == {first_id}
    assert result["title"] in shell.ok("search", words)
    assert "Nothing found" in shell.run("search", words, "--source", "elsewhere").stderr


def test_the_output_names_a_document_that_is_known_already(
    shell: CommandLine, papers: list[str]
) -> None:
    first_output = shell.ok("documents", "upload", papers[0], "--source", "s", "--title", "Mine")
    second_upload = shell.run("documents", "upload", papers[0], "--wait", "--json")
    assert json.loads(second_upload.stdout)["duplicate"] is False  # as the document itself has it
    upload_output = shell.run("documents", "upload", papers[0])
    assert (upload_output.returncode, upload_output.stdout) == (0, first_output)
    assert "known already" in upload_output.stderr
    assert shell.json("documents", "list", "--source", "s")[0]["title"] == "Mine"


def test_a_refused_file_does_not_hold_up_the_others(
    shell: CommandLine, papers: list[str], tmp_path: Path
) -> None:
    picture = tmp_path / "picture.pdf"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    completed = shell.run(
        "documents", "upload", str(picture), str(tmp_path / "none.pdf"), papers[0]
    )
    assert completed.returncode == 1
    assert completed.stdout.split()[1:] == [papers[0]]
    assert f"{picture}: The content is not supported" in completed.stderr
    assert f"can't read '{tmp_path / 'none.pdf'}': there is no such file" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_a_pipe_is_refused_in_a_line(shell: CommandLine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = shell.run("documents", "upload", str(pipe))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"can't read '{pipe}': a pipe can't be sent: save it to a file first\n"


def test_an_unknown_document_is_not_classified(shell: CommandLine) -> None:
    refused = shell.run("documents", "classify", "nonsense")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "nonsense" in refused.stderr


def test_the_text_of_a_file_is_printed_and_nothing_is_stored(
    shell: CommandLine, tmp_path: Path
) -> None:
    note = tmp_path / "note.md"
    note.write_text("# A note\n\nThe tide rises, the tide falls.\n")
    assert "The tide rises, the tide falls." in shell.ok("documents", "text", str(note))
    assert shell.json("documents", "text", str(note))["page_count"] == 1
    assert shell.json("documents", "list") == []
    assert "there is no such file" in shell.fails("documents", "text", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("command", "instead"), [("text", "page {} 1"), ("bibliography", "references {}")]
)
def test_the_error_for_an_id_in_place_of_a_file_names_the_command_for_ids(
    shell: CommandLine, command: str, instead: str
) -> None:
    document_id = "0b0f6c1e-6a5e-4a0e-9a39-6a1f3b1f8f11"
    error_text = shell.fails("documents", command, document_id, code=2)
    assert f"`jobctl documents {instead.format(document_id)}`" in error_text


def test_an_error_is_one_line_that_says_what_to_do(shell: CommandLine, papers: list[str]) -> None:
    assert "there is no document none" in shell.fails("documents", "show", "none")
    assert "JOBS_API_KEY" in shell.fails("documents", "list", JOBS_API_KEY="wrong")
    unsendable = shell.fails("documents", "list", code=2, JOBS_API_KEY="sec\nret")
    assert "JOBS_API_KEY" in unsendable
    assert "ret:" not in unsendable
    assert "UTF-8" in shell.fails("search", "tide \udcff", code=2)
    error_line = shell.fails("search", "tide", JOBS_API_URL="http://127.0.0.1:9")
    assert "127.0.0.1:9 can't be reached" in error_line
    assert "jobctl api" in error_line
    upload_both = ("documents", "upload", *papers, "--title", "Both")
    assert "send one file" in shell.fails(*upload_both, code=2)
    assert "--wait" in shell.fails("documents", "upload", papers[0], "--timeout", "1s", code=2)
    assert "JOBS_API_URL" in shell.fails("documents", "list", code=2, JOBS_API_URL="localhost")


def test_wait_ends_when_the_document_has_ended_or_at_its_timeout(
    jobctl_without_workers: CommandLine, papers: list[str]
) -> None:
    document_id = jobctl_without_workers.ok(
        "documents", "upload", papers[0], "--lane", "backfill"
    ).split()[0]
    began = time.monotonic()
    assert "within 0.3 s" in jobctl_without_workers.fails(
        "documents", "wait", document_id, "--timeout", "300ms"
    )
    assert time.monotonic() - began < 10
    job_id = jobctl_without_workers.json("documents", "show", document_id)["job_id"]
    jobctl_without_workers.ok("jobs", "cancel", job_id)
    wait_output = jobctl_without_workers.run("documents", "wait", document_id)
    assert (wait_output.returncode, wait_output.stdout.split()) == (1, [document_id, "failed"])
    assert "cancelled" in wait_output.stderr
    assert job_id in jobctl_without_workers.ok("documents", "show", document_id)


def test_modes_of_the_command_line_are_those_of_the_search() -> None:
    assert {mode.value for mode in ModeName} == {mode.value for mode in SearchMode}
