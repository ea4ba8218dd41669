"""The Helm chart, rendered by Helm's own library, and environments as Kubernetes resolves them."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "switchyard"

Manifest = dict[str, Any]
Secrets = Mapping[str, Mapping[str, str]]
"""Values by name of the secret, then by key."""


def helm() -> Any:
    """Import Helm's library. It starts threads when it is imported, so no module of tests imports
    it (forks.py)."""
    import helm_python

    return helm_python


def load_values(example: str) -> dict[str, Any]:
    """Return the values of an example in the chart's folder."""
    loaded: dict[str, Any] = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text())
    return loaded


@cache
def render_example(example: str) -> tuple[Manifest, ...]:
    return render(load_values(example))


def render(chart_values: dict[str, Any]) -> tuple[Manifest, ...]:
    """Return the manifests of the chart with these values."""
    manifests = helm().Chart.load(CHART).render(chart_values, name="switchyard", namespace="jobs")
    return tuple(
        document
        for path, text in sorted(manifests.items())
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document is not None
    )


def of_kind(example: str, kind: str) -> dict[str, Manifest]:
    """Return an example's manifests of one kind, by name."""
    return {
        each["metadata"]["name"]: each for each in render_example(example) if each["kind"] == kind
    }


def pods(example: str) -> Iterator[tuple[str, Manifest]]:
    """Yield the name and the pod's specification of each deployment and job."""
    for each in render_example(example):
        if each["kind"] in ("Deployment", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def hooks(example: str) -> list[tuple[str, Manifest]]:
    """Return names and containers of the set-up jobs, in the order in which Helm runs them."""
    jobs = sorted(
        of_kind(example, "Job").items(),
        key=lambda job: int(job[1]["metadata"]["annotations"]["helm.sh/hook-weight"]),
    )
    return [(name, job["spec"]["template"]["spec"]["containers"][0]) for name, job in jobs]


def environment_of(container: Manifest, secrets: Secrets) -> dict[str, str]:
    """Return the environment of a container: with values of secrets, and `$(NAME)` replaced by
    earlier variables."""
    environment: dict[str, str] = {}
    for each in container["env"]:
        if "valueFrom" in each:
            reference = each["valueFrom"]["secretKeyRef"]
            environment[each["name"]] = secrets[reference["name"]][reference["key"]]
        else:
            environment[each["name"]] = re.sub(
                r"\$\((\w+)\)", lambda match: environment[match[1]], each["value"]
            )
    return environment
