"""A process loads libraries for its first job or request off its event loop (loop_guard).

Each process runs in an interpreter of its own, as for users. In other tests processes are forks of
one that has loaded most libraries (commands.py).
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from switchyard.services.pipeline.samples.articles import sample
from tests.acceptance.conftest import CommandLine
from tests.acceptance.doctor import MAX_WAIT
from tests.support.eventually import eventually
from tests.support.llm_server import DIMENSIONS, FakeLlmServer

GUARDED_JOBCTL = [sys.executable, "-m", "tests.support.loop_guard"]
"""`jobctl` in a process that fails when its event loop is blocked."""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("embedder", ["wordllama", "of a server"])
async def test_the_first_document_of_new_processes_blocks_no_event_loop(
    jobctl: CommandLine, tmp_path: Path, unused_tcp_port: int, embedder: str
) -> None:
    paper = tmp_path / "paper.pdf"
    paper.write_bytes(sample(0).content)
    port = str(unused_tcp_port)
    jobctl.environment["JOBS_API_URL"] = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        model_server = stack.enter_context(FakeLlmServer())
        jobctl.environment["JOBS_LLM_BASE_URL"] = model_server.url
        if embedder == "of a server":
            jobctl.environment |= {
                "JOBS_EMBED_BASE_URL": model_server.url,
                "JOBS_EMBED_DIMENSIONS": str(DIMENSIONS),
            }
        for command in (["worker", "all"], ["api", "--port", port], ["scheduler"]):
            stack.enter_context(jobctl._launched([*GUARDED_JOBCTL, *command], command[0]))
        upload = ["documents", "upload", str(paper), "--wait"]
        await eventually(lambda: jobctl.run(*upload).returncode == 0, MAX_WAIT)
        (document,) = jobctl.json("documents", "list")
        page = jobctl.ok("documents", "page", document["document_id"], "1").split()
        (first_hit, *_) = jobctl.json("search", " ".join(page[:8]))
        assert first_hit["document_id"] == document["document_id"]
