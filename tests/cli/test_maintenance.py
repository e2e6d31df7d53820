"""`spark-log maintenance`, as its users meet it."""

import inspect
import json
import shutil
from pathlib import Path

from spark_log.cli.maintenance import maintenance
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import create_topic
from spark_log.log.log import Log
from spark_log.maintenance import TASKS
from tests.cli.test_cli import cluster as cluster
from tests.cli.test_cli import ok, run
from tests.support.records import read_all
from tests.support.topics import append

FILES = {"inline.max.bytes": "0", "retention.ms": "-1"}


def test_help_lists_the_tasks() -> None:
    for task in TASKS:
        assert f"- `{task.name}`: {task.summary}\n" in (inspect.getdoc(maintenance) or "")


def test_what_it_tells(cluster: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        topic = create_topic(opened, "t", configs=FILES)
        other = create_topic(opened, "other", configs=FILES)
        assert topic is not None and other is not None
        log = Log(opened)
        for value in ("a", "b", "c", "d"):
            append(log, "t", value)
            append(log, "other", value)

        assert ok("maintenance", "seal", cluster=cluster) == "Nothing to do.\n"
        shown = ok("maintenance", "seal", "merge", "--topic", "t", cluster=cluster)
        (row,) = [line.split("│") for line in shown.splitlines() if "merge" in line]
        cells = [cell.strip() for cell in row[1:-1]]
        assert cells[:4] == ["merge", "t", "1", "4 -> 1"]
        assert cells[5] == "4 -> 4"
        assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c", "d"]

        (line,) = ok("maintenance", "merge", "--json", cluster=cluster).splitlines()
        report = json.loads(line)
        assert (report["task"], report["topic"], report["partitions"], report["notes"]) == ("merge", "other", 1, [])
        assert (report["before"]["files"], report["after"]["files"]) == (4, 1)
        assert report["before"]["records"] == report["after"]["records"] == 4
        log.close()


def test_what_is_wrong(cluster: Path) -> None:
    unknown = run("maintenance", "tidy", cluster=cluster)
    assert unknown.exit_code == 2
    assert "'tidy'" in unknown.stderr and "merge" in unknown.stderr
    missing = run("maintenance", "--topic", "nowhere", cluster=cluster)
    assert missing.exit_code == 1
    assert missing.stderr == "spark-log: topic 'nowhere': unknown topic or partition\n"


def test_a_failure_is_told_and_keeps_nothing_else_from_being_done(cluster: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        for name in ("broken", "good"):
            create_topic(opened, name, configs=FILES)
        log = Log(opened)
        for value in ("a", "b"):
            append(log, "broken", value)
            append(log, "good", value)
        folder = log.find_topic("broken").folder
        log.close()
    (there,) = cluster.glob(f"*/{folder}/_segments")
    shutil.rmtree(there)
    done = run("maintenance", "merge", "--json", cluster=cluster)
    assert done.exit_code == 1
    broken, good = map(json.loads, done.stdout.splitlines())
    assert (broken["topic"], broken["partitions"]) == ("broken", 0)
    assert "is missing" in broken["notes"][0]
    assert (good["topic"], good["after"]["files"]) == ("good", 1)
    assert done.stderr.startswith("spark-log: merge: ")
    assert len(done.stderr.splitlines()) == 1
