"""The Helm chart, rendered by Helm's own library: every example, and what matters in it."""

import re
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from switchyard.broker.topology.build import build
from switchyard.broker.topology.users import ROLES
from switchyard.cli.system.local_system import PROCESSES, worker_kinds
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger.sql.database_users import DATABASE_ROLES
from switchyard.services.engine.wings import job_modules
from tests.support.chart import CHART, helm, of_kind, pods, render, rendered, values

ROOT = Path(__file__).parents[2]
EXAMPLES = ("small", "production", "external-broker")
KUBERNETES = ("1.27", "1.31")
FOREIGN = ("keda.sh/", "rabbitmq.com/", "monitoring.coreos.com/")
"""Kinds of operators, of which no schema is at hand."""

QUEUES = {queue.name for queue in build("quorum", Registry.load(job_modules()).routes).queues}

every_example = pytest.mark.parametrize("example", EXAMPLES)


@every_example
def test_lint_finds_nothing(example: str) -> None:
    report = helm().lint(CHART, values=values(example), strict=True)
    assert (report["messages"], report["errors"]) == ([], [])


@pytest.mark.parametrize(
    ("example", "version"),
    [*(("production", version) for version in KUBERNETES), ("small", "1.31"),
     ("external-broker", "1.27")],
)  # fmt: skip
def test_kubernetes_would_take_every_manifest(example: str, version: str) -> None:
    import kubernetes_validate  # a second of processor time, which only these tests are to pay

    for manifest in rendered(example):
        if not manifest["apiVersion"].startswith(FOREIGN):
            kubernetes_validate.validate(manifest, version, strict=True)


@every_example
def test_no_two_manifests_have_one_name(example: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered(example)]
    assert sorted(set(names)) == sorted(names)


@every_example
def test_no_container_may_do_what_it_need_not(example: str) -> None:
    for name, pod in pods(example):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
            assert container["resources"]["limits"]["memory"]


@every_example
def test_no_secret_stands_in_a_manifest(example: str) -> None:
    for _, pod in pods(example):
        for each in pod["containers"][0]["env"]:
            if any(word in each["name"] for word in ("PASSWORD", "DATABASE_URL", "API_KEYS")):
                assert "secretKeyRef" in each["valueFrom"]
            if "_URL" in each["name"]:
                assert "@" not in each.get("value", "").replace("$(BROKER_PASSWORD)@", "")
    assert not of_kind(example, "Secret")


