"""`make test-compose`: the whole system from compose.yml as it stands, in containers.

It starts the system, sends a PDF through every stage, kills a worker's container while jobs run,
checks what Prometheus scrapes, and removes everything. Containers have names and ports of this run.
With --tls it adds compose.tls.yml and tests less: one document, and that plain connections are
refused.

podman 4.3 does not know `depends_on: service_healthy`, and runs health checks by systemd only. So
the services are started here in the order that compose.yml says, and their checks run by hand.
"""

import argparse
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from switchyard.cli.system.free_ports import free_port
from switchyard.services.pipeline.samples.articles import write_samples
from switchyard.services.pipeline.samples.generated_samples import generate

ROOT = Path(__file__).parents[2]
IMAGES = Path(__file__).parent / "images"
COMPOSE = Path(sys.executable).parent / "podman-compose"
LEFT_OUT = {"grafana"}
"""Services that no package of the distribution provides."""
SHIPPED = ("compose.yml", "compose.tls.yml", "Dockerfile", ".dockerignore", "pyproject.toml")
TREES = ("requirements", "src", "deploy", "charts")
CERTIFICATES = ("/etc/ssl/certs", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates")
ENVIRONMENT = os.environ | {"CONTAINERS_CONF": str(IMAGES / "containers.conf")}
DOCUMENTS = 20
OVER_TLS = {
    "postgres": (
        *("psql", "-h", "127.0.0.1", "-U", "switchyard_application", "-d", "switchyard", "-Atc"),
        "SELECT ssl FROM pg_stat_ssl NATURAL JOIN pg_stat_activity WHERE client_port > 0",
    ),
    "rabbitmq": ("rabbitmqctl", "-q", "list_connections", "--no-table-headers", "ssl"),
}
"""By service, the command that prints whether each connection from another container is
encrypted."""
START, WORK = 180.0, 180.0
"""Seconds at most for a start, and for jobs to end."""


def run(*command: str, check: bool = True, quiet: bool = True, **options: Any) -> str:
    result = subprocess.run(
        command,
        env=ENVIRONMENT,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if quiet else None,
        **options,
    )
    if check and result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def await_result(description: str, probe: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        try:
            value = probe()
        except httpx.TransportError:
            value = None
        if value:
            print(f"  {description}", flush=True)
            return value
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:g} s: {description}")
        time.sleep(0.5)


class ComposedSystem:
    """The services of compose.yml under a name of their own."""

    def __init__(self, directory: Path, tls: bool) -> None:
        self.directory = directory
        self.tls = tls
        self.project = f"switchyard-test-{os.getpid()}"
        self.services: dict[str, Any] = yaml.safe_load((directory / "compose.yml").read_text())[
            "services"
        ]

    def compose(self, *arguments: str) -> str:
        files = ("-f", "compose.yml", *(("-f", "compose.tls.yml") if self.tls else ()))
        return run(str(COMPOSE), *files, "-p", self.project, *arguments, cwd=self.directory)

    def start_in_order(self) -> None:
        """Start the services as `depends_on` says: each once those that it needs are healthy, or
        have ended well."""
        waiting = set(self.services) - LEFT_OUT
        started: set[str] = set()
        while waiting:
            startable = {name for name in waiting if self._needs(name) <= started}
            assert startable, f"the services {waiting} wait for each other"
            self.compose("up", "-d", "--no-build", "--no-deps", *sorted(startable))
            for name in sorted(startable):
                for container in self.containers(name):
                    self._await_start(name, container)
            started |= startable
            waiting -= startable

    def _needs(self, name: str) -> set[str]:
        return set(self.services[name].get("depends_on", ()))

    def _await_start(self, name: str, container: str) -> None:
        if self.services[name].get("restart") == "on-failure":
            await_result(f"{container} has done its work", lambda: self._has_done(container), START)
        elif "healthcheck" in self.services[name]:
            await_result(f"{container} is healthy", lambda: self.is_healthy(container), START)

    def _has_done(self, container: str) -> bool:
        state = run(
            "podman", "inspect", container, "--format", "{{.State.Status}} {{.State.ExitCode}}"
        )
        return state.split() == ["exited", "0"]

    def is_healthy(self, container: str) -> bool:
        """Return whether its health check passes now."""
        command = ("podman", "healthcheck", "run", container)
        result = subprocess.run(command, env=ENVIRONMENT, check=False, capture_output=True)
        return result.returncode == 0

    def containers(self, service: str) -> list[str]:
        label = f"label=com.docker.compose.service={service}"
        project_label = f"label=com.docker.compose.project={self.project}"
        out = run(
            "podman",
            "ps",
            "-a",
            "--filter",
            label,
            "--filter",
            project_label,
            "--format",
            "{{.Names}}",
        )
        return sorted(out.split())

    def jobctl(self, *arguments: str) -> str:
        """Run a command in a container, and return its output. Ends the run where it fails."""
        (container, *_) = self.containers("scheduler")
        return run("podman", "exec", container, "jobctl", *arguments)


@contextmanager
def composed(tls: bool) -> Iterator[tuple[ComposedSystem, dict[str, str]]]:
    """Prepare what compose.yml needs, in a directory of its own; take it all down at the end."""
    with tempfile.TemporaryDirectory(prefix="switchyard-compose-") as name:
        directory = Path(name)
        for each in SHIPPED:
            shutil.copy(ROOT / each, directory / each)
        for tree in TREES:
            shutil.copytree(ROOT / tree, directory / tree)
        run(str(directory / "deploy" / "make_env.sh"))
        ports = {f"{each}_PORT": str(free_port()) for each in ("API", "RABBITMQ", "PROMETHEUS")}
        with (directory / ".env").open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in ports.items())
        lines = (directory / ".env").read_text().splitlines()
        system = ComposedSystem(directory, tls)
        if tls:
            make_certificates(system)
        try:
            yield system, dict(line.split("=", 1) for line in lines)
        finally:
            print("Taking it down …", flush=True)
            system.compose("down", "-v", "-t", "20")
            left = run("podman", "ps", "-aq", "--filter", f"name={system.project}_").split()
            assert not left, f"left behind: {left}"


