"""`jobctl demo` and `jobctl up` start a whole system and leave nothing behind."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.acceptance.conftest import JOBCTL, CommandLine, clean_environment
from tests.support.brokers import TestBroker

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
DEMO_TIMEOUT = 170
"""Seconds that the demo may take on a busy machine."""


@pytest.fixture
def environment(broker310: TestBroker, tmp_path: Path) -> dict[str, str]:
    """Variables of a shell that knows a broker, in an empty directory."""
    return clean_environment(
        amqp_url=broker310.amqp_url, management_url=broker310.management_url
    ) | {"TMPDIR": str(tmp_path), "SWITCHYARD_TEST_RUN": str(tmp_path)}


def processes_of(tmp_path: Path) -> list[int]:
    """Return the ids of running processes that have this test's environment."""
    mark = f"SWITCHYARD_TEST_RUN={tmp_path}".encode()
    process_ids = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (directory / "environ").read_bytes():
                process_ids.append(int(directory.name))
        except OSError:
            continue  # it has ended meanwhile
    return process_ids


def run_demo(
    environment: dict[str, str], tmp_path: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(JOBCTL), "demo", *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT,
        check=False,
    )


def test_the_demo_runs_all_its_steps_and_leaves_nothing(
    environment: dict[str, str], tmp_path: Path, broker310: TestBroker
) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [str(JOBCTL), "demo", "--keep"], env=environment, cwd=tmp_path, stdout=out, stderr=out
        )
    try:
        output = wait_for_output(
            process, tmp_path / "out", "Ctrl-C stops everything.", DEMO_TIMEOUT
        )
        assert "Virtual host: switchyard-demo" in output
        assert output.count(" done ") >= 8
        progress_counts = re.findall(r"documents done: (\d) of 8", output)
        assert progress_counts == [str(number) for number in range(9)]
        assert re.search(r"job overtook the bulk work: it waited \d+ ms; \d+ earlier job", output)
        assert "demo_flaky failed 2 times" in output
        assert "as `jobctl dead redrive --set payload.parts=4` does: succeeded" in output
        killed = re.search(
            r"worker-llm was killed in the middle of (\d) jobs?; (\d) ran again and succeeded",
            output,
        )
        assert killed is not None, output
        assert killed[1] == killed[2] >= "1"
        accepted = re.search(r"Jobs: (\d+) accepted, (\d+) succeeded, 0 lost", output)
        assert accepted is not None, output
        assert accepted[1] == accepted[2]
        assert "Why the Ocean Has Tides" in output
        assert "Everything is as it should be" in output
        _, _, next_steps = output.partition("Everything is as it should be")
        for address in re.findall(r"http://\S+", next_steps):
            assert httpx.get(address, trust_env=False).is_success, address
        commands = re.findall(r"^  (.*)$", next_steps, re.MULTILINE)
        assert len(commands) == 4
        shell = subprocess.run(
            ["bash", "-euc", "\n".join(line for line in commands if "--watch" not in line)],
            env=environment | {"PATH": f"{JOBCTL.parent}:{os.environ['PATH']}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert shell.returncode == 0, shell.stderr
        assert "demo_strict" in shell.stdout
        assert "Electricity from the Tides" in shell.stdout
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 0, (tmp_path / "out").read_text()
    assert processes_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    vhosts = broker310.node.rabbitmqctl("list_vhosts")
    assert "switchyard-demo" not in vhosts


def wait_for_output(
    process: subprocess.Popen[bytes], out: Path, text: str, timeout: float = 60
) -> str:
    """Wait until a process has printed the text; return all that it has printed."""
    deadline = time.monotonic() + timeout
    while text not in (output := out.read_text()):
        assert process.poll() is None, output
        assert time.monotonic() < deadline, output
        time.sleep(0.05)
    return output


def test_demo_reports_a_damaged_file_and_goes_on_with_the_others(
    environment: dict[str, str], tmp_path: Path
) -> None:
    from switchyard.services.pipeline.samples.articles import sample

    (tmp_path / "good.pdf").write_bytes(sample(0).content)
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.7 and then nothing of the kind")
    completed = run_demo(environment, tmp_path, "good.pdf", "bad.pdf", "missing.pdf")
    assert completed.returncode == 1, completed.stdout + completed.stderr
    rows = {
        line.split()[0]: line.split()[1]
        for line in completed.stdout.splitlines()
        if ".pdf " in line
    }
    assert (rows["good.pdf"], rows["bad.pdf"], rows["missing.pdf"]) == ("done", "failed", "failed")
    assert "2 of 3 documents failed" in completed.stderr
    assert processes_of(tmp_path) == []


def test_interrupted_demo_stops_what_it_started(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [str(JOBCTL), "demo"], env=environment, cwd=tmp_path, stdout=out, stderr=out
        )
    wait_for_output(process, tmp_path / "out", "documents done")
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 130
    assert processes_of(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_up_runs_until_interrupted_and_restarts_killed_processes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [str(JOBCTL), "up", "--api-port", "0", "--scale", "embed=2", "--scale", "ocr=0"],
            env=environment,
            cwd=tmp_path,
            stdout=out,
            stderr=out,
        )

    try:
        wait_for_output(process, tmp_path / "out", "Ctrl-C stops everything.")
        data = tmp_path / ".switchyard"
        logs = {path.name for path in (data / "logs").iterdir()}
        assert {"worker-embed.log", "worker-embed-2.log", "worker-ingest.log"} <= logs
        assert "worker-ocr.log" not in logs
        assert oct((data / "env").stat().st_mode & 0o777) == "0o600"
        exports = dict(
            line.removeprefix("export ").split("=", 1)
            for line in (data / "env").read_text().splitlines()
        )
        shell = CommandLine(
            clean_environment() | {key: value.strip("'") for key, value in exports.items()},
            tmp_path,
        )
        wait_for_output(process, tmp_path / "out", "Ctrl-C stops everything.")
        url = exports["JOBS_API_URL"]
        assert f"API         {url}\n" in (tmp_path / "out").read_text()
        with httpx.Client(base_url=url, trust_env=False) as client:
            assert client.get("/health/ready").json()["status"] == "ok"
        while len(workers := shell.json("workers")) < 4:
            assert process.poll() is None
        llm = next(worker for worker in workers if worker["kinds"] == ["llm"])
        os.kill(llm["pid"], signal.SIGKILL)
        wait_for_output(process, tmp_path / "out", "worker-llm ended (SIGKILL)")
        wait_for_output(process, tmp_path / "out", "worker-llm runs again")
        second_up = subprocess.run(
            [str(JOBCTL), "up", "--api-port", "0"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second_up.returncode == 1
        assert "already" in second_up.stderr
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    output = (tmp_path / "out").read_text()
    assert process.returncode == 0, output
    assert "had to be killed" not in output
    assert processes_of(tmp_path) == []


def test_up_refuses_at_once_an_api_port_that_is_in_use(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        refused = subprocess.run(
            [str(JOBCTL), "up", "--api-port", str(port)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert refused.returncode == 1
    assert f"can't have port {port}" in refused.stderr
    assert "--api-port" in refused.stderr
    assert processes_of(tmp_path) == []
