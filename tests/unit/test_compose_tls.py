"""compose.tls.yml: nothing that speaks to broker or database is left without TLS."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TRUSTED = "cafile=/etc/switchyard/ca.pem"


class ComposeLoader(yaml.SafeLoader):
    """Also for `!override`: in the place of what the file before says, and not behind it."""


def _replaced(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> Any:
    return loader.construct_sequence(node, deep=True)


ComposeLoader.add_constructor("!override", _replaced)


def services_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / name).read_text(), ComposeLoader)["services"]
    return found


def test_every_process_speaks_tls_as_the_same_user_as_without() -> None:
    overlay = services_of("compose.tls.yml")
    plain = services_of("compose.yml")
    assert overlay.keys() == plain.keys() - {"grafana"}
    for name, service in plain.items():
        before = service.get("environment", {})
        after = overlay.get(name, {}).get("environment", {})
        if amqp := before.get("JOBS_AMQP_URL"):
            encrypted = amqp.replace("amqp://", "amqps://").replace("5672/", f"5671/?{TRUSTED}")
            assert after["JOBS_AMQP_URL"] == encrypted, name
            assert after["SSL_CERT_FILE"] == "/etc/switchyard/bundle.pem", name
        if database := before.get("JOBS_DATABASE_URL"):
            assert after["JOBS_DATABASE_URL"] == f"{database}?ssl=verify-full", name
            assert after["PGSSLROOTCERT"] == "/etc/switchyard/ca.pem", name


def test_what_is_named_in_a_container_is_mounted_there_and_made_by_the_script() -> None:
    made = (ROOT / "deploy" / "make_certificates.sh").read_text()
    for name, service in services_of("compose.tls.yml").items():
        mounts = [each.split(":") for each in service["volumes"]]
        inside = {target for _, target, _ in mounts}
        said = str(service.get("command", "")) + str(service.get("environment", ""))
        if name == "rabbitmq":
            said += (ROOT / "deploy" / "rabbitmq.tls.conf").read_text()
        for word in said.replace("=", " ").replace("'", " ").replace("]", " ").split():
            if word.startswith(("/run/tls/", "/etc/switchyard/")):
                assert word.rstrip(",}") in inside, (name, word)
        for source, _, mode in mounts:
            assert mode == "ro"
            file = Path(source)
            if file.parent.name == "tls":
                assert f"certificate {file.stem} " in made or file.name in ("ca.pem", "bundle.pem")
            else:
                assert (ROOT / source).exists()


def test_prometheus_scrapes_the_same_and_the_api_by_https() -> None:
    plain, tls = (
        yaml.safe_load((ROOT / "deploy" / f"{name}.yml").read_text())
        for name in ("prometheus", "prometheus.tls")
    )
    (api,) = [each for each in tls["scrape_configs"] if each["job_name"] == "switchyard-api"]
    assert api.pop("scheme") == "https"
    assert api.pop("tls_config") == {"ca_file": "/run/tls/ca.pem"}
    assert tls == plain
