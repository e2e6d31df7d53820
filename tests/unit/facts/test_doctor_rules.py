"""Rules of the doctor at their limits."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from spark_log.cluster.lease import LeaseStatus
from spark_log.cluster.store_directory import ACTIVE, DRAINING
from spark_log.config import ClusterSettings
from spark_log.facts.doctor import limits
from spark_log.facts.doctor.cluster_rules import check_coordinator
from spark_log.facts.doctor.file_rules import FileMode, RetiredFiles, check_modes, check_retired, check_unnamed
from spark_log.facts.doctor.findings import Severity
from spark_log.facts.doctor.host_rules import HostFacts, check_hosts
from spark_log.facts.doctor.log_dir_rules import LogDirFacts, check_log_dir
from spark_log.facts.doctor.settings_rules import check_cluster
from spark_log.facts.doctor.store_rules import (
    FolderFacts,
    PostgresFacts,
    SqliteFacts,
    check_clock,
    check_folder,
    check_postgres,
    check_schema,
    check_sqlite,
)
from spark_log.facts.doctor.version_rules import KNOWN_RANGES, PYTHON_RANGE, Versions, check_versions, release_of

REPOSITORY = Path(__file__).resolve().parents[3]
GIB = 1 << 30

GOOD_VERSIONS = Versions("0.1.0", (3, 11, 7), {"pyspark": "4.2.0", "deltalake": "1.6.6", "delta-spark": "4.4.0"}, 17)
GOOD_POSTGRES = PostgresFacts(
    "17.1", "on", "on", "on", "on", 10, 100, 299.0, (7, "psql"), "", 0, 0, True, 1_000_000_000, 8_000_000
)  # fmt: skip
GOOD_SQLITE = SqliteFacts("wal", 2, 1_000, 128 << 20)
GOOD_FOLDER = FolderFacts("/c", False, (), GIB, 10 * GIB)
GOOD_LOG_DIR = LogDirFacts(1, 1, "/d", True, None, None, 200.0, -5_000.0, 10 * GIB, 100 * GIB, 1_000, GIB, None)


def severities(findings: list[Any]) -> list[Severity]:
    for finding in findings:
        assert finding.seen
        assert bool(finding.remedy) == (finding.severity is not Severity.OK)
    return [finding.severity for finding in findings]


OK, NOTE, WARNING, ERROR = [[severity] for severity in Severity]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, OK),
        ({"python": (3, 10, 1)}, ERROR),
        ({"python": (3, 14, 0)}, ERROR),
        ({"packages": {"pyarrow": "20.0.0"}}, WARNING),
        ({"packages": {"pyarrow": "21"}}, OK),
        ({"packages": {"deltalake": "2.0.0"}}, WARNING),
        ({"packages": {"pyspark": "4.3.0"}}, OK),
        ({"packages": {"pyspark": "4.3.0", "delta-spark": "4.4.0"}}, WARNING),
        ({"java": None}, NOTE),
        ({"java": 11}, NOTE),
        ({"java": None, "packages": {}}, OK),
    ],
)
def test_versions(change: dict[str, Any], expected: list[Severity]) -> None:
    assert severities(check_versions(replace(GOOD_VERSIONS, **change))) == expected


def test_the_known_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for group in project["optional-dependencies"].values() for text in group)]
    for name, (least, below) in KNOWN_RANGES.items():
        requirement = next(each for each in map(Requirement, texts) if each.name == name)
        dotted = [".".join(map(str, version)) for version in (least, below) if version is not None]
        given = {specifier.operator: specifier.version for specifier in requirement.specifier}
        assert [given[operator] for operator in (">=", "<") if operator in given] == dotted, name
    low, high = (".".join(map(str, version)) for version in PYTHON_RANGE)
    assert project["requires-python"] == f">={low},<{high}"


@pytest.mark.parametrize(("text", "expected"), [("4.2.0", (4, 2, 0)), ("1.6rc1", (1, 6)), ("21", (21,)), ("dev", ())])
def test_numbers_of_a_version(text: str, expected: tuple[int, ...]) -> None:
    assert release_of(text) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, OK),
        ({"connections": 80}, OK),
        ({"connections": 81}, WARNING),
        ({"oldest_transaction_s": 301.0}, WARNING),
        ({"oldest_transaction_s": None, "oldest_session": None}, OK),
        ({"synchronous_standby_names": "*"}, ERROR),
        ({"synchronous_standby_names": "*", "standbys": 1, "synchronous_standbys": 1}, NOTE),
        ({"synchronous_standby_names": "*", "standbys": 1}, ERROR),
        ({"synchronous_standby_names": "*", "standbys": 1, "sees_standbys": False}, NOTE),
        ({"synchronous_standby_names": "*", "sees_standbys": False}, ERROR),
        ({"standbys": 1}, WARNING),
        ({"accepts_promotions": True}, WARNING),
        ({"accepts_promotions": True, "standbys": 1}, WARNING * 2),
        ({"accepts_promotions": True, "synchronous_standby_names": "*", "standbys": 1, "synchronous_standbys": 1}, OK),
        ({"transaction_id_age": 1_000_000_001}, WARNING),
        ({"transaction_id_age": 1_600_000_001}, ERROR),
        ({"autovacuum": "off"}, NOTE),
        ({"idle_slots": "node3", "idle_slot_bytes": 4 * GIB}, OK),
        ({"idle_slots": "node3", "idle_slot_bytes": 4 * GIB + 1}, WARNING),
        ({"identity_problem": "restored or promoted", "autovacuum": "off"}, ERROR + NOTE),
    ],
)
def test_postgresql(change: dict[str, Any], expected: list[Severity]) -> None:
    assert severities(check_postgres(replace(GOOD_POSTGRES, **change))) == expected


PRIMARY, STANDBY = HostFacts("a:1", system="7", timeline=2), HostFacts("b:1", system="7", standby=True)


@pytest.mark.parametrize(
    ("hosts", "expected", "seen"),
    [
        ([PRIMARY, STANDBY], OK, "all 2 hosts answer, a:1 is the primary"),
        ([PRIMARY, HostFacts("b:1", failure="no")], WARNING, "b:1 does not answer: no;"),
        ([PRIMARY, HostFacts("b:1", failure="no", refused=True)], NOTE, "b:1 answers, but this role may not"),
        ([PRIMARY, HostFacts("b:1", system="8", standby=True)], ERROR, "a:1: system 7; b:1: system 8"),
        ([PRIMARY, HostFacts("b:1", system="7", timeline=3)], ERROR, r"a:1 \(timeline 2\), b:1 \(timeline 3\) both"),
        ([STANDBY, STANDBY], ERROR, "no host that answers is the primary"),
        ([HostFacts("b:1", failure="no")], WARNING, "b:1 does not answer"),
    ],
)
def test_hosts_of_an_address(hosts: list[HostFacts], expected: list[Severity], seen: str) -> None:
    findings = check_hosts(hosts)
    assert severities(findings) == expected
    assert re.search(seen, findings[0].seen)


def test_a_promotion_that_only_a_coordinator_accepts_needs_one() -> None:
    controller, coordinator = LeaseStatus("controller", None, 0, 0), LeaseStatus("coordinator", None, 0, 0)
    assert severities(check_coordinator(controller, coordinator, needed=False)) == NOTE
    assert severities(check_coordinator(controller, coordinator, needed=False, accepts_promotions=True)) == WARNING


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, OK),
        ({"journal_mode": "delete"}, ERROR),
        ({"synchronous": 1}, ERROR),
        ({"log_bytes": (128 << 20) + 1}, WARNING),
    ],
)
def test_sqlite(change: dict[str, Any], expected: list[Severity]) -> None:
    assert severities(check_sqlite(replace(GOOD_SQLITE, **change))) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, OK),
        ({"read_only": True, "refused": ("metadata.sqlite",)}, ERROR),
        ({"refused": ("metadata.sqlite",)}, ERROR),
        ({"free": GIB - 1}, WARNING),
        ({"free": GIB // 6}, ERROR),
    ],
)
def test_folder_of_sqlite(change: dict[str, Any], expected: list[Severity]) -> None:
    assert severities(check_folder(replace(GOOD_FOLDER, **change))) == expected


@pytest.mark.parametrize(
    ("revision", "expected"), [("v7", OK), ("v6", WARNING), ("v8", ERROR), ("0012", ERROR), (None, ERROR)]
)
def test_schema(revision: str | None, expected: list[Severity]) -> None:
    assert severities([check_schema(revision, "v7", "0.1.0", usable=False)]) == expected


def test_a_newer_schema_may_be_usable() -> None:
    assert severities([check_schema("v8", "v7", "0.1.0", usable=True)]) == OK


@pytest.mark.parametrize(("ahead_ms", "uncertain_ms", "expected"), [
    (1_000, 0, OK), (1_001, 0, WARNING), (-1_001, 0, WARNING), (1_500, 500, OK),
])  # fmt: skip
def test_clock(ahead_ms: float, uncertain_ms: float, expected: list[Severity]) -> None:
    assert severities([check_clock(ahead_ms, uncertain_ms)]) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, OK),
        ({"read_failure": "gone"}, ERROR),
        ({"write_failure": "read only"}, ERROR),
        ({"write_failure": "no space", "free": 0}, ERROR),
        ({"free": 10 * GIB - 1}, WARNING),
        ({"free": 2 * GIB - 1}, ERROR),
        ({"grows": 10 * GIB / (3 * 86_400)}, OK),
        ({"grows": 10 * GIB / (3 * 86_400) + 1}, WARNING),
        ({"free_inodes": 999}, ERROR),
        ({"deleted_bytes": GIB + 1}, WARNING),
        ({"write_ms": 201.0}, WARNING),
        ({"write_ms": 2_000.0, "local": False, "free": None, "size": None}, OK),
        ({"write_ms": 2_001.0, "local": False, "free": None, "size": None}, WARNING),
        ({"clock_ahead_ms": 5_001.0}, WARNING),
    ],
)
def test_log_dir(change: dict[str, Any], expected: list[Severity]) -> None:
    assert severities(check_log_dir(replace(GOOD_LOG_DIR, **change))) == expected


@pytest.mark.parametrize(
    ("mode", "secret", "expected"),
    [
        (0o100644, False, OK),
        (0o100644, True, WARNING),
        (0o100640, True, OK),
        (0o40757, False, WARNING),
        (0o41777, False, OK),
        (0o100602, False, WARNING),
    ],
)
def test_modes(mode: int, secret: bool, expected: list[Severity]) -> None:
    assert severities(check_modes([FileMode("f", mode, secret)])) == expected


def test_files_that_wait() -> None:
    day_ms = 24 * 3_600_000
    assert severities([check_retired(RetiredFiles(9, 1, day_ms))]) == OK
    assert severities([check_retired(RetiredFiles(9, 1, day_ms + 1))]) == WARNING
    assert severities([check_unnamed(0, 0)]) == OK
    assert severities([check_unnamed(1, 5)]) == NOTE
    for files in (0, 1):
        assert "not known for topics of store east" in check_unnamed(files, 5, ["east"]).seen


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, OK),
        ({"group_min_session_timeout_ms": 1_800_001}, ERROR),
        ({"group_consumer_heartbeat_interval_ms": 22_500}, OK),
        ({"group_consumer_heartbeat_interval_ms": 22_501}, WARNING),
        ({"metrics_interval_ms": -1}, NOTE),
        ({"store_answer_timeout_ms": 5_000}, WARNING),
        ({"topic_default_store": "east"}, OK),
        ({"topic_default_store": "west"}, WARNING),
        ({"topic_default_store": "none"}, WARNING),
    ],
)
def test_cluster_settings(change: dict[str, Any], expected: list[Severity]) -> None:
    states = {"east": ACTIVE, "west": DRAINING}
    assert severities(check_cluster(replace(ClusterSettings(), **change), {}, states)) == expected


def test_limits_are_those_of_the_alerts() -> None:
    groups = yaml.safe_load((REPOSITORY / "conf/prometheus/alerts.yaml").read_text())["groups"]
    rules = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    waits = {rule["alert"]: rule.get("for") for group in groups for rule in group["rules"]}
    of_alerts = {
        "SparkLogLagGrows": limits.GROUP_LAG_S_MAX,
        "SparkLogHangingTransaction": limits.TRANSACTION_S_MAX,
    }
    for alert, seconds in of_alerts.items():
        found = re.search(r"> (\d+)", rules[alert])
        assert found is not None
        assert int(found[1]) == seconds, alert
    limit = f"{limits.TABLE_LAG_BOUNDS_MAX} * spark_log_table_lag_bound_seconds"
    assert rules["SparkLogTableStale"] == f"spark_log_publication_age_seconds > {limit}"
    assert waits["SparkLogTableStale"] == f"{limits.TABLE_STALE_MS_MIN // 60_000}m"
