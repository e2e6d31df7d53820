"""The alerts of conf/prometheus/alerts.yaml that fire on what was scraped, as promtool decides it; and the problems
that the doctor names.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

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
