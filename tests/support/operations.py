"""Checks what operators use: alerts, problems that the doctor names, Compose files and the Kubernetes chart.

promtool decides which alerts of conf/prometheus/alerts.yaml fire on what was scraped. The JSON schema of the Compose
Specification comes from a package that contains it, instead of a copy here. helm and kubeconform, which
`make check-kubernetes` builds, render and validate the chart in kubernetes/.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from spark_log.cluster.cluster import Cluster
from spark_log.facts.doctor.examination import examine
from spark_log.facts.doctor.findings import Severity

ALERTS = Path(__file__).parents[2] / "conf/prometheus/alerts.yaml"
_MINUTES = 120
_FIRING = 'count by (alertname) (ALERTS{alertstate="firing"})'

Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by name and sorted labels."""


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples of an exposition."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metrics_of_alerts() -> dict[str, set[str]]:
    """The names of metrics by alert."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: set(re.findall(r"\b(?:kafka|spark_log)_\w+", rule["expr"])) for rule in rules}


def firing(first: Samples, second: Samples, seconds: float) -> set[str]:
    """The alerts that fire if what changed between two scrapes, `seconds` apart, goes on for two hours."""
    named = set.union(*metrics_of_alerts().values())
    series = []
    for (name, labels), value in second.items():
        if name in named:
            shown = ",".join(f"{key}={json.dumps(text)}" for key, text in labels)
            growth = (value - first.get((name, labels), value)) / seconds * 60
            values = f"{value:f}{growth:+f}x{_MINUTES}"
            series.append({"series": f"{name}{{{shown}}}", "values": values})
    query = {"expr": _FIRING, "eval_time": f"{_MINUTES - 5}m", "exp_samples": []}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [query]}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "test.yaml"
        file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [test]}))
        done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    found = set(re.findall(r'alertname="(\w+)"', done.stdout + done.stderr))
    assert found or done.returncode == 0, done.stdout + done.stderr  # an invalid file names no alert
    return found


DOCTOR_S_MAX = 12.0
"""Only a test of something that hangs takes this long, and has a shorter limit."""


def problems(cluster_or_address: Cluster | str, *topics: str, limit_s: float = DOCTOR_S_MAX) -> list[tuple[str, str]]:
    """The checks that need action, with what was seen and what to do, without notes."""
    address = (
        cluster_or_address if isinstance(cluster_or_address, str) else cluster_or_address.store.address.with_password
    )
    found = examine(address, topics, limit_s)
    assert all(finding.seen for finding in found)
    assert all(finding.remedy for finding in found if finding.severity is not Severity.OK)
    return [(each.check, f"{each.seen} -> {each.remedy}") for each in found if each.severity.needs_action]


def problem(cluster_or_address: Cluster | str, *topics: str, limit_s: float = DOCTOR_S_MAX) -> tuple[str, str]:
    """The only problem."""
    [(check, text)] = problems(cluster_or_address, *topics, limit_s=limit_s)
    return check, text


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
