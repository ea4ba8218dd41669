"""The bill of materials: `python -m tests.support.sbom FILE` writes CycloneDX JSON.

What runs is what requirements/runtime.txt locks; this environment has the same versions, and the
tools of development besides, which are left out. `cyclonedx-py` reads the packages' own metadata.
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
LOCKED = re.compile(r"^([\w.-]+)==", re.MULTILINE)
COPYLEFT = re.compile(r"GPL|MPL|EPL|EUPL|CDDL|General Public|Mozilla Public", re.IGNORECASE)


def name_of(text: str) -> str:
    """Normalise a distribution's name."""
    return re.sub(r"[-_.]+", "-", text).lower()


def locked() -> list[str]:
    """Return the names in requirements/runtime.txt: all that runs, whatever needs it, on any
    system."""
    text = (ROOT / "requirements" / "runtime.txt").read_text()
    return sorted({name_of(name) for name in LOCKED.findall(text)})


def installed() -> dict[str, PackageMetadata]:
    """Return metadata of those that are locked, but for those of other systems."""
    found = {}
    for name in locked():
        try:
            found[name] = metadata(name)
        except PackageNotFoundError:
            continue
    return found


def licences_of(about: PackageMetadata) -> str:
    """Return all that a package says of its licence, but for whole texts."""
    said = about.get_all("License-Expression") or []
    said += [line for text in about.get_all("License") or [] for line in text.splitlines()[:1]]
    classifiers = about.get_all("Classifier") or []
    said += [each for each in classifiers if each.startswith("License ::")]
    return "; ".join(each for each in said if each)


def bill_of_materials() -> dict[str, Any]:
    """Describe the runtime dependencies as CycloneDX."""
    tool = str(Path(sys.executable).with_name("cyclonedx-py"))
    # Not validated: that takes minutes for the metadata of some packages. Tests look at the result.
    arguments = ["environment", "--pyproject", "pyproject.toml", "--output-reproducible"]
    arguments.append("--no-validate")
    command = [tool, *arguments, "--output-format", "JSON", "--output-file", "-", sys.executable]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    bill: dict[str, Any] = json.loads(done.stdout)
    runs = set(locked())
    bill["components"] = [each for each in bill["components"] if name_of(each["name"]) in runs]
    about = installed()
    for each in bill["components"]:
        if not each.get("licenses"):  # said in words of their own
            said = licences_of(about[name_of(each["name"])])
            each["licenses"] = [{"license": {"name": said}}]
    root = bill["metadata"]["component"]["bom-ref"]
    refs = {each["bom-ref"] for each in bill["components"]} | {root}
    kept = []
    for each in bill["dependencies"]:
        if each["ref"] in refs:
            needs = [ref for ref in each.get("dependsOn", ()) if ref in refs]
            kept.append({"ref": each["ref"]} | ({"dependsOn": needs} if needs else {}))
    bill["dependencies"] = kept
    return bill


def main() -> None:
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    bill = bill_of_materials()
    target.write_text(json.dumps(bill, indent=2) + "\n")
    print(f"{len(bill['components'])} packages: {target}")


if __name__ == "__main__":
    main()
