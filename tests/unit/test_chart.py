"""The Helm chart with the values of each example, rendered by Helm's own library."""

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
from tests.support.chart import CHART, helm, load_values, of_kind, pods, render, render_example

ROOT = Path(__file__).parents[2]
EXAMPLES = ("small", "production", "external-broker")
KUBERNETES_VERSIONS = ("1.27", "1.31")
FOREIGN_API_GROUPS = ("keda.sh/", "rabbitmq.com/", "monitoring.coreos.com/")
"""API groups of operators' custom resources, whose schemas the validator does not have."""

QUEUES = {queue.name for queue in build("quorum", Registry.load(job_modules()).routes).queues}

every_example = pytest.mark.parametrize("example", EXAMPLES)


@every_example
def test_lint_finds_nothing(example: str) -> None:
    report = helm().lint(CHART, values=load_values(example), strict=True)
    assert (report["messages"], report["errors"]) == ([], [])


@pytest.mark.parametrize(
    ("example", "version"),
    [*(("production", version) for version in KUBERNETES_VERSIONS), ("small", "1.31"),
     ("external-broker", "1.27")],
)  # fmt: skip
def test_every_manifest_is_valid_in_kubernetes(example: str, version: str) -> None:
    import kubernetes_validate  # costs a second of processor time, so only this test imports it

    for manifest in render_example(example):
        if not manifest["apiVersion"].startswith(FOREIGN_API_GROUPS):
            kubernetes_validate.validate(manifest, version, strict=True)


@every_example
def test_no_two_manifests_have_the_same_name(example: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in render_example(example)]
    assert sorted(set(names)) == sorted(names)


@every_example
def test_containers_have_no_privileges(example: str) -> None:
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
def test_no_manifest_contains_a_secret(example: str) -> None:
    for _, pod in pods(example):
        for each in pod["containers"][0]["env"]:
            if any(word in each["name"] for word in ("PASSWORD", "DATABASE_URL", "API_KEYS")):
                assert "secretKeyRef" in each["valueFrom"]
            if "_URL" in each["name"]:
                assert "@" not in each.get("value", "").replace("$(BROKER_PASSWORD)@", "")
    assert not of_kind(example, "Secret")


