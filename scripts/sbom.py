"""Writes a software bill of materials in CycloneDX's format: Python distributions, Spark's JARs, Debian's packages.

    python scripts/sbom.py OUTPUT.cdx.json                   # of .venv, without Debian's packages
    python scripts/sbom.py OUTPUT.cdx.json --root FOLDER     # of the image that is mounted at FOLDER

The output is the same for the same packages. cyclonedx-bom runs in an environment of its own, in the user's cache.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

REPOSITORY = Path(__file__).parents[1]
TOOL = "cyclonedx-bom==7.5.0"

Component = dict[str, Any]

_COORDINATES = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--root", type=Path, help="folder of an image's root file system")
    arguments = parser.parse_args()
    environment = REPOSITORY / ".venv" if arguments.root is None else arguments.root / "opt/venv"
    [site_packages] = environment.glob("lib/python3*/site-packages")
    bill = _python_bill(site_packages)
    jars = [_jar_component(path) for path in site_packages.glob("pyspark/jars/*.jar")]
    debian = [] if arguments.root is None else _debian_components(arguments.root / "var/lib/dpkg")
    bill["components"] = sorted([*bill.get("components", []), *jars, *debian], key=lambda each: str(each["bom-ref"]))
    missing = _distributions(site_packages) - {_normal(each["name"]) for each in _all(bill)}
    if missing:
        sys.exit(f"the bill of materials lacks {', '.join(sorted(missing))}")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n")
    python = [each for each in _all(bill) if str(each.get("purl", "")).startswith("pkg:pypi/")]
    licensed = sum("licenses" in each for each in python)
    print(
        f"{arguments.output}: {len(python)} Python distributions ({licensed} with a licence), {len(jars)} JARs,"
        f" {len(debian)} packages of Debian"
    )


def _python_bill(site_packages: Path) -> Component:
    """Return the bill of materials of the distributions in the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        # cyclonedx-py asks an interpreter for its path. That of an image does not run here, so this one answers for it.
        interpreter = Path(scratch) / "python"
        interpreter.write_text(f"#!/bin/sh\necho '{json.dumps([str(site_packages)])}'\n")
        interpreter.chmod(0o755)
        command = [_tool(), "environment", "--output-reproducible", "--spec-version", "1.6"]
        command += ["--pyproject", str(REPOSITORY / "pyproject.toml"), str(interpreter)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    bill: Component = json.loads(done.stdout)
    return bill


def _tool() -> str:
    """Return the path of cyclonedx-py, and install it first if it is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spark-log" / TOOL
    program = cache / "bin" / "cyclonedx-py"
    if not program.exists():
        venv.create(cache, with_pip=True, clear=True)
        subprocess.run([cache / "bin" / "pip", "install", "--quiet", TOOL], check=True)
    return str(program)


def _jar_component(path: Path) -> Component:
    """Return the JAR with Maven's coordinates, or with its file name if it has none or those of several artifacts."""
    with zipfile.ZipFile(path) as jar:
        named = [name for name in jar.namelist() if _COORDINATES.fullmatch(name)]
        text = jar.read(named[0]).decode() if len(named) == 1 else ""
    found = dict(line.strip().split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    if not {"groupId", "artifactId", "version"} <= set(found):
        return {"type": "file", "name": path.name, "bom-ref": f"jar:{path.name}"}
    purl = f"pkg:maven/{found['groupId']}/{found['artifactId']}@{found['version']}"
    version, group = found["version"], found["groupId"]
    return {
        "type": "library", "group": group, "name": found["artifactId"], "version": version, "purl": purl,
        "bom-ref": f"jar:{path.name}",
    }  # fmt: skip


def _debian_components(database: Path) -> list[Component]:
    """Return the packages that are installed, according to the folder of dpkg's database."""
    form = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
    command = ["dpkg-query", f"--admindir={database}", "--show", f"--showformat={form}"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    components = []
    for line in listed.splitlines():
        status, name, version, architecture = line.split("\t")
        if status.startswith("ii"):
            purl = f"pkg:deb/debian/{name}@{quote(version)}?arch={architecture}"
            components.append({"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl})
    return components


def _distributions(site_packages: Path) -> set[str]:
    return {_normal(each.name) for each in distributions(path=[str(site_packages)])}


def _all(bill: Component) -> list[Component]:
    return [bill["metadata"]["component"], *bill["components"]]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main()
