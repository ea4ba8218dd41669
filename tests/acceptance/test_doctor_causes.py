"""More real outages, of broker and PostgreSQL: the doctor names each, and its remedy ends it."""

import os
import re
import socket
import sqlite3
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.ledger import upgrade
from tests.acceptance.conftest import JOBS_MODULE, CommandLine
from tests.acceptance.doctor import commands, findings, until_found, until_gone
from tests.support.brokers import TestBroker
from tests.support.certificates import make_certificates
from tests.support.cluster import LocalCluster
from tests.support.management import Management
from tests.support.postgres import PostgresServer
from tests.support.postgres_standby import running_pair, url_of
from tests.support.small_disk import fill, mounted


@pytest.mark.long
def test_a_job_that_blocks_its_worker_is_found(jobctl: CommandLine, tmp_path: Path) -> None:
    jobctl.environment["JOBS_MODULES"] = f"{JOBS_MODULE},tests.acceptance.blocking_jobs"
    jobctl.ok("topology", "apply")
    with jobctl.worker() as blocked:
        job_id = jobctl.publish("hot.blocking", mark=str(tmp_path / "mark"))
        jobctl.until_state(job_id, "running")
        with closing(sqlite3.connect(jobctl.ledger_file)) as database, database:
            database.execute("UPDATE jobs SET started_at = started_at - 60")
        check = findings(jobctl)["job-overdue"]
        assert f"blocking {job_id} on" in check["detail"]
        (kill,) = commands(check, "kill")
        assert kill == ["kill", "-9", str(blocked.pid)]
        subprocess.run(kill, check=True)
        blocked.wait()
    with jobctl.worker():  # "and start it again: another takes the job over"
        jobctl.until_state(job_id, "succeeded")
    until_gone(jobctl, "job-overdue")


def use_node(jobctl: CommandLine, node: LocalNode) -> Management:
    """Let the command line use that node, and declare the topology on it."""
    jobctl.environment |= {
        "JOBS_AMQP_URL": node.amqp_url,
        "JOBS_MANAGEMENT_URL": node.management_url,
    }
    jobctl.ok("topology", "apply")
    return Management(node.management_url, "/")


PERMIT_DEPRECATED = {"deprecated_features.permit.transient_nonexcl_queues": "true"}
SOME_FLAGS = (
    "[{rabbit, [{forced_feature_flags_on_init, [quorum_queue, stream_queue, user_limits, "
    "implicit_default_bindings, virtual_host_metadata, maintenance_mode_status]}]}]."
)


@pytest.mark.long
async def test_disabled_flags_and_nearly_reached_watermarks_of_a_node_are_found(
    jobctl: CommandLine, own_node: Callable[..., LocalNode]
) -> None:
    """The node is the same for all three, as it takes seconds to start."""
    node = own_node(advanced=SOME_FLAGS)
    management = use_node(jobctl, node)
    checks = findings(jobctl)
    assert not {"memory-high", "broker-disk-low"} & checks.keys()
    flags = checks["flags-disabled"]
    assert "drop_unroutable_metric; empty_basic_get_metric" in flags["detail"]
    ((_, *enable),) = commands(flags, "rabbitmqctl")
    node.rabbitmqctl(*enable)
    until_gone(jobctl, "flags-disabled")

    (node_state,) = await management.get("/nodes")
    node.rabbitmqctl(
        "set_vm_memory_high_watermark", "absolute", str(int(node_state["mem_used"] / 0.88))
    )
    node.rabbitmqctl("set_disk_free_limit", str(int(node_state["disk_free"] / 1.5)))
    memory = until_found(jobctl, "memory-high")["memory-high"]
    disk = until_found(jobctl, "broker-disk-low")["broker-disk-low"]
    for check, word in ((memory, "set_vm_memory"), (disk, "set_disk_free")):
        assert check["status"] == "warning"
        node.rabbitmqctl(
            *next(command[1:] for command in commands(check, "rabbitmqctl") if word in str(command))
        )
    until_gone(jobctl, "memory-high", "broker-disk-low")