@every_example
def test_what_runs_for_long_has_probes_and_what_is_replaced_time_to_finish(example: str) -> None:
    for name, deployment in of_kind(example, "Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["path"].startswith("/health/"), name
        environment = {each["name"]: each.get("value") for each in container["env"]}
        grace = float(environment.get("JOBS_SHUTDOWN_GRACE") or 30)
        assert pod["terminationGracePeriodSeconds"] > grace


def test_there_is_a_deployment_for_every_kind_of_worker_and_its_lanes() -> None:
    registry = Registry.load(job_modules())
    there = {each.worker: list(registry.lanes_of(each.worker)) for each in registry}
    default = helm().Chart.load(CHART).values["workers"]
    assert {kind: worker["lanes"] for kind, worker in default.items()} == there, (
        "a kind of worker is missing in charts/switchyard/values.yaml (and in compose.yml), "
        "or stands there and has no work"
    )
    for kind, worker in default.items():
        longest = max(each.timeout for each in registry if each.worker == kind)
        assert worker["longestJobSeconds"] >= longest, kind


def test_compose_has_a_service_for_every_kind_of_worker_with_its_replicas() -> None:
    services = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    default = helm().Chart.load(CHART).values["workers"]
    workers = {name for name in services if name.startswith("worker-")}
    assert workers == {f"worker-{kind}" for kind in default}
    for kind, worker in default.items():
        service = services[f"worker-{kind}"]
        assert service["deploy"]["replicas"] == worker["replicas"]
        assert service["command"][:2] == ["worker", kind]
    assert services["scheduler"]["deploy"]["replicas"] == 2
    for name, service in services.items():
        assert service["mem_limit"], name
        assert all(each.startswith("127.0.0.1:") for each in service.get("ports", [])), name
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    assert {*scraped[0]["dns_sd_configs"][0]["names"]} == workers | {"scheduler"}


def test_in_compose_each_process_has_the_brokers_user_of_its_role_and_no_other_password() -> None:
    services = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    role_of = {"api": "publisher", "scheduler": "admin", "topology": "admin"}
    words = {"RABBITMQ_PASSWORD", *(f"{role.name.upper()}_PASSWORD" for role in ROLES)}
    for name, service in services.items():
        environment = service.get("environment", {})
        told = {word for word in words if f"${{{word}" in str(environment)}
        if name in ("rabbitmq", "users"):  # whose default user is the administrator
            assert told == ({"RABBITMQ_PASSWORD"} if name == "rabbitmq" else words)
            continue
        role = role_of.get(name, "worker" if name.startswith("worker-") else None)
        assert told == ({f"{role.upper()}_PASSWORD"} if role else set()), name
        if role:
            user = urlsplit(environment["JOBS_AMQP_URL"].replace(":?run make env", "")).username
            assert user == f"switchyard-{role}", name
    made = (ROOT / "deploy" / "make_env.sh").read_text()
    assert all(f"add {word} " in made for word in words)


PROCESSES_ASKED_FOR = {
    "ingest": range(2, 5),
    "llm": range(1, 3),
    "embed": range(1, 3),
    "ocr": range(1, 2),
    "link": range(1, 3),
    "reindex": range(1, 3),
}
"""Of each kind of worker on one machine."""


def test_each_kind_of_worker_has_as_many_processes_as_were_asked_for() -> None:
    """In compose.yml and the chart, for several machines, six of the LLM worker."""
    replicas = {
        kind: worker["replicas"]
        for kind, worker in helm().Chart.load(CHART).values["workers"].items()
    }
    assert replicas.pop("llm") == 6
    in_up = {kind: PROCESSES.get(kind, 1) for kind in worker_kinds(Registry.load(job_modules()))}
    assert in_up.keys() == PROCESSES_ASKED_FOR.keys()
    for kind, number in (*replicas.items(), *in_up.items()):
        assert number in PROCESSES_ASKED_FOR[kind], kind


def test_replicas_are_those_that_were_asked_for() -> None:
    default = helm().Chart.load(CHART).values
    assert default["workers"]["llm"]["replicas"] == 6
    assert {default["workers"][kind]["replicas"] for kind in ("ingest", "embed", "link")} == {2}
    assert (default["api"]["replicas"], default["api"]["autoscaling"]["maxReplicas"]) == (2, 4)
    assert default["scheduler"]["replicas"] == 2


@pytest.mark.parametrize("example", ["production", "external-broker"])
def test_keda_counts_what_workers_hold_and_scales_down_late_and_one_by_one(example: str) -> None:
    scaled = of_kind(example, "ScaledObject")
    deployments = of_kind(example, "Deployment")
    assert set(scaled) == {name for name in deployments if "-worker-" in name}
    for name, each in scaled.items():
        kind = name.rpartition("-")[2]
        # One for all lanes: of several, the one that wants most pods decides.
        (trigger,) = (trigger["metadata"] for trigger in each["spec"]["triggers"])
        assert (trigger["useRegex"], trigger["operation"]) == ("true", "sum")
        assert (trigger["mode"], trigger["excludeUnacknowledged"]) == ("QueueLength", "false")
        assert trigger["protocol"] == "http"
        (container,) = deployments[name]["spec"]["template"]["spec"]["containers"]
        options = dict(zip(container["args"], container["args"][1:], strict=False))
        counted = {queue for queue in QUEUES if re.search(trigger["queueName"], queue)}
        assert counted == {f"{lane}.{kind}" for lane in options["--lanes"].split(",")}
        assert int(trigger["value"]) <= int(options["--concurrency"]), "busy pods would be stopped"
        assert "replicas" not in deployments[name]["spec"], "two would quarrel about the number"
        down = each["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]


def test_set_up_comes_before_the_processes_where_the_broker_is_there_already() -> None:
    def hooks(example: str) -> dict[str, str]:
        return {
            name: job["metadata"]["annotations"]["helm.sh/hook"]
            for name, job in of_kind(example, "Job").items()
        }

    names = {"switchyard-migrations", "switchyard-topology"}
    assert hooks("external-broker") == dict.fromkeys(names, "pre-install,pre-upgrade")
    names |= {"switchyard-users"}  # of the release's own broker
    assert hooks("production") == dict.fromkeys(names, "post-install,pre-upgrade")
    for job in of_kind("external-broker", "Job").values():  # nothing of the release is there yet
        pod = job["spec"]["template"]["spec"]
        assert "serviceAccountName" not in pod
        # What its user has made is there: the secret with who has signed.
        assert [list(volume) for volume in pod["volumes"]] == [
            ["name", "emptyDir"],
            ["name", "secret"],
        ]


def test_the_brokers_cluster_has_three_nodes_on_three_hosts_and_outlives_the_release() -> None:
    (cluster,) = of_kind("production", "RabbitmqCluster").values()
    assert cluster["spec"]["replicas"] == 3
    assert cluster["spec"]["affinity"]["podAntiAffinity"]
    assert cluster["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "pause_minority" in cluster["spec"]["rabbitmq"]["additionalConfig"]


def test_every_deployment_has_a_disruption_budget_and_lies_behind_a_network_policy() -> None:
    budgets = of_kind("production", "PodDisruptionBudget")
    assert set(budgets) == set(of_kind("production", "Deployment"))
    default = of_kind("production", "NetworkPolicy")["switchyard-default"]["spec"]
    assert "ingress" not in default
    assert default["policyTypes"] == ["Ingress", "Egress"]
    for deployment in of_kind("production", "Deployment").values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert default["podSelector"]["matchLabels"].items() <= labels.items()


def egress(example: str, **changes: Any) -> list[dict[str, Any]]:
    given = values(example)
    given.setdefault("networkPolicies", {}).update(changes)
    policies = [each for each in render(given) if each["kind"] == "NetworkPolicy"]
    (default,) = (each for each in policies if each["metadata"]["name"].endswith("-default"))
    rules: list[dict[str, Any]] = default["spec"]["egress"]
    return rules


def reachable(rules: list[dict[str, Any]], address: str, port: int) -> bool:
    """Whether the rules let a pod go there, which is in no namespace of the cluster."""
    at = ip_address(address)
    for rule in rules:
        if port not in [each["port"] for each in rule.get("ports", [{"port": port}])]:
            continue
        blocks = [each["ipBlock"] for each in rule.get("to", []) if "ipBlock" in each]
        if "to" not in rule or any(
            at in ip_network(block["cidr"])
            and not any(at in ip_network(each) for each in block.get("except", []))
            for block in blocks
        ):
            return True
    return False


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_private_network_is_reached_that_nobody_has_named(example: str) -> None:
    rules = egress(example, egressCIDRs=["0.0.0.0/0", "::/0"])
    private = ["10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"]
    private += ["127.0.0.1", "fd00:ec2::254", "fe80::1", "::1", "::ffff:10.0.0.1"]
    assert [each for each in private if reachable(rules, each, 80)] == []
    assert reachable(rules, "93.184.216.34", 443)
    assert reachable(rules, "2606:2800:220:1::1", 443)


def test_broker_database_and_what_else_is_named_are_reached_at_their_ports_alone() -> None:
    rules = egress("external-broker", internal=[{"cidr": "10.0.0.7/32", "ports": [9000]}])
    told = [
        (address, port, reachable(rules, address, port))
        for address, port in (
            ("10.20.0.1", 5671),
            ("10.20.0.9", 5671),
            ("10.20.0.8", 5432),
            ("10.20.0.1", 5432),
            ("10.0.0.7", 9000),
            ("10.0.0.7", 22),
        )
    ]
    assert [here for _, _, here in told] == [True, False, True, False, True, False], told
    (broker,) = (
        each["to"] for each in egress("production") if {"port": 5671} in each.get("ports", [])
    )
    assert broker == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "switchyard-broker"}}}
    ]


