"""The compaction job, up to where Spark would start."""

from pathlib import Path

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.jobs import compact
from spark_log.spark.jobs.compact import JOB, CompactArguments


def test_arguments() -> None:
    assert JOB.parse(["--cluster", "/log"]) == CompactArguments("/log", None, False, False)
    given = JOB.parse(["--topic", "b", "--topic", "a", "--topic", "b", "--force", "--json"])
    assert (given.cluster, given.topics, given.force, given.json) == ("/data/log", ("b", "a"), True, True)
    assert "secret" not in repr(JOB.parse(["--cluster", "postgresql+psycopg://me:secret@db/log"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cluster", "/x", "--stream"], "No such option: --stream"),
        (["--cluster", "/x", "--topic"], "Option '--topic' requires an argument"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        JOB.parse(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = str(tmp_path / "cluster")
    assert compact.main(["--cluster", address]) == 1
    with Cluster.init(address) as cluster:
        create_topic(cluster, "plain")
    assert compact.main(["--cluster", address, "--topic", "nowhere"]) == 1
    assert compact.main(["--cluster", address, "--topic", "plain"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(line.startswith("compact: ") for line in lines)
    assert "'nowhere'" in lines[1]
    assert "cleanup.policy is 'delete', expected 'compact' or 'compact,delete'" in lines[2]