def make_certificates(system: ComposedSystem) -> None:
    """Make certificates as docs/deploy.md says; but in the images that are made here the users have
    other ids."""
    run(str(system.directory / "deploy" / "make_certificates.sh"))
    for name in ("rabbitmq", "postgres"):
        image = system.services[name]["image"]
        user = run("podman", "run", "--rm", "--entrypoint", "id", image, "-u", name)
        os.chown(system.directory / ".secrets" / "tls" / f"{name}.key", int(user), -1)


def build(system: ComposedSystem) -> None:
    """Build the image of the Dockerfile, with the certificates by which this machine reaches
    PyPI."""
    mounts = [f"--volume={path}:{path}:ro" for path in CERTIFICATES if Path(path).is_dir()]
    arguments = " ".join(["--network=host", *mounts])
    system.compose(f"--podman-build-args={arguments}", "build", "users")


def send(api: httpx.Client, pdf: Path) -> str:
    with pdf.open("rb") as file:
        answer = api.post("/documents", files={"file": (pdf.name, file, "application/pdf")})
    assert answer.status_code in (200, 202), answer.text
    document: str = answer.json()["document_id"]
    return document


def is_done(api: httpx.Client, document: str) -> bool:
    answer = api.get(f"/documents/{document}")
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        print(f"  the API can't tell just now: {answer.text}", flush=True)
        return False
    assert answer.is_success, answer.text
    state = answer.json()["state"]
    assert state != "failed", answer.text
    return bool(state == "completed")


@contextmanager
def api_of(system: ComposedSystem, env: dict[str, str]) -> Iterator[httpx.Client]:
    """Open a client with the key, which with TLS trusts its own authority alone."""
    key = {"Authorization": f"Bearer {env['API_KEY']}"}
    url = f"{'https' if system.tls else 'http'}://127.0.0.1:{env['API_PORT']}"
    trust = trust_of(system) if system.tls else True
    with httpx.Client(
        base_url=url, headers=key, timeout=20, trust_env=False, verify=trust
    ) as client:
        assert client.get("/metrics", headers={"Authorization": ""}).status_code == 401
        yield client


def trust_of(system: ComposedSystem) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=system.directory / ".secrets" / "tls" / "ca.pem")


