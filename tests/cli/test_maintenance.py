"""`spark-log maintenance`, as its users meet it."""

import inspect
import json
import re
import shutil
from pathlib import Path

from deltalake import DeltaTable

from spark_log.cli.operations.maintenance import maintenance
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance import TASKS
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.cli.conftest import ok, run
from tests.support.records import read_all
from tests.support.topics import append

FILES = {"inline.max.bytes": "0", "retention.ms": "-1"}


def test_help_lists_the_tasks() -> None:
    for task in TASKS:
        assert f"- `{task.name}`: {task.summary}\n" in (inspect.getdoc(maintenance) or "")


def test_report_of_a_run(cluster: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        topic = create_topic(opened, "t", configs=FILES)
        other = create_topic(opened, "other", configs=FILES)
        assert topic is not None and other is not None
        log = ClientLog(opened)
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


def test_seal_now_completes_the_delta_table(cluster: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        create_topic(opened, "t", configs={"delta.max.lag.ms": "600000"})
        log = ClientLog(opened)
        append(log, "t", "a", "b")
        waiting = ok("maintenance", "seal", cluster=cluster)
        assert waiting == (
            "Nothing to do.\n2 records are not in the Delta tables yet: delta.max.lag.ms has not passed."
            " `spark-log maintenance seal --now` does not wait for it.\n"
        )
        before = ok("topic", "describe", "t", cluster=cluster).splitlines()[-1]
        assert re.fullmatch(r"Delta table .*/t-[0-9a-f]{8}: 2 records behind, for \d+\.\d s", before), before
        assert "seal" in ok("maintenance", "seal", "--now", cluster=cluster)
        assert ok("topic", "describe", "t", cluster=cluster).splitlines()[-1].endswith(": up to date")
        (described,) = json.loads(ok("topic", "describe", "t", "--json", cluster=cluster))
        (delta,) = described["tables"]
        assert (delta["version"] is not None, delta["lag_records"], delta["lag_ms"]) == (True, 0, 0)
        assert len(DeltaTable(delta["location"]).to_pyarrow_table()) == 2
        log.close()


def test_errors_are_one_line(cluster: Path) -> None:
    unknown = run("maintenance", "tidy", cluster=cluster)
    assert unknown.exit_code == 2
    assert "'tidy'" in unknown.stderr and "merge" in unknown.stderr
    missing = run("maintenance", "--topic", "nowhere", cluster=cluster)
    assert missing.exit_code == 1
    assert missing.stderr.startswith("spark-log: topic 'nowhere': unknown topic or partition (`spark-log topic list`")


def test_one_failing_task_is_reported_and_does_not_stop_the_others(cluster: Path) -> None:
    with Cluster.open(str(cluster)) as opened:
        for name in ("broken", "good"):
            create_topic(opened, name, configs=FILES)
        log = ClientLog(opened)
        for value in ("a", "b"):
            append(log, "broken", value)
            append(log, "good", value)
        folder = log.find_topic("broken").folder
        log.close()
    (there,) = cluster.glob(f"*/{folder}/_segments")
    shutil.rmtree(there)
    done = run("maintenance", "merge", "--json", cluster=cluster)
    assert done.exit_code == 1
    broken, good = sorted(map(json.loads, done.stdout.splitlines()), key=lambda report: report["topic"])
    assert (broken["topic"], broken["partitions"]) == ("broken", 0)
    assert "is missing" in broken["notes"][0]
    assert (good["topic"], good["after"]["files"]) == ("good", 1)
    assert done.stderr.startswith("spark-log: merge: ")
    assert len(done.stderr.splitlines()) == 1


def test_old_records_cause_a_warning_appear_in_a_dry_run_and_stay_without_retention(events: Path) -> None:
    """Flights of 2013 into a topic with the default retention.ms, as a user does who does not know of it."""
    first_ms, day_ms = 1_357_034_400_000, 86_400_000
    records = ({"key": f"N{n}", "value": "on time", "timestamp": first_ms + n * day_ms} for n in range(5))
    flights = "".join(f"{json.dumps(record)}\n" for record in records)
    sent = run("produce", "events", "--format", "json", stdin=flights, cluster=events)
    assert sent.exit_code == 0
    assert sent.stderr == (
        "Warning: topic 'events': 5 records from 2013-01-01 to 2013-01-05, older than retention.ms=604800000 (7 days):"
        " retention deletes such records at its next run. To keep them: `spark-log topic alter events --config"
        " retention.ms=-1`, or write without timestamps\n"
    )
    for _ in range(2):  # the first has changed nothing
        (line,) = ok("maintenance", "--dry-run", "--json", cluster=events).splitlines()
        planned = json.loads(line)
        assert (planned["task"], planned["topic"], planned["dry_run"]) == ("retention", "events", True)
        assert (planned["before"]["records"], planned["after"]["records"]) == (5, 0)
    shown = ok("maintenance", "retention", "--dry-run", cluster=events)
    assert shown.startswith("Dry run: nothing was changed. A run would do this: ")
    assert "5 -> 0" in shown
    assert "retention.ms=604800000 (7 days): newest record of the segments 2013-01-05T10:00:00.000Z" in shown
    assert len(ok("consume", "events", "--json", cluster=events).splitlines()) == 5

    warning = sent.stderr.split("`")[1]
    ok(*warning.split()[1:], cluster=events)
    assert ok("maintenance", "--dry-run", cluster=events) == "Nothing to do.\n"
    assert run("produce", "events", "--format", "json", stdin=flights, cluster=events).stderr == ""
    assert ok("maintenance", "retention", cluster=events) == "Nothing to do.\n"
    assert len(ok("consume", "events", "--json", cluster=events).splitlines()) == 10

    ok("topic", "alter", "events", "-c", "retention.ms=43200000", cluster=events)
    done = ok("maintenance", "retention", cluster=events)
    assert "retention.ms=43200000 (12 hours): newest record of the segments 2013-01-05T10:00:00.000Z" in done
    assert ok("consume", "events", "--json", "--from", "earliest", cluster=events) == ""


def test_retention_reports_what_it_frees_now_and_what_later(events: Path) -> None:
    """As a user does whose disk is full: a lower retention alone keeps the files for 7 days."""
    ok("topic", "create", "files", "-c", "inline.max.bytes=0", "-c", "retention.ms=1", cluster=events)
    ok("topic", "create", "blobs", "-c", "delta.max.lag.ms=-1", "-c", "retention.ms=1", cluster=events)
    for topic in ("files", "blobs"):
        run("produce", topic, stdin="a\nb\n", cluster=events)
    files = [*events.rglob("files-*/_segments/**/*.parquet")]
    done = ok("maintenance", "retention", "files", cluster=events)
    assert re.search(r"frees 0 B now, [\d.]+ K?i?B in 7 days \(file.delete.delay.ms\)", done)
    assert re.search(r"frees [1-9][\d.]* K?i?B now, 0 B in 7 days", done)
    assert files and all(file.exists() for file in files)
    ok("topic", "alter", "files", "-c", "file.delete.delay.ms=0", cluster=events)
    assert "files" in ok("maintenance", "retention", "files", cluster=events)
    assert not any(file.exists() for file in files)
