"""The Helm chart as Helm's own library renders it, and what Kubernetes makes of an environment."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "switchyard"

Manifest = dict[str, Any]
Secrets = Mapping[str, Mapping[str, str]]
"""By name, then by key."""


def helm() -> Any:
    """Import Helm's library. It starts threads when it is imported, so no module of tests imports
    it (forks.py)."""
    import helm_python

    return helm_python


def values(example: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "examples" / f"{example}.yaml").read_text())
    return loaded


@cache
def rendered(example: str) -> tuple[Manifest, ...]:
    return render(values(example))


def render(given: dict[str, Any]) -> tuple[Manifest, ...]:
    manifests = helm().Chart.load(CHART).render(given, name="switchyard", namespace="jobs")
    return tuple(
        document
        for path, text in sorted(manifests.items())
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document is not None
    )


def of_kind(example: str, kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in rendered(example) if each["kind"] == kind}


def pods(example: str) -> Iterator[tuple[str, Manifest]]:
    for each in rendered(example):
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
                r"\$\((\w+)\)", lambda name: environment[name[1]], each["value"]
            )
    return environment