def test_images_are_pinned_by_the_digests_that_are_given() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    given = values("production")
    given["image"]["digest"] = digest
    given["broker"]["operator"]["image"] = f"registry.example.org/rabbitmq@{digest}"
    manifests = render(given)
    images = [
        container["image"]
        for each in manifests
        if each["kind"] in ("Deployment", "Job")
        for container in each["spec"]["template"]["spec"]["containers"]
    ]
    assert images
    assert all(each.endswith(f"@{digest}") for each in images)
    (cluster,) = (each for each in manifests if each["kind"] == "RabbitmqCluster")
    assert cluster["spec"]["image"].endswith(f"@{digest}")


def test_alert_rules_and_dashboards_are_shipped_as_they_are() -> None:
    (rules,) = of_kind("production", "PrometheusRule").values()
    assert rules["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    dashboards = of_kind("production", "ConfigMap")["switchyard-dashboards"]["data"]
    files = CHART / "files" / "dashboards"
    assert dashboards == {path.name: path.read_text() for path in files.iterdir()}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("image.pulPolicy", "Always"),
        ("image.digest", "latest"),
        ("broker.profile", "mirrored"),
        ("api.replicas", 0),
        ("workers.llm.lanes", ["hott"]),
        ("settings.LLM_MODEL", "qwen"),
        ("monitoring.interval", "often"),
    ],
)
def test_a_value_that_can_not_be_right_is_refused_by_name(path: str, value: Any) -> None:
    given = values("external-broker")
    inner = given
    *parents, last = path.split(".")
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    with pytest.raises(helm().HelmError, match=re.escape(last)):
        helm().Chart.load(CHART).validate_schema(given)