@every_example
def test_deployments_have_probes_and_a_termination_grace(example: str) -> None:
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
    lanes_by_kind = {each.worker: list(registry.lanes_of(each.worker)) for each in registry}
    default = helm().Chart.load(CHART).values["workers"]
    assert {kind: worker["lanes"] for kind, worker in default.items()} == lanes_by_kind, (
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
    password_variables = {"RABBITMQ_PASSWORD", *(f"{role.name.upper()}_PASSWORD" for role in ROLES)}
    for name, service in services.items():
        environment = service.get("environment", {})
        used_variables = {word for word in password_variables if f"${{{word}" in str(environment)}
        if name in ("rabbitmq", "users"):  # whose default user is the administrator
            assert used_variables == (
                {"RABBITMQ_PASSWORD"} if name == "rabbitmq" else password_variables
            )
            continue
        role = role_of.get(name, "worker" if name.startswith("worker-") else None)
        assert used_variables == ({f"{role.upper()}_PASSWORD"} if role else set()), name
        if role:
            user = urlsplit(environment["JOBS_AMQP_URL"].replace(":?run make env", "")).username
            assert user == f"switchyard-{role}", name
    script = (ROOT / "deploy" / "make_env.sh").read_text()
    assert all(f"add {word} " in script for word in password_variables)


REQUESTED_PROCESSES = {
    "ingest": range(2, 5),
    "llm": range(1, 3),
    "embed": range(1, 3),
    "ocr": range(1, 2),
    "link": range(1, 3),
    "reindex": range(1, 3),
}
"""Number of processes of each worker kind on one machine, as the requirements give it."""


def test_each_worker_kind_has_the_requested_number_of_processes() -> None:
    """`jobctl up` and the chart agree; only of LLM workers the chart, for several machines, has
    six."""
    replicas = {
        kind: worker["replicas"]
        for kind, worker in helm().Chart.load(CHART).values["workers"].items()
    }
    assert replicas.pop("llm") == 6
    in_up = {kind: PROCESSES.get(kind, 1) for kind in worker_kinds(Registry.load(job_modules()))}
    assert in_up.keys() == REQUESTED_PROCESSES.keys()
    for kind, number in (*replicas.items(), *in_up.items()):
        assert number in REQUESTED_PROCESSES[kind], kind


def test_replicas_are_the_requested_ones() -> None:
    default = helm().Chart.load(CHART).values
    assert default["workers"]["llm"]["replicas"] == 6
    assert {default["workers"][kind]["replicas"] for kind in ("ingest", "embed", "link")} == {2}
    assert (default["api"]["replicas"], default["api"]["autoscaling"]["maxReplicas"]) == (2, 4)
    assert default["scheduler"]["replicas"] == 2


@pytest.mark.parametrize("example", ["production", "external-broker"])
def test_keda_counts_unacknowledged_jobs_and_scales_down_one_by_one(example: str) -> None:
    scaled_objects = of_kind(example, "ScaledObject")
    deployments = of_kind(example, "Deployment")
    assert set(scaled_objects) == {name for name in deployments if "-worker-" in name}
    for name, each in scaled_objects.items():
        kind = name.rpartition("-")[2]
        # One trigger for all lanes: of several, KEDA follows the one that wants most pods.
        (trigger,) = (trigger["metadata"] for trigger in each["spec"]["triggers"])
        assert (trigger["useRegex"], trigger["operation"]) == ("true", "sum")
        assert (trigger["mode"], trigger["excludeUnacknowledged"]) == ("QueueLength", "false")
        assert trigger["protocol"] == "http"
        (container,) = deployments[name]["spec"]["template"]["spec"]["containers"]
        options = dict(zip(container["args"], container["args"][1:], strict=False))
        matched_queues = {queue for queue in QUEUES if re.search(trigger["queueName"], queue)}
        assert matched_queues == {f"{lane}.{kind}" for lane in options["--lanes"].split(",")}
        assert int(trigger["value"]) <= int(options["--concurrency"]), "busy pods would be stopped"
        assert "replicas" not in deployments[name]["spec"], (
            "Helm and KEDA would both set the number"
        )
        down = each["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]


def test_set_up_jobs_run_before_the_processes_unless_the_release_has_its_own_broker() -> None:
    def hooks(example: str) -> dict[str, str]:
        return {
            name: job["metadata"]["annotations"]["helm.sh/hook"]
            for name, job in of_kind(example, "Job").items()
        }

    names = {"switchyard-migrations", "switchyard-topology"}
    assert hooks("external-broker") == dict.fromkeys(names, "pre-install,pre-upgrade")
    names |= {"switchyard-users"}  # made on the release's own broker
    assert hooks("production") == dict.fromkeys(names, "post-install,pre-upgrade")
    # These run before anything of the release exists.
    for job in of_kind("external-broker", "Job").values():
        pod = job["spec"]["template"]["spec"]
        assert "serviceAccountName" not in pod
        # The one secret is the user's own, with the certificate authority.
        assert [list(volume) for volume in pod["volumes"]] == [
            ["name", "emptyDir"],
            ["name", "secret"],
        ]


def test_the_broker_cluster_has_three_nodes_on_different_hosts_and_is_kept_on_uninstall() -> None:
    (cluster,) = of_kind("production", "RabbitmqCluster").values()
    assert cluster["spec"]["replicas"] == 3
    assert cluster["spec"]["affinity"]["podAntiAffinity"]
    assert cluster["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "pause_minority" in cluster["spec"]["rabbitmq"]["additionalConfig"]


def test_every_deployment_has_a_disruption_budget_and_a_network_policy() -> None:
    budgets = of_kind("production", "PodDisruptionBudget")
    assert set(budgets) == set(of_kind("production", "Deployment"))
    default = of_kind("production", "NetworkPolicy")["switchyard-default"]["spec"]
    assert "ingress" not in default
    assert default["policyTypes"] == ["Ingress", "Egress"]
    for deployment in of_kind("production", "Deployment").values():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert default["podSelector"]["matchLabels"].items() <= labels.items()


def egress_rules(example: str, **changes: Any) -> list[dict[str, Any]]:
    """Return the egress rules of the default network policy after changes of the values."""
    chart_values = load_values(example)
    chart_values.setdefault("networkPolicies", {}).update(changes)
    policies = [each for each in render(chart_values) if each["kind"] == "NetworkPolicy"]
    (default,) = (each for each in policies if each["metadata"]["name"].endswith("-default"))
    rules: list[dict[str, Any]] = default["spec"]["egress"]
    return rules


def is_reachable(rules: list[dict[str, Any]], address: str, port: int) -> bool:
    """Return whether the rules let a pod connect to an address outside the cluster."""
    ip = ip_address(address)
    for rule in rules:
        if port not in [each["port"] for each in rule.get("ports", [{"port": port}])]:
            continue
        blocks = [each["ipBlock"] for each in rule.get("to", []) if "ipBlock" in each]
        if "to" not in rule or any(
            ip in ip_network(block["cidr"])
            and not any(ip in ip_network(each) for each in block.get("except", []))
            for block in blocks
        ):
            return True
    return False


@pytest.mark.parametrize("example", EXAMPLES)
def test_private_networks_are_unreachable_unless_named(example: str) -> None:
    rules = egress_rules(example, egressCIDRs=["0.0.0.0/0", "::/0"])
    private = ["10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"]
    private += ["127.0.0.1", "fd00:ec2::254", "fe80::1", "::1", "::ffff:10.0.0.1"]
    assert [each for each in private if is_reachable(rules, each, 80)] == []
    assert is_reachable(rules, "93.184.216.34", 443)
    assert is_reachable(rules, "2606:2800:220:1::1", 443)


def test_broker_database_and_named_servers_are_reachable_at_their_ports_only() -> None:
    rules = egress_rules("external-broker", internal=[{"cidr": "10.0.0.7/32", "ports": [9000]}])
    reachability = [
        (address, port, is_reachable(rules, address, port))
        for address, port in (
            ("10.20.0.1", 5671),
            ("10.20.0.9", 5671),
            ("10.20.0.8", 5432),
            ("10.20.0.1", 5432),
            ("10.0.0.7", 9000),
            ("10.0.0.7", 22),
        )
    ]
    assert [is_open for _, _, is_open in reachability] == [
        True,
        False,
        True,
        False,
        True,
        False,
    ], reachability
    (broker,) = (
        each["to"] for each in egress_rules("production") if {"port": 5671} in each.get("ports", [])
    )
    assert broker == [
        {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "switchyard-broker"}}}
    ]


def test_images_are_pinned_by_the_configured_digests() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    chart_values = load_values("production")
    chart_values["image"]["digest"] = digest
    chart_values["broker"]["operator"]["image"] = f"registry.example.org/rabbitmq@{digest}"
    manifests = render(chart_values)
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
def test_an_invalid_value_is_refused_by_name(path: str, value: Any) -> None:
    chart_values = load_values("external-broker")
    section = chart_values
    *parents, last = path.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = value
    with pytest.raises(helm().HelmError, match=re.escape(last)):
        helm().Chart.load(CHART).validate_schema(chart_values)


def test_each_process_has_its_own_broker_user_and_trusts_the_certificate_authority() -> None:
    broker_user_of = {}
    for name, pod in pods("external-broker"):
        (container,) = pod["containers"]
        environment = {each["name"]: each for each in container["env"]}
        source = environment["JOBS_AMQP_URL"]["valueFrom"]["secretKeyRef"]
        assert (
            source["name"]
            == environment["JOBS_MANAGEMENT_URL"]["valueFrom"]["secretKeyRef"]["name"]
        )
        broker_user_of[name] = source["name"].removeprefix("switchyard-broker-")
        assert environment["PGSSLROOTCERT"]["value"] == "/etc/switchyard/ca.pem"
        assert {"name": "ca", "mountPath": "/etc/switchyard", "readOnly": True} in container[
            "volumeMounts"
        ]
        (ca,) = [each for each in pod["volumes"] if each["name"] == "ca"]
        assert ca["secret"]["secretName"] == "switchyard-ca"
    assert broker_user_of["switchyard-api"] == "publisher"
    assert broker_user_of["switchyard-scheduler"] == "admin"
    assert {each for name, each in broker_user_of.items() if "worker" in name} == {"worker"}
    for _, pod in pods("production"):  # whose values name no authority
        assert "PGSSLROOTCERT" not in {each["name"] for each in pod["containers"][0]["env"]}
        assert "ca" not in {each["name"] for each in pod["volumes"]}


def test_only_migrations_log_in_as_the_owner_of_the_tables() -> None:
    for name, pod in pods("production"):
        secret_keys = secrets_of(pod["containers"][0])
        has_owner_secret, has_application_secret = (
            "switchyard-ledger-owner" in secret_keys,
            "switchyard-ledger" in secret_keys,
        )
        if name != "switchyard-users":
            assert (has_owner_secret, has_application_secret) == (
                name == "switchyard-migrations",
                not has_owner_secret,
            ), name
    for name, pod in pods("small"):  # whose values name no owner: all use one user
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
    script = (ROOT / "deploy" / "make_env.sh").read_text()
    assert all(f"add {role.name.upper()}_PASSWORD " in script for role in DATABASE_ROLES)


@pytest.mark.parametrize("example", ["small", "production"])
def test_only_the_job_that_makes_users_has_the_brokers_administrator(example: str) -> None:
    """That the other users can log in is tested in tests/acceptance/test_chart_hooks.py."""
    for name, pod in pods(example):
        secret_keys = secrets_of(pod["containers"][0])
        administrator = secret_keys.get("switchyard-broker-default-user")
        passwords = secret_keys.get("switchyard-broker-users")
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


def test_the_doctors_rabbitmqctl_runs_in_the_operators_broker_pod() -> None:
    name = "JOBS_RABBITMQCTL"
    for _, pod in pods("small"):
        (command_line,) = (
            each["value"] for each in pod["containers"][0]["env"] if each["name"] == name
        )
        kubectl, _, command = command_line.partition(" -- ")
        assert command == "rabbitmqctl"
        server = f"{next(iter(of_kind('small', 'RabbitmqCluster')))}-server-0"
        assert kubectl == f"kubectl -n jobs exec {server} -c rabbitmq"
    for _, pod in pods("external-broker"):
        assert name not in {each["name"] for each in pod["containers"][0]["env"]}


def secrets_of(container: Any) -> dict[str, set[str]]:
    secret_keys: dict[str, set[str]] = {}
    for each in container["env"]:
        if reference := each.get("valueFrom", {}).get("secretKeyRef"):
            secret_keys.setdefault(reference["name"], set()).add(reference["key"])
    return secret_keys


def test_a_broker_of_the_operator_requires_the_secret_of_its_users() -> None:
    chart_values = load_values("small")
    del chart_values["broker"]["operator"]["usersSecret"]
    with pytest.raises(helm().HelmError, match=r"broker\.operator\.usersSecret"):
        render(chart_values)


@pytest.mark.parametrize("missing", ["broker", "ledger", "api"])
def test_a_missing_secret_is_refused_by_name(missing: str) -> None:
    chart_values = load_values("external-broker")
    del chart_values[missing]
    with pytest.raises(helm().HelmError, match=rf"{missing}\.existingSecret"):
        render(chart_values)


# --- every value is used, every used value exists -----------------------------------------------


def leaf_paths(tree: Any, path: str = "") -> Iterator[str]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaf_paths(value, f"{path}.{key}".strip("."))
    else:
        yield path


def test_every_value_is_used_by_a_template_and_every_used_value_exists() -> None:
    text = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    used |= {f"workers.{each}" for each in re.findall(r"\$worker\.([A-Za-z.]+)", text)}
    used_as_section = {"workers", "storage.volume", "api.ingress"}  # by `with` and `range`
    used |= {f"storage.volume.{name}" for name in ("enabled", "existingClaim")}
    used |= {"api.ingress.enabled"}
    default = helm().Chart.load(CHART).values
    kinds = "|".join(default["workers"])
    existing = {re.sub(rf"^workers\.({kinds})\.", "workers.", leaf) for leaf in leaf_paths(default)}
    used_leaves = used - used_as_section
    assert {leaf for leaf in existing if not any(covers(use, leaf) for use in used_leaves)} == set()
    assert {use for use in used_leaves if not any(covers(use, leaf) for leaf in existing)} == set()


def covers(use: str, leaf: str) -> bool:
    return leaf == use or leaf.startswith(f"{use}.")