@pytest.mark.long
async def test_a_used_feature_that_the_next_release_refuses_is_found(
    jobctl: CommandLine, own_node: Callable[..., LocalNode]
) -> None:
    node = own_node("4.3", extra_config=PERMIT_DEPRECATED)
    management = use_node(jobctl, node)
    assert "deprecated-used" not in findings(jobctl), "Switchyard uses a deprecated feature"
    body = {"durable": False, "auto_delete": False, "arguments": {}}
    await management.put("/queues/{vhost}/transient", body)
    check = until_found(jobctl, "deprecated-used")["deprecated-used"]
    assert "transient_nonexcl_queues" in check["detail"]
    ((_, *list_command),) = commands(check, "rabbitmqctl")
    assert "transient" in node.rabbitmqctl(*(word.replace("VHOST", "/") for word in list_command))
    await management.delete("/queues/{vhost}/transient")
    until_gone(jobctl, "deprecated-used")


@pytest.mark.long
def test_a_stopped_node_of_a_cluster_is_found(jobctl: CommandLine, cluster: LocalCluster) -> None:
    jobctl.environment |= {
        "JOBS_AMQP_URL": cluster.amqp_url(),
        "JOBS_MANAGEMENT_URL": cluster.management_url,
        "JOBS_PROFILE": "quorum",
    }
    jobctl.ok("topology", "apply")
    stopped_node = cluster.nodes[-1]
    stopped_node.rabbitmqctl("stop_app")
    checks = until_found(jobctl, "node-down")
    ((_, *start),) = commands(checks["node-down"], "rabbitmqctl")
    assert start[-1] == "start_app"
    stopped_node.rabbitmqctl(*start)
    until_gone(jobctl, "node-down")


@pytest.mark.long
def test_a_consumer_timeout_that_is_too_short_is_found(
    jobctl: CommandLine, broker43_quorum: TestBroker
) -> None:
    jobctl.environment |= {
        "JOBS_AMQP_URL": broker43_quorum.amqp_url,
        "JOBS_MANAGEMENT_URL": broker43_quorum.management_url,
        "JOBS_PROFILE": "quorum",
    }
    jobctl.ok("topology", "apply")
    node, vhost = broker43_quorum.node, broker43_quorum.vhost

    def set_timeout(milliseconds: str) -> None:
        definition = f'{{"consumer-timeout": {milliseconds}}}'
        options = ("--priority", "20", "--apply-to", "queues")
        node.rabbitmqctl(
            "set_policy", "-p", vhost, "patience", r"^hot\.tester$", definition, *options
        )

    set_timeout("2000")
    checks = until_found(jobctl, "consumer-timeout")
    check = checks["consumer-timeout"]
    assert "is 2 s on hot.tester: it would run twice" in check["detail"]
    advised = re.search(r"in that policy to (\d+) \(milliseconds\)", check["remedy"])
    assert advised, check
    set_timeout(advised[1])
    until_gone(jobctl, "consumer-timeout")


async def test_a_wrong_password_of_the_ledger_is_found(
    jobctl: CommandLine, postgres_server: PostgresServer
) -> None:
    correct_url = postgres_server.create_ledger()
    jobctl.environment["JOBS_DATABASE_URL"] = correct_url.replace(postgres_server.password, "wrong")
    check = findings(jobctl)["ledger-refuses"]
    assert "JOBS_DATABASE_URL" in check["remedy"]
    assert "wrong" not in check["detail"]
    jobctl.environment["JOBS_DATABASE_URL"] = correct_url
    assert "ledger-refuses" not in findings(jobctl)