def test_each_process_has_the_broker_user_that_is_made_for_it_and_trusts_who_signed() -> None:
    secrets = {}
    for name, pod in pods("external-broker"):
        (container,) = pod["containers"]
        environment = {each["name"]: each for each in container["env"]}
        source = environment["JOBS_AMQP_URL"]["valueFrom"]["secretKeyRef"]
        assert (
            source["name"]
            == environment["JOBS_MANAGEMENT_URL"]["valueFrom"]["secretKeyRef"]["name"]
        )
        secrets[name] = source["name"].removeprefix("switchyard-broker-")
        assert environment["PGSSLROOTCERT"]["value"] == "/etc/switchyard/ca.pem"
        assert {"name": "ca", "mountPath": "/etc/switchyard", "readOnly": True} in container[
            "volumeMounts"
        ]
        (ca,) = [each for each in pod["volumes"] if each["name"] == "ca"]
        assert ca["secret"]["secretName"] == "switchyard-ca"
    assert secrets["switchyard-api"] == "publisher"
    assert secrets["switchyard-scheduler"] == "admin"
    assert {each for name, each in secrets.items() if "worker" in name} == {"worker"}
    for _, pod in pods("production"):  # which names none
        assert "PGSSLROOTCERT" not in {each["name"] for each in pod["containers"][0]["env"]}
        assert "ca" not in {each["name"] for each in pod["volumes"]}


def test_only_what_upgrades_the_tables_logs_in_as_their_owner() -> None:
    for name, pod in pods("production"):
        asked = secrets_of(pod["containers"][0])
        owner, application = ("switchyard-ledger-owner" in asked, "switchyard-ledger" in asked)
        if name != "switchyard-users":
            assert (owner, application) == (name == "switchyard-migrations", not owner), name
    for name, pod in pods("small"):  # which names no owner: one user for all
        if name != "switchyard-users":
            assert secrets_of(pod["containers"][0])["switchyard-ledger"] == {"database-url"}, name
    services = yaml.safe_load((ROOT / "compose.yml").read_text())["services"]
    owners = set()
    for name, service in services.items():
        url = service.get("environment", {}).get("JOBS_DATABASE_URL", "")
        if "//switchyard:${POSTGRES_PASSWORD" in url:
            owners.add(name)
        else:
            assert not url or "//switchyard_application:${APPLICATION_PASSWORD" in url, name
            assert "POSTGRES_PASSWORD" not in service.get("environment", {}) or name == "postgres"
    assert owners == {"migrations", "database-users"}
    made = (ROOT / "deploy" / "make_env.sh").read_text()
    assert all(f"add {role.name.upper()}_PASSWORD " in made for role in DATABASE_ROLES)


