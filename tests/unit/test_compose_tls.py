"""compose.tls.yml: every connection to broker and database uses TLS."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CA_QUERY = "cafile=/etc/switchyard/ca.pem"


class ComposeLoader(yaml.SafeLoader):
    """A YAML loader that knows Compose's `!override`: replace the former list instead of extending
    it."""


def _read_override(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> Any:
    return loader.construct_sequence(node, deep=True)


ComposeLoader.add_constructor("!override", _read_override)


def services_of(name: str) -> dict[str, Any]:
    services: dict[str, Any] = yaml.load((ROOT / name).read_text(), ComposeLoader)["services"]
    return services


def test_every_process_uses_tls_and_its_user_of_the_plain_file() -> None:
    overlay = services_of("compose.tls.yml")
    plain = services_of("compose.yml")
    assert overlay.keys() == plain.keys() - {"grafana"}
    for name, service in plain.items():
        plain_environment = service.get("environment", {})
        tls_environment = overlay.get(name, {}).get("environment", {})
        if amqp := plain_environment.get("JOBS_AMQP_URL"):
            encrypted = amqp.replace("amqp://", "amqps://").replace("5672/", f"5671/?{CA_QUERY}")
            assert tls_environment["JOBS_AMQP_URL"] == encrypted, name
            assert tls_environment["SSL_CERT_FILE"] == "/etc/switchyard/bundle.pem", name
        if database := plain_environment.get("JOBS_DATABASE_URL"):
            assert tls_environment["JOBS_DATABASE_URL"] == f"{database}?ssl=verify-full", name
            assert tls_environment["PGSSLROOTCERT"] == "/etc/switchyard/ca.pem", name


def test_every_named_certificate_is_mounted_and_made_by_the_script() -> None:
    script = (ROOT / "deploy" / "make_certificates.sh").read_text()
    for name, service in services_of("compose.tls.yml").items():
        mounts = [each.split(":") for each in service["volumes"]]
        mounted_paths = {target for _, target, _ in mounts}
        configuration = str(service.get("command", "")) + str(service.get("environment", ""))
        if name == "rabbitmq":
            configuration += (ROOT / "deploy" / "rabbitmq.tls.conf").read_text()
        for word in configuration.replace("=", " ").replace("'", " ").replace("]", " ").split():
            if word.startswith(("/run/tls/", "/etc/switchyard/")):
                assert word.rstrip(",}") in mounted_paths, (name, word)
        for source, _, mode in mounts:
            assert mode == "ro"
            file = Path(source)
            if file.parent.name == "tls":
                assert f"certificate {file.stem} " in script or file.name in (
                    "ca.pem",
                    "bundle.pem",
                )
            else:
                assert (ROOT / source).exists()


def test_prometheus_scrapes_the_same_targets_with_the_api_by_https() -> None:
    plain, tls = (
        yaml.safe_load((ROOT / "deploy" / f"{name}.yml").read_text())
        for name in ("prometheus", "prometheus.tls")
    )
    (api,) = [each for each in tls["scrape_configs"] if each["job_name"] == "switchyard-api"]
    assert api.pop("scheme") == "https"
    assert api.pop("tls_config") == {"ca_file": "/run/tls/ca.pem"}
    assert tls == plain
