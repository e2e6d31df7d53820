"""`spark-log group …`, `consume --group` and `coordinator`, as their users meet them."""

import json
import re
import signal
import subprocess
from pathlib import Path

from spark_log import Consumer
from tests.cli.conftest import ok, run
from tests.support.python_process import PythonProcess


def lag_of(folder: Path, group: str) -> dict[str, tuple[int | None, int | None]]:
    shown = json.loads(ok("group", "describe", group, "--json", cluster=folder))
    return {f"{row['topic']}-{row['partition']}": (row["committed"], row["lag"]) for row in shown["partitions"]}


def test_a_group_reads_from_its_committed_offsets(events: Path) -> None:
    ok("produce", "events", stdin="a\nb\nc\nd\n", cluster=events)
    assert sorted(ok("consume", "events", "--group", "g", "--values", cluster=events).split()) == ["a", "b", "c", "d"]
    assert ok("consume", "events", "--group", "g", "--values", cluster=events) == ""
    ok("produce", "events", "-p", "1", stdin="e\nf\ng\n", cluster=events)
    assert lag_of(events, "g") == {"events-0": (2, 0), "events-1": (2, 3)}
    assert re.search(r"^lag +3$", ok("group", "describe", "g", cluster=events), re.MULTILINE)
    assert ok("consume", "events", "--group", "g", "--values", "-n", "1", cluster=events) == "e\n"
    assert lag_of(events, "g")["events-1"] == (3, 2), "what was printed is committed, and nothing else"
    [listed] = json.loads(ok("group", "list", "--json", cluster=events))
    assert (listed["group_id"], listed["state"], listed["members"], listed["lag"]) == ("g", "Empty", 0, 2)


def test_a_member_without_partitions_ends(events: Path) -> None:
    ok("topic", "create", "single", cluster=events)
    ok("produce", "single", stdin="a\n", cluster=events)
    # of two members, the one whose id comes first gets the partition
    with Consumer(
        "single", cluster=str(events), group_id="g", client_id="first", auto_offset_reset="earliest"
    ) as other:
        assert other.poll(timeout_ms=10_000)
        assert ok("consume", "single", "--group", "g", "--values", cluster=events) == ""


def test_reset_and_delete(events: Path) -> None:
    ok("produce", "events", stdin="a\nb\nc\nd\n", cluster=events)
    ok("consume", "events", "--group", "g", cluster=events)
    dry = run("group", "reset", "g", "--to", "-1", "--json", cluster=events)
    shown = [
        (row["topic"], row["partition"], row["current_offset"], row["new_offset"]) for row in json.loads(dry.stdout)
    ]
    assert shown == [("events", 0, 2, 1), ("events", 1, 2, 1)]
    assert dry.stderr == "Nothing is changed. To reset the group, add --execute.\n"
    assert "--execute" in run("group", "reset", "g", "--to", "-1", cluster=events).stderr
    assert lag_of(events, "g") == {"events-0": (2, 0), "events-1": (2, 0)}
    done = run("group", "reset", "g", "--to", "earliest", "--topic", "events:1", "--execute", cluster=events)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [cell.strip() for cell in done.stdout.splitlines()[3].strip("│").split("│")] == ["events-1", "2", "0"]
    assert lag_of(events, "g") == {"events-0": (2, 0), "events-1": (0, 2)}
    ok("group", "reset", "g", "--to", "99", "--execute", "--json", cluster=events)
    assert lag_of(events, "g")["events-1"] == (2, 0)
    ok("group", "delete-offsets", "g", "--topic", "events:0", cluster=events)
    assert set(lag_of(events, "g")) == {"events-1"}
    none = ok("group", "delete-offsets", "g", "--topic", "events:0", cluster=events)
    assert none == "Deleted the offsets of 0 partitions of group g.\n"
    failed = run("group", "delete-offsets", "g", "--topic", "events:1,999", cluster=events)
    assert (failed.exit_code, failed.stdout, failed.stderr) == (
        1, "Deleted the offsets of 1 partition of group g.\n", "spark-log: partition events-999: does not exist\n",
    )  # fmt: skip
    ok("group", "delete", "g", cluster=events)
    assert ok("group", "list", cluster=events) == "There is no group.\n"


def test_wrong_usage_and_errors_are_one_line(events: Path) -> None:
    assert run("group", "reset", "g", "--to", "soon", cluster=events).exit_code == 2
    assert run("group", "reset", "g", "--to", "earliest", cluster=events).exit_code == 2
    assert run("group", "reset", "g", "--to", "earliest", "--topic", "events:x", cluster=events).exit_code == 2
    assert run("group", "remove-member", "g", cluster=events).exit_code == 2
    assert run("consume", "events", "--group", "g", "-p", "0", cluster=events).exit_code == 2
    assert run("consume", "events", "--group", "g", "--from", "7", cluster=events).exit_code == 2
    for command in (("describe", "g"), ("delete", "g"), ("remove-member", "g", "m")):
        failed = run("group", *command, cluster=events)
        assert (failed.exit_code, failed.output) == (1, "spark-log: group 'g': there is no such group\n")
    missing = run("consume", "nope", "--group", "g", cluster=events)
    assert missing.exit_code == 1
    assert "nope" in missing.output


def test_coordinator_releases_its_lease_at_sigterm(cluster: Path) -> None:
    program = "from spark_log.cli.main import app; app()"
    pipe = subprocess.PIPE
    standing = PythonProcess("-c", program, "coordinator", "--cluster", cluster, stdout=pipe, stderr=pipe, text=True)
    assert standing.stderr is not None
    assert standing.stderr.readline() == "It is the active coordinator.\n"
    status = json.loads(ok("coordinator", "--status", "--json", cluster=cluster))
    assert status["term"] == 1
    assert status["lease_left_ms"] > 0
    standing.send_signal(signal.SIGTERM)
    assert standing.wait(timeout=30) == 0
    standing.stdout.close()  # type: ignore[union-attr]
    standing.stderr.close()
    free = run("coordinator", "--status", "--json", cluster=cluster)
    assert (free.exit_code, json.loads(free.stdout)["holder"]) == (1, None)


def test_produce_to_the_topic_of_committed_offsets_is_refused(events: Path) -> None:
    ok("produce", "events", stdin="a\n", cluster=events)
    ok("consume", "events", "--group", "g", cluster=events)
    failed = run("produce", "__consumer_offsets", "-K", ":", stdin="k:v\n", cluster=events)
    assert failed.exit_code == 1
    assert "internal" in failed.output
    lines = ok("consume", "__consumer_offsets", "--json", cluster=events).splitlines()
    commits = {row["key"]: json.loads(row["value"])["offset"] for row in map(json.loads, lines)}
    assert sorted(commits.values()) == [0, 1]
    listed = {row["topic"]: row for row in json.loads(ok("topic", "list", "--json", cluster=events))}
    assert (listed["__consumer_offsets"]["records"], listed["events"]["records"]) == (len(lines), 1)
    (described,) = json.loads(ok("topic", "describe", "__consumer_offsets", "--json", cluster=events))
    [used] = [part for part in described["partitions"] if part["records"]]
    assert (used["records"], used["high_watermark"]) == (len(lines), len(lines))
    assert {(json.loads(key)["group"], json.loads(key)["topic"]) for key in commits} == {("g", "events")}
