"""The bill of materials: `python -m tests.support.sbom FILE` writes CycloneDX JSON.

It lists the packages that requirements/runtime.txt locks. This environment has the same versions,
and tools for development, which are left out. `cyclonedx-py` reads the packages' metadata.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCKED_NAME = re.compile(r"^([\w.-]+)==", re.MULTILINE)
COPYLEFT = re.compile(r"GPL|MPL|EPL|EUPL|CDDL|General Public|Mozilla Public", re.IGNORECASE)


def name_of(text: str) -> str:
    """Normalise a distribution's name."""
    return re.sub(r"[-_.]+", "-", text).lower()


def locked_names() -> list[str]:
    """Return the names of the packages in requirements/runtime.txt, for all systems."""
    text = (ROOT / "requirements" / "runtime.txt").read_text()
    return sorted({name_of(name) for name in LOCKED_NAME.findall(text)})


def read_installed_metadata() -> dict[str, PackageMetadata]:
    """Return the metadata of the locked packages, except those for other systems."""
    found = {}
    for name in locked_names():
        try:
            found[name] = metadata(name)
        except PackageNotFoundError:
            continue
    return found


def licences_of(about: PackageMetadata) -> str:
    """Return the licences that a package's metadata names, without whole licence texts."""
    licences = about.get_all("License-Expression") or []
    licences += [line for text in about.get_all("License") or [] for line in text.splitlines()[:1]]
    classifiers = about.get_all("Classifier") or []
    licences += [each for each in classifiers if each.startswith("License ::")]
    return "; ".join(each for each in licences if each)


def bill_of_materials() -> dict[str, Any]:
    """Describe the runtime dependencies as CycloneDX."""
    tool = str(Path(sys.executable).with_name("cyclonedx-py"))
    # Not validated: that takes minutes for the metadata of some packages. Tests look at the result.
    arguments = ["environment", "--pyproject", "pyproject.toml", "--output-reproducible"]
    arguments.append("--no-validate")
    command = [tool, *arguments, "--output-format", "JSON", "--output-file", "-", sys.executable]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    bill: dict[str, Any] = json.loads(result.stdout)
    runtime_names = set(locked_names())
    bill["components"] = [
        each for each in bill["components"] if name_of(each["name"]) in runtime_names
    ]
    about = read_installed_metadata()
    for each in bill["components"]:
        if not each.get("licenses"):  # the package names its licence in free text
            licences = licences_of(about[name_of(each["name"])])
            each["licenses"] = [{"license": {"name": licences}}]
    root = bill["metadata"]["component"]["bom-ref"]
    refs = {each["bom-ref"] for each in bill["components"]} | {root}
    dependencies = []
    for each in bill["dependencies"]:
        if each["ref"] in refs:
            required = [ref for ref in each.get("dependsOn", ()) if ref in refs]
            dependencies.append(
                {"ref": each["ref"]} | ({"dependsOn": required} if required else {})
            )
    bill["dependencies"] = dependencies
    return bill


def main() -> None:
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    bill = bill_of_materials()
    target.write_text(json.dumps(bill, indent=2) + "\n")
    print(f"{len(bill['components'])} packages: {target}")


if __name__ == "__main__":
    main()