@pytest.mark.parametrize("example", ["small", "production"])
def test_with_the_operators_broker_its_administrator_only_makes_users(example: str) -> None:
    """What the others log in as, and that it works: tests/acceptance/test_chart_hooks.py."""
    for name, pod in pods(example):
        asked = secrets_of(pod["containers"][0])
        administrator = asked.get("switchyard-broker-default-user")
        passwords = asked.get("switchyard-broker-users")
        if name == "switchyard-users":
            assert administrator == {"username", "password"}
            assert passwords == {f"{role.name}-password" for role in ROLES}
        else:
            role = {"api": "publisher", "worker": "worker"}.get(name.split("-")[1], "admin")
            assert (administrator, passwords) == (None, {f"{role}-password"}), name
    for name, auth in of_kind(example, "TriggerAuthentication").items():
        (secret,) = auth["spec"]["secretTargetRef"]
        assert (secret["name"], secret["key"]) == ("switchyard-broker-users", "publisher-password")
        (user,) = auth["spec"]["configMapTargetRef"]
        assert of_kind(example, "ConfigMap")[user["name"]]["data"] == {
            user["key"]: "switchyard-publisher"
        }, name


def test_the_doctor_prints_commands_for_the_operators_broker_as_they_are_called_there() -> None:
    name = "JOBS_RABBITMQCTL"
    for _, pod in pods("small"):
        (said,) = (each["value"] for each in pod["containers"][0]["env"] if each["name"] == name)
        before, _, command = said.partition(" -- ")
        assert command == "rabbitmqctl"
        server = f"{next(iter(of_kind('small', 'RabbitmqCluster')))}-server-0"
        assert before == f"kubectl -n jobs exec {server} -c rabbitmq"
    for _, pod in pods("external-broker"):
        assert name not in {each["name"] for each in pod["containers"][0]["env"]}


def secrets_of(container: Any) -> dict[str, set[str]]:
    asked: dict[str, set[str]] = {}
    for each in container["env"]:
        if reference := each.get("valueFrom", {}).get("secretKeyRef"):
            asked.setdefault(reference["name"], set()).add(reference["key"])
    return asked


def test_a_broker_of_the_operator_asks_for_the_passwords_of_its_users() -> None:
    given = values("small")
    del given["broker"]["operator"]["usersSecret"]
    with pytest.raises(helm().HelmError, match=r"broker\.operator\.usersSecret"):
        render(given)


@pytest.mark.parametrize("missing", ["broker", "ledger", "api"])
def test_a_secret_that_is_missing_is_asked_for_by_name(missing: str) -> None:
    given = values("external-broker")
    del given[missing]
    with pytest.raises(helm().HelmError, match=rf"{missing}\.existingSecret"):
        render(given)


# --- values and templates: each has the other ---------------------------------------------------


def leaves(tree: Any, path: str = "") -> Iterator[str]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}".strip("."))
    else:
        yield path


def test_every_value_has_a_template_that_uses_it_and_no_template_uses_another() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    used |= {f"workers.{each}" for each in re.findall(r"\$worker\.([A-Za-z.]+)", text)}
    opened = {"workers", "storage.volume", "api.ingress"}  # by `with` and `range`
    used |= {f"storage.volume.{name}" for name in ("enabled", "existingClaim")}
    used |= {"api.ingress.enabled"}
    default = helm().Chart.load(CHART).values
    kinds = "|".join(default["workers"])
    there = {re.sub(rf"^workers\.({kinds})\.", "workers.", leaf) for leaf in leaves(default)}
    asked = used - opened
    assert {leaf for leaf in there if not any(covers(use, leaf) for use in asked)} == set()
    assert {use for use in asked if not any(covers(use, leaf) for leaf in there)} == set()


def covers(use: str, leaf: str) -> bool:
    return leaf == use or leaf.startswith(f"{use}.")
