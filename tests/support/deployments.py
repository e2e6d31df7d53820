"""The files of deployments: the schema of Compose files, and the rendered and validated chart of Kubernetes.

The JSON schema of the Compose Specification comes from a package that contains it, instead of a copy here. helm and
kubeconform, which `make check-kubernetes` builds, render and validate the chart in kubernetes/.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

GO_MODULE = "github.com/compose-spec/compose-go/v2@v2.16.2"
"""The library of the specification, for machines with Go."""
PYTHON_PACKAGE = "docker-compose==1.29.2"
"""An older schema, for machines without Go. Later versions of the schema only add to it."""


def compose_schema(folder: Path) -> dict[str, Any]:
    """The schema; `folder` gets the downloaded files."""
    text = _from_go(folder) if shutil.which("go") else _from_pip(folder)
    schema: dict[str, Any] = json.loads(text)
    return schema


def _from_go(folder: Path) -> str:
    download = ["go", "mod", "download", "-json", GO_MODULE]
    done = subprocess.run(download, cwd=folder, check=True, capture_output=True, text=True, timeout=300)
    return Path(json.loads(done.stdout)["Dir"], "schema", "compose-spec.json").read_text()


def _from_pip(folder: Path) -> str:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PYTHON_PACKAGE]
    subprocess.run(download, check=True, timeout=300)
    (wheel,) = folder.glob("docker_compose-*.whl")
    return zipfile.ZipFile(wheel).read("compose/config/compose_spec.json").decode()


FOLDER = Path(__file__).parents[2] / "kubernetes"
CHART = FOLDER / "chart" / "spark-log"
_SCHEMAS = FOLDER / "schemas" / "{{ .ResourceKind }}{{ .KindSuffix }}.json"

Object = dict[str, Any]
"""One object of Kubernetes, as its YAML says."""


def find_program(name: str) -> str | None:
    """Return the path of helm or kubeconform, or None if it has not been built."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "spark-log" / "bin" / name
    return str(built) if built.exists() else shutil.which(name)


def render(*options: str) -> str:
    """Return what `helm template` prints for the release `log` in the namespace `logs`.

    Raise ValueError with helm's error if it refuses the values.
    """
    done = _run("helm", "template", "log", str(CHART), "--namespace", "logs", *options)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return done.stdout


def lint(*options: str) -> None:
    """Raise ValueError if `helm lint --strict` finds a mistake."""
    done = _run("helm", "lint", "--strict", str(CHART), *options)
    if done.returncode != 0:
        raise ValueError(done.stdout)


def validate(text: str) -> None:
    """Raise ValueError if an object in the YAML text does not follow its schema, or has no schema."""
    done = _run("kubeconform", "-strict", "-schema-location", str(_SCHEMAS), stdin=text)
    if done.returncode != 0:
        raise ValueError(done.stdout + done.stderr)


def objects(text: str) -> list[Object]:
    """Return the objects in the YAML text."""
    return [document for document in yaml.safe_load_all(text) if document]


def pods(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the component and the pod's spec of each Deployment, StatefulSet and Job."""
    for each in found:
        if each["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = each["spec"]["template"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def _run(name: str, *arguments: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
    program = find_program(name)
    assert program is not None
    return subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=60)
