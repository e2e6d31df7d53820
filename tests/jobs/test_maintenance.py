"""The maintenance job, up to where Spark would start."""

import json
from pathlib import Path

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance import TASKS
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.jobs import maintenance
from spark_log.spark.jobs.maintenance import JOB
from tests.jobs.conftest import Refused


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    everything = tuple(task.name for task in TASKS if task.every_ms is not None)
    least = JOB.parse(["--cluster", "/log"])
    assert (least.cluster, least.topics, least.tasks, least.dry_run, least.json) == (
        "/log",
        None,
        everything,
        False,
        False,
    )
    given = JOB.parse(["--task", "merge", "--task", "seal", "--topic", "t", "--topic", "s", "--topic", "t", "--json"])
    assert (given.cluster, given.topics, given.tasks, given.json) == ("/data/log", ("t", "s"), ("seal", "merge"), True)
    assert JOB.parse(["--task", "compact", "--force"]).force and JOB.parse(["--force"]).force and not given.force
    assert "secret" not in repr(JOB.parse(["--cluster", "postgresql+psycopg://me:secret@db/log"]))
    with pytest.raises(SystemExit) as ended:
        JOB.parse(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert all(task.name in told for task in TASKS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "/x", "--task", "tidy"], "--task: 'tidy' is not one of"),
        (["--cluster", "/x", "--top", "t"], "No such option: --top"),
        (["--cluster", "/x", "--task", "merge", "--force"], "--force: only for task compact"),
        (["--cluster", "/x", "--dry-run", "--force"], "--force: only for task compact, and not with --dry-run"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused(JOB.parse, arguments)


def test_spark_is_not_started_for_tasks_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(tmp_path / "cluster")
    assert maintenance.main(["--cluster", address]) == 1
    with Cluster.init(address) as cluster:
        create_topic(cluster, "plain")
    assert maintenance.main(["--cluster", address, "--topic", "nowhere"]) == 1
    assert maintenance.main(["--cluster", address, "--task", "compact", "--topic", "plain"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("maintenance: no cluster at ")
    assert lines[1].startswith("maintenance: topic 'nowhere': unknown topic or partition (`spark-log topic list`")
    assert lines[2].endswith("topic 'plain': cleanup.policy is 'delete', expected 'compact' or 'compact,delete'")
    assert maintenance.main(["--cluster", address, "--task", "seal", "--task", "delta", "--json"]) == 0
    *progress, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["text"] for each in progress] == ["seal", "delta"]
    assert (summary["event"], summary["reports"], summary["failures"]) == ("summary", 0, [])