def exercise(system: ComposedSystem, env: dict[str, str], pdfs: list[Path]) -> None:
    with api_of(system, env) as api:
        document = send(api, pdfs[0])
        await_result(
            f"{pdfs[0].name} went through every stage", lambda: is_done(api, document), WORK
        )

        (made,) = generate(1, seed=3, kinds=["scan"], languages=["en"])
        scan = system.directory / made.filename
        scan.write_bytes(made.content)
        document = send(api, scan)
        await_result(f"{scan.name} was read by OCR", lambda: is_done(api, document), WORK)
        hits = api.post("/search", json={"query": made.title}).json()["hits"]
        assert hits[0]["document_id"] == document, hits

        documents = [send(api, each) for each in pdfs]
        killed = system.containers("worker-llm")[0]
        run("podman", "kill", killed)
        print(f"  killed {killed} in the midst of {len(documents)} documents", flush=True)

        def all_done() -> bool:
            return all(is_done(api, each) for each in documents)

        await_result("every document went through every stage", all_done, WORK)
        run("podman", "start", killed)
        await_result(f"{killed} works again", lambda: system.is_healthy(killed), START)

    print(system.jobctl("doctor"), flush=True)
    watched(system, env)
    (container, *_) = system.containers("worker-ingest")
    refused = run("podman", "exec", container, "sh", "-c", "id -u; touch /opt/x", check=False)
    assert refused.startswith("10001")
    assert "Read-only file system" in refused


def exercise_tls(system: ComposedSystem, env: dict[str, str], pdf: Path) -> None:
    """Send a document through every process, and check that nothing but PostgreSQL answers without
    TLS."""
    with api_of(system, env) as api:
        document = send(api, pdf)
        await_result(f"{pdf.name} went through every stage", lambda: is_done(api, document), WORK)
    print(system.jobctl("doctor"), flush=True)
    for name, password in (
        ("postgres", env["APPLICATION_PASSWORD"]),
        ("rabbitmq", env["RABBITMQ_PASSWORD"]),
    ):
        (container, *_) = system.containers(name)
        out = run(
            *("podman", "exec", "-e", f"PGPASSWORD={password}", container, *OVER_TLS[name]),
        )
        wrong = [line for line in out.splitlines() if line.strip() not in ("t", "true", "")]
        assert out.strip(), f"nobody is connected to {name}"
        assert not wrong, f"connections to {name} without TLS: {out}"
        print(f"  every connection to {name} uses TLS", flush=True)
    (scheduler, *_) = system.containers("scheduler")
    for address in ("rabbitmq:5672", "rabbitmq:15672", "api:8000"):
        plain = f"import urllib.request as r; r.urlopen('http://{address}/', timeout=4)"
        said = run("podman", "exec", scheduler, "python3", "-c", plain, check=False)
        assert "Traceback" in said, f"{address} answers without TLS: {said}"
        assert "HTTP Error" not in said, f"{address} answers without TLS: {said}"
    print("  broker, management API and API refuse what is not TLS", flush=True)
    watched(system, env)


def watched(system: ComposedSystem, env: dict[str, str]) -> None:
    """Check that Prometheus scrapes every process, and that no alert fires."""
    prometheus = f"http://127.0.0.1:{env['PROMETHEUS_PORT']}/api/v1"
    wanted = 2 + sum(
        service["deploy"]["replicas"] for service in system.services.values() if "deploy" in service
    )

    def all_up() -> bool:
        targets = httpx.get(f"{prometheus}/targets", trust_env=False).json()["data"][
            "activeTargets"
        ]
        return sum(each["health"] == "up" for each in targets) == wanted

    await_result(f"Prometheus scrapes {wanted} processes", all_up, START)
    (group,) = httpx.get(f"{prometheus}/rules", trust_env=False).json()["data"]["groups"]
    assert not [each["lastError"] for each in group["rules"] if each.get("lastError")]
    firing = [each["name"] for each in group["rules"] if each["state"] == "firing"]
    assert not firing, firing
    print(f"  {len(group['rules'])} alert rules are evaluated, none fires", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make test-compose", description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="use the image that is there")
    parser.add_argument("--tls", action="store_true", help="with compose.tls.yml")
    arguments = parser.parse_args()
    began = time.monotonic()
    with composed(arguments.tls) as (system, env):
        if not arguments.no_build:
            print("Building the image …", flush=True)
            build(system)
        over = " with compose.tls.yml" if arguments.tls else ""
        print(f"Starting compose.yml{over} …", flush=True)
        system.start_in_order()
        pdfs = write_samples(system.directory / "samples", DOCUMENTS)
        if arguments.tls:
            exercise_tls(system, env, pdfs[0])
        else:
            exercise(system, env, pdfs)
    print(f"Done in {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