def run_commands(server: PostgresServer, database: str, *printed: Sequence[str]) -> None:
    """Run commands as printed, with the variables of a login to that database."""
    login = {"PGPASSWORD": server.password, "PGHOST": "127.0.0.1", "PGUSER": "test"}
    address = {"PGPORT": str(server.port), "PGDATABASE": database}
    for command in printed:
        subprocess.run(command, env=os.environ | login | address, check=True)


async def test_a_database_server_without_free_connections_is_found(
    jobctl: CommandLine, postgres_server: PostgresServer
) -> None:
    owner = postgres_server.create_ledger()
    name = owner.rpartition("/")[2]
    postgres_server.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'it' CONNECTION LIMIT 0")
    address = owner.partition("@")[2]
    jobctl.environment["JOBS_DATABASE_URL"] = f"postgresql+asyncpg://{name}:it@{address}"
    check = findings(jobctl)["ledger-crowded"]
    assert "too many connections" in check["detail"]
    (list_command,) = commands(check, "psql")
    run_commands(postgres_server, "postgres", list_command)
    postgres_server.execute(f"ALTER ROLE {name} CONNECTION LIMIT -1")
    assert "ledger-crowded" not in findings(jobctl)


async def test_a_read_only_database_is_found(
    jobctl: CommandLine, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_ledger()
    name = url.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    jobctl.environment["JOBS_DATABASE_URL"] = url
    check = findings(jobctl)["ledger-read-only"]
    show_command, mend_command = commands(check, "psql")
    run_commands(postgres_server, name, show_command, mend_command)
    assert "ledger-read-only" not in findings(jobctl)


async def test_a_deleted_vhost_is_found(jobctl: CommandLine, broker310: TestBroker) -> None:
    missing_vhost = f"{broker310.vhost}-gone"
    jobctl.environment["JOBS_AMQP_URL"] = broker310.node.amqp_url_of(missing_vhost)
    check = findings(jobctl)["broker-refuses"]
    _, *mend_commands = commands(check, "rabbitmqctl")
    assert [command[1] for command in mend_commands] == ["add_vhost", "set_permissions"]
    try:
        for _, *command in mend_commands:
            broker310.node.rabbitmqctl(*command)
        assert "broker-refuses" not in findings(jobctl)
    finally:
        await Management(broker310.management_url, missing_vhost).delete("/vhosts/{vhost}")


async def test_a_reached_connection_limit_is_found_and_a_worker_waits(
    jobctl: CommandLine, broker310: TestBroker
) -> None:
    rabbitmqctl = broker310.node.rabbitmqctl
    await broker310.management.put("/vhost-limits/{vhost}/max-connections", {"value": 0})
    checks = findings(jobctl)
    assert "broker-refuses" not in checks
    assert "connection limit (0) is reached" in checks["broker-limit"]["detail"]
    show_command, raise_limit = commands(checks["broker-limit"], "rabbitmqctl")
    rabbitmqctl(*show_command[1:])
    with jobctl.started("worker", "tester") as worker:
        waiting_line = "waiting for the broker"
        while waiting_line not in jobctl.log_of("worker"):
            assert worker.poll() is None, jobctl.log_of("worker")
        rabbitmqctl(*(word.replace("NUMBER", "50") for word in raise_limit[1:]))
        jobctl.ok("publish", "hot.work", "--payload", "{}", "--wait")
    assert "broker-limit" not in findings(jobctl)


def test_a_silent_broker_is_found(jobctl: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        jobctl.environment["JOBS_AMQP_URL"] = f"amqp://guest:guest@127.0.0.1:{port}/"
        check = findings(jobctl)["broker-away"]
    assert "no answer in time" in check["detail"]
    assert "frozen" in check["remedy"]


def test_a_certificate_of_an_unknown_authority_is_found(
    jobctl: CommandLine, tmp_path: Path
) -> None:
    theirs, ours = make_certificates(tmp_path / "theirs"), make_certificates(tmp_path / "ours")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(theirs.certificate, theirs.key)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        context.wrap_socket(listener, server_side=True, do_handshake_on_connect=True) as server,
        ThreadPoolExecutor(1) as executor,
    ):
        refusals = executor.submit(count_refusals, server)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        jobctl.environment["JOBS_AMQP_URL"] = f"amqps://a:b@{address}/?cafile={ours.authority}"
        check = findings(jobctl)["broker-away"]
        server.shutdown(socket.SHUT_RDWR)
        assert refusals.result() >= 1
    assert "certificate verify failed" in check["detail"]
    assert check["remedy"].startswith("renew the server's certificate")


def count_refusals(server: ssl.SSLSocket) -> int:
    """Accept TLS connections until the server is shut down; return how many clients refused it."""
    refusals = 0
    while True:
        try:
            server.accept()
        except ssl.SSLError:
            refusals += 1
        except OSError:
            return refusals


async def test_a_frozen_database_server_is_found(
    jobctl: CommandLine, postgres_server: PostgresServer
) -> None:
    url = postgres_server.create_ledger()
    jobctl.environment["JOBS_DATABASE_URL"] = url
    postgres_server.pause()
    try:
        check = findings(jobctl)["ledger-locked"]
    finally:
        postgres_server.resume()
    assert "does not answer" in check["detail"]
    assert "frozen or cut off" in check["remedy"]
    assert "ledger-locked" not in findings(jobctl)


@pytest.mark.long
async def test_a_dead_primary_of_a_pair_of_database_servers_is_found(jobctl: CommandLine) -> None:
    with running_pair() as pair:
        primary, standby = pair
        await upgrade(url_of(pair))
        jobctl.environment["JOBS_DATABASE_URL"] = url_of(pair)
        primary.stop()
        (promote,) = commands(findings(jobctl)["ledger-away"], "psql")
        login = {"PGPASSWORD": standby.password, "PGHOST": "127.0.0.1", "PGUSER": "test"}
        address = {"PGPORT": str(standby.port), "PGDATABASE": "postgres"}
        subprocess.run(promote, env=os.environ | login | address, check=True)
        until_gone(jobctl, "ledger-away")


@pytest.fixture
def tablespace(postgres_server: PostgresServer) -> Iterator[Path]:
    """A small disk that holds the tablespace `small` of the server."""
    with TemporaryDirectory(prefix="switchyard-tablespace-") as directory:
        Path(directory).chmod(0o755)  # the server has a user of its own
        with mounted(Path(directory) / "disk") as disk:
            (disk / "tables").mkdir()
            if (user := postgres_server.system_user) is not None:
                subprocess.run(["chown", user, disk / "tables"], check=True)
            postgres_server.execute(f"CREATE TABLESPACE small LOCATION '{disk / 'tables'}'")
            yield disk


async def test_a_full_disk_of_the_database_server_is_found(
    jobctl: CommandLine, postgres_server: PostgresServer, tablespace: Path
) -> None:
    url = postgres_server.create_ledger()
    name = url.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET TABLESPACE small")
    jobctl.environment["JOBS_DATABASE_URL"] = url
    jobctl.ok("topology", "apply")
    assert not {"disk-full", "ledger-away"} & findings(jobctl).keys()
    large = fill(tablespace)
    checks = findings(jobctl)
    assert "could not" in checks["disk-full"]["detail"], checks
    assert "No space left on device" in checks["disk-full"]["detail"]
    login = {"PGPASSWORD": postgres_server.password, "PGHOST": "127.0.0.1", "PGUSER": "test"}
    address = {"PGPORT": str(postgres_server.port), "PGDATABASE": "postgres"}
    outputs = [
        subprocess.run(
            command, env=os.environ | login | address, check=True, capture_output=True, text=True
        ).stdout
        for command in commands(checks["disk-full"], "psql")
    ]
    assert str(tablespace / "tables") in outputs[0]
    large.unlink()
    until_gone(jobctl, "disk-full")
