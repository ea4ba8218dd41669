"""Processes of `jobctl up` and `demo`, forked from one that has loaded the shared modules."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

PROGRAM_START = """
import fcntl, json, os, signal, socket, sys, time
from pathlib import Path
from switchyard.cli.system import spawner as module
from switchyard.cli.system.supervisor import Supervisor
module.load_shared_modules = lambda **_: None  # which takes two seconds, and is tested by itself
folder = Path(sys.argv[1])
environment = {"PATH": os.environ["PATH"], "JOBS_DATA_DIR": str(folder), "TERM": "dumb"}

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)

lock = (folder / "lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
spawner = module.Spawner.fork()
waiting = socket.create_server(("127.0.0.1", 0))  # takes connections, and answers nothing
unheard = dict(environment, JOBS_AMQP_URL=f"amqp://127.0.0.1:{waiting.getsockname()[1]}/")
"""


def run_program(folder: Path, program: str) -> Any:
    """Return the JSON that a program prints after PROGRAM_START, which makes a `spawner`."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM_START + program, str(folder)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_forked_command_has_its_own_environment_log_group_and_exit_code(tmp_path: Path) -> None:
    printed = run_program(
        tmp_path,
        """
child = spawner.start(("no-such-command",), dict(environment, COLUMNS="200"), folder / "log")
group = os.getpgid(child.pid) == child.pid != os.getpgid(0)
code = child.wait(60)
other = spawner.start(("worker", "ingest"), environment, folder / "log")
print(json.dumps([group, code, child.poll(), other.wait(60), (folder / "log").read_text()]))
""",
    )
    group, code, polled_code, without_broker, log = printed
    assert group
    assert code == polled_code == 2
    assert "No such command 'no-such-command'" in log
    assert without_broker != 0
    assert "no broker: set JOBS_AMQP_URL" in log


def test_polling_a_running_command_sends_the_spawner_no_request(tmp_path: Path) -> None:
    code_while_it_runs, requests, code = run_program(
        tmp_path,
        """
child = spawner.start(("worker", "ingest"), unheard, folder / "log")
requests, ask = [], spawner._ask
spawner._ask = lambda request: requests.append(request) or ask(request)
found = child.poll()
asked = len(requests)
os.kill(child.pid, signal.SIGKILL)
print(json.dumps([found, asked, child.wait(60)]))
""",
    )
    assert code_while_it_runs is None
    assert requests == 0
    assert code == -9


def test_ps_shows_the_command_that_a_fork_runs(tmp_path: Path) -> None:
    arguments = run_program(
        tmp_path,
        """
child = spawner.start(("worker", "ingest"), unheard, folder / "log")
shown = Path(f"/proc/{child.pid}/cmdline")
until(lambda: b"spawner" not in shown.read_bytes())
print(json.dumps(shown.read_bytes().rstrip(b"\\0").decode().split("\\0")))
os.killpg(child.pid, signal.SIGKILL)
""",
    )
    assert arguments == ["jobctl", "worker", "ingest"]


def test_a_killed_process_is_restarted_and_others_go_on(tmp_path: Path) -> None:
    printed = run_program(
        tmp_path,
        """
supervisor = Supervisor(folder, unheard, spawner)
supervisor.start("one", "worker", "ingest")
supervisor.start("two", "worker", "llm")
one, two = supervisor.children
first = one.process.pid
one.process.send_signal(signal.SIGKILL)
until(supervisor.newly_dead)
news = supervisor.restart_dead()
one.restart_at = time.monotonic()
news += supervisor.restart_dead()
print(json.dumps([news, two.process.poll(), one.process.pid != first, one.process.poll()]))
supervisor.stop(0)
""",
    )
    news, code_of_other, is_new, code_after_restart = printed
    assert "one ended (SIGKILL)" in news[0]
    assert news[1] == "one runs again"
    assert code_of_other is None
    assert is_new
    assert code_after_restart is None


def test_after_the_spawner_died_its_children_go_on_and_others_can_be_started(
    tmp_path: Path,
) -> None:
    printed = run_program(
        tmp_path,
        """
supervisor = Supervisor(folder, unheard, spawner)
supervisor.start("one", "worker", "ingest")
(one,) = supervisor.children
os.kill(spawner.pid, signal.SIGKILL)
before = one.process.poll()
supervisor.start("two", "--help")
two = supervisor.children[1]
code = two.process.wait(60)
one.process.send_signal(signal.SIGTERM)
os.kill(one.process.pid, signal.SIGKILL)
until(lambda: one in supervisor.newly_dead())
print(json.dumps([before, code, "Usage: jobctl" in two.log.read_text()]))
supervisor.stop(0)
""",
    )
    assert printed == [None, 0, True]


def test_the_spawner_holds_no_lock_of_its_parent_and_ends_with_it(tmp_path: Path) -> None:
    pid = run_program(
        tmp_path,
        """
lock.close()
with (folder / "lock").open("w") as other:
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError
print(spawner.pid)
""",
    )
    while Path(
        f"/proc/{pid}"
    ).exists():  # it ends after the program did; the test's time limit bounds the loop
        pass


def test_nothing_is_forked_from_a_process_with_threads(tmp_path: Path) -> None:
    assert (
        run_program(
            tmp_path,
            """
import threading
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
print(json.dumps(module.Spawner.fork()))
end.set()
""",
        )
        is None
    )


SHARED_MODULES_PROGRAM = """
import json, os, sys
from switchyard.cli.system.spawner import load_shared_modules
load_shared_modules(postgres=bool(sys.argv[1]), api=bool(sys.argv[2]))
from switchyard.services.engine.jobs.registered_types import _schema_of
schemas = _schema_of.cache_info().currsize
threads = len(os.listdir("/proc/self/task"))
from switchyard.cli.main import shared_commands
worker = shared_commands().commands["worker"].loaded
read = {each.name for each in worker.params if each._runtime_param is not None}
print(json.dumps([sorted(sys.modules), threads, schemas, sorted(read)]))
"""


def test_work_in_a_fork_runs_in_another_process_and_raises_its_errors(tmp_path: Path) -> None:
    is_apart, runs, error = run_program(
        tmp_path,
        """
from switchyard.cli.system.local_system import run_in_fork
ran = folder / "ran"

async def work(error=None):
    with ran.open("a") as file:
        file.write(f"{os.getpid()} ")
    if error:
        raise error

run_in_fork(work)
is_apart = ran.read_text().split() != [str(os.getpid())]
try:
    run_in_fork(lambda: work(ValueError("the ledger is of another version")))
except ValueError as error:
    print(json.dumps([is_apart, len(ran.read_text().split()), str(error)]))
""",
    )
    assert is_apart
    assert runs == 3  # a failed call is repeated in this process, where its error is raised
    assert error == "the ledger is of another version"


@pytest.mark.parametrize(("ledger", "api"), [("", "api"), ("postgresql", "")])
def test_shared_modules_start_no_thread_and_load_no_heavy_library(ledger: str, api: str) -> None:
    """A process with threads can't be forked safely."""
    result = subprocess.run(
        [sys.executable, "-c", SHARED_MODULES_PROGRAM, ledger, api],
        capture_output=True,
        text=True,
        check=True,
    )
    modules, threads, schemas, options = json.loads(result.stdout)
    assert threads == 1
    heavy = {"lancedb", "numpy", "pyarrow", "openai", "pymupdf", "rich", "pygments", "trio"}
    assert not heavy.intersection(modules)
    postgresql_modules = {"asyncpg", "sqlalchemy.ext.asyncio", "sqlalchemy.orm"}
    assert postgresql_modules.intersection(modules) == (postgresql_modules if ledger else set())
    assert {
        "switchyard.services.engine.runtime.worker",
        "switchyard.services.engine.scheduler.scheduler",
        "switchyard.services.pipeline.workers.stages",
        # Modules that every process would load with its first use of the ledger, or for a duty.
        "switchyard.services.llm.ledger.llm_tables",
        "switchyard.services.pipeline.ledger.graph_writes",
        "switchyard.services.pipeline.operations",
        "switchyard.services.pipeline.sources.backfill_stored",
    } <= set(modules)
    api_modules = {"fastapi", "switchyard.api.server"}
    assert api_modules.intersection(modules) == (api_modules if api else set())
    assert schemas > 20  # of the built-in job types
    assert {"kinds", "concurrency"} <= set(options)  # otherwise each process would compute them
