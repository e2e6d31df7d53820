"""The command line as its users meet it: what is printed, exit codes, and every way to get it wrong."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_log.cli.records.record_sender import RecordSender
from spark_log.cluster.brokers import change_log_dirs
from spark_log.cluster.cluster import Cluster
from spark_log.config import definitions
from spark_log.ids import TopicPartition
from spark_log.log.reader import LogReader
from spark_log.maintenance.removal.retention import delete_records
from tests.cli.conftest import consumed, ok, run
from tests.support.python_process import PythonProcess, run_process


def test_lines_with_keys_are_consumed_in_the_order_produced(events: Path) -> None:
    lines = "".join(f"k{number % 5}:v{number}\n" for number in range(1000))
    sent = json.loads(ok("produce", "events", "-K", ":", "-H", "from=test", "--json", stdin=lines, cluster=events))
    assert sent["records"] == 1000
    assert sum(sent["end_offsets"].values()) == 1000
    rows = consumed(events)
    assert sorted(int(str(row["value"])[1:]) for row in rows) == list(range(1000))
    for key in {row["key"] for row in rows}:
        of_key = [row for row in rows if row["key"] == key]
        assert len({row["partition"] for row in of_key}) == 1
        values = [int(str(row["value"])[1:]) for row in of_key]
        assert values == sorted(values)
    assert rows[0]["headers"] == [{"key": "from", "value": "test"}]


def test_accepting_a_copy_names_the_log_dirs_that_it_shares_with_the_original(cluster: Path, tmp_path: Path) -> None:
    ok("broker", "add", "--id", "2", "--log-dir", str(cluster / "broker-2"), cluster=cluster)
    assert run("store", "accept", "--yes", cluster=cluster).stderr == ""
    copied = shutil.copytree(cluster, tmp_path / "copied")
    accepted = run("store", "accept", "--yes", cluster=copied)
    assert accepted.exit_code == 0 and "broker relocate" in accepted.stderr
    assert accepted.stderr.startswith(f"Log dir {(cluster / 'broker-2').as_uri()} is outside of the folder")
    assert "broker-1" not in accepted.stderr


@pytest.mark.parametrize("from_file", [True, False])
def test_interrupted_input_that_is_not_typed_has_an_exit_code(
    events: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_file: bool
) -> None:
    """A script that removes the input afterwards must not take it for sent."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordSender, "send", interrupted)
    file = tmp_path / "input"
    file.write_text("a\nb\n")
    given = ["-f", str(file)] if from_file else []
    stopped = run("produce", "events", *given, stdin=None if from_file else file.read_text(), cluster=events)
    assert (stopped.exit_code, stopped.stderr) == (130, "Stopped.\n")


def test_produce_keeps_the_digits_of_json_numbers(events: Path) -> None:
    line = '\ufeff{"key": 1.50, "value": {"price" : 12345678901234567.250}, "headers": {"h": 1e400}}'
    ok("produce", "events", "--format", "json", stdin=line, cluster=events)
    [record] = consumed(events)
    assert (record["key"], record["value"]) == ("1.50", '{"price":12345678901234567.250}')
    assert record["headers"] == [{"key": "h", "value": "1e400"}]


def test_produce_reads_the_json_that_consume_prints(events: Path) -> None:
    value = b"\xff\x00 not UTF-8"
    record = {"key": "k", "value_base64": "/wAgbm90IFVURi04", "headers": {"a": None, "b": {"n": 1}}, "timestamp": 5}
    ok("produce", "events", "--format", "json", stdin=json.dumps(record) + '\n{"value":null}', cluster=events)
    ok("topic", "create", "copy", "-p", "2", cluster=events)
    printed = ok("consume", "events", "--json", cluster=events)
    ok("produce", "copy", "--format", "json", stdin=printed, cluster=events)
    first, second = printed, ok("consume", "copy", "--json", cluster=events).replace('"copy"', '"events"')
    assert second == first
    assert value in run("consume", "events", "--values", cluster=events).stdout_bytes
    assert 'k  base64:/wAgbm90IFVURi04  [a=null b={"n":1}]' in ok("consume", "events", cluster=events)
    assert "1970-01-01T00:00:00.005Z" in ok("consume", "events", cluster=events)


POSITIONS = {
    "earliest": [0, 1, 2, 3],
    "latest": [],
    "2": [2, 3],
    "-1": [3],
    "-100": [0, 1, 2, 3],
    "@2000": [2, 3],
    "1970-01-01T00:00:01.500": [2, 3],
    "2100-01-01": [],
}


def test_from_starts_at_the_position(events: Path) -> None:
    lines = "\n".join(json.dumps({"value": str(n), "timestamp": n * 1000, "partition": 1}) for n in range(4))
    ok("produce", "events", "--format", "json", stdin=lines, cluster=events)
    for position, expected in POSITIONS.items():
        found = [row["offset"] for row in consumed(events, "--from", position, "--partition", "1")]
        assert found == expected, position


def test_consume_continues_after_records_that_are_deleted_meanwhile(
    events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok("produce", "events", "-p", "0", stdin="a\nb\nc\n", cluster=events)
    ok("produce", "events", "-p", "1", stdin="d\n", cluster=events)
    read = LogReader.read

    def delete_first(reader: LogReader, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(LogReader, "read", read)
        delete_records(reader.cluster, {TopicPartition("events", 0): 2})
        return reader.read(*arguments, **options)

    monkeypatch.setattr(LogReader, "read", delete_first)
    consumed = run("consume", "events", "--values", cluster=events)
    assert (consumed.exit_code, consumed.stdout) == (0, "c\nd\n")
    assert consumed.stderr == "events-0: 2 offsets deleted before they could be read\n"


def test_max_messages_and_idle_end_consume(events: Path) -> None:
    ok("produce", "events", stdin="a\nb\nc\n", cluster=events)
    assert len(consumed(events, "--max-messages", "2")) == 2
    assert len(consumed(events, "--follow", "--idle", "0.1")) == 3
    assert len(consumed(events, "--follow", "-n", "3")) == 3


def test_error_for_a_misspelt_topic_suggests_a_similar_name(events: Path) -> None:
    for command in (["consume", "evnts"], ["produce", "evnts"], ["topic", "describe", "evnts"]):
        refused = run(*command, stdin="a", cluster=events)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr == "spark-log: topic 'evnts': unknown topic or partition (did you mean 'events'?)\n"


def test_missing_cluster_says_how_to_make_one() -> None:
    refused = run("topic", "list")
    assert refused.exit_code == 2
    assert "'--cluster' (env var: 'SPARK_LOG_CLUSTER or SPARK_LOG_CLUSTER_FILE')" in refused.stderr
    assert "`spark-log init FOLDER` makes one" in refused.stderr


def test_control_characters_are_escaped(events: Path) -> None:
    ok("produce", "events", stdin="\x1b[31mred\n", cluster=events)
    assert "\x1b" not in ok("consume", "events", cluster=events)


def test_topics_are_described_altered_truncated_and_deleted(events: Path) -> None:
    ok("produce", "events", "-p", "1", stdin="a\nb\nc\n", cluster=events)
    altered = ok("topic", "alter", "events", "-c", "retention.ms=5", "--json", cluster=events)
    assert json.loads(altered)["configs"] == {"retention.ms": "5"}
    assert json.loads(ok("topic", "alter", "events", "-d", "retention.ms", "--json", cluster=events))["configs"] == {}
    ok("topic", "alter", "events", "-c", "retention.ms=-1", cluster=events)
    assert "retention.ms=-1 (unlimited)" in ok("topic", "describe", "events", cluster=events)
    ok("topic", "delete-records", "events", "--before", "1=2", "--yes", cluster=events)
    asked = run("topic", "delete-records", "events", "--before", "1=3", stdin="n\n", cluster=events)
    assert asked.exit_code == 1 and "Delete the oldest records of events?" in asked.stderr
    (described,) = json.loads(ok("topic", "describe", "events", "--json", cluster=events))
    one = described["partitions"][1]
    assert (one["log_start_offset"], one["high_watermark"], one["records"], one["isr"]) == (2, 3, 1, [1])
    ok("topic", "add-partitions", "events", "5", cluster=events)
    (listed,) = json.loads(ok("topic", "list", "--json", cluster=events))
    assert (listed["partitions"], listed["records"]) == (5, 1)
    assert run("topic", "delete", "events", cluster=events).exit_code == 1, "it needs a confirmation"
    ok("topic", "delete", "events", "--yes", cluster=events)
    assert json.loads(ok("topic", "list", "--json", cluster=events)) == []


def test_describe_list_balance_and_status_count_the_same_records_and_bytes(events: Path) -> None:
    ok("topic", "alter", "events", "-c", "inline.max.bytes=3000", cluster=events)
    ok("produce", "events", "-p", "0", stdin="".join(f"{n}\n" for n in range(1_000)), cluster=events)
    ok("produce", "events", "-p", "0", stdin="a\nb\n", cluster=events)
    ok("topic", "delete-records", "events", "--before", "0=5", "--yes", cluster=events)
    (described,) = json.loads(ok("topic", "describe", "events", "--json", cluster=events))
    (listed,) = json.loads(ok("topic", "list", "--json", cluster=events))
    (broker,) = json.loads(ok("partition", "balance", "--json", cluster=events))["brokers"]
    status = json.loads(ok("status", "--json", cluster=events))
    described = {name: sum(part[name] for part in described["partitions"]) for name in ("records", "bytes")}
    assert described["records"] == 997
    for shown in (listed, broker["load"], broker["log_dirs"][0], status):
        assert {name: shown[name] for name in described} == described


def test_status_shows_sizes_and_unreachable_log_dirs(events: Path) -> None:
    ok("produce", "events", stdin="a\nb\n", cluster=events)
    status = json.loads(ok("status", "--json", cluster=events))
    assert (status["store"], status["topics"], status["partitions"], status["records"]) == ("SQLite", 1, 2, 2)
    assert status["bytes"] > 0
    assert status["log_dirs"][0]["reachable"] is True
    (events / "broker-1").rename(events / "elsewhere")
    result = run("status", "--json", cluster=events)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["log_dirs"][0]["reachable"] is False
    (events / "elsewhere").rename(events / "broker-1")
    with Cluster.open(str(events)) as cluster:
        failed = {"online": False, "failure": "no answer in 5 s"}
        cluster.store.transact(lambda connection: change_log_dirs(connection, [1], **failed))
    [log_dir] = json.loads(run("status", "--json", cluster=events).stdout)["log_dirs"]
    assert (log_dir["reachable"], log_dir["problem"]) == (True, "marked offline: no answer in 5 s")


def test_topic_configs_lists_every_config() -> None:
    assert [entry["name"] for entry in json.loads(ok("topic", "configs", "--json"))] == [d.name for d in definitions()]
    assert "retention.ms = 604800000 ms" in ok("topic", "configs", "retention.ms")
    assert "9223372036854775807 (unlimited)  (long: a whole" in ok("topic", "configs", "max.compaction.lag.ms")
    assert "from -1 to 9223372036854775807" not in ok("topic", "configs")


ERRORS: list[tuple[list[str], str | None, str]] = [
    (["consume", "nope"], None, "'nope': unknown topic or partition"),
    (["produce", "nope"], "a", "'nope': unknown topic or partition"),
    (["topic", "describe", "events", "nope"], None, "'nope': unknown topic"),
    (["topic", "delete", "nope", "--yes"], None, "'nope': unknown topic"),
    (["topic", "create", "events"], None, "already exists"),
    (["topic", "create", "a/b"], None, "not a legal topic name"),
    (["topic", "create", "x", "-p", "0"], None, "partitions: expected a number"),
    (["topic", "create", "x", "-r", "2"], None, "replication"),
    (["topic", "create", "x", "-c", "retention.msx=1"], None, "Did you mean retention.ms"),
    (["topic", "create", "x", "-c", "retention.ms=soon"], None, "Invalid value 'soon'"),
    (["topic", "configs", "retention"], None, "Unknown topic config"),
    (["topic", "add-partitions", "events", "1"], None, "is not more"),
    (["topic", "delete-records", "events", "--before", "9", "--yes"], None, "high watermark"),
    (["consume", "events", "--from", "5"], None, "--from: events-0 has no offset 5"),
    (["consume", "events", "--partition", "7"], None, "partition events-7 does not exist"),
    (["produce", "events", "--partition", "7"], "a", "partition: 7 does not exist"),
    (["produce", "events", "-K", ":"], "a:b\nc", "line 2: no key separator ':' in 'c'"),
    (["produce", "events", "--format", "json"], '{"valu": 1}', "line 1: unknown field 'valu'"),
    (["produce", "events", "--format", "json"], "[]", "line 1: expected a JSON object"),
    (["produce", "events", "--format", "json"], "{", "line 1: not JSON"),
    (["produce", "events", "--format", "json"], '{"value": "\\ud800"}', "line 1: not JSON"),
    (["produce", "events", "--format", "json"], '{"value": ' + "[" * 100_000, "line 1: not JSON"),
    (["produce", "events", "--format", "json"], '{"value": 1, "headers": [{"k": 1}]}', "line 1: headers: expected"),
    (["produce", "events", "--format", "json"], '{"value": 1, "timestamp": 1.5}', "line 1: timestamp: expected"),
    (["consume", "events", "--group", ""], None, "group_id: '' is not a text"),
    (["share", "consume", "events", "--group", "g" * 250], None, "has 250 characters"),
    (["share", "redrive", "events", "--group", "g" * 250], None, "has 250 characters"),
    (["group", "describe", "\udcff"], None, "is not UTF-8 text"),
    (["broker", "remove", "--id", str(2**63)], None, "broker_id: expected a number"),
    (["init", "."], None, "cluster already"),
]


def test_errors_are_one_line(events: Path) -> None:
    for arguments, stdin, said in ERRORS:
        result = run(*(str(events) if a == "." else a for a in arguments), stdin=stdin, cluster=events)
        assert result.exit_code == 1, (arguments, result.output)
        assert said in result.stderr, arguments
        assert len(result.stderr.strip().splitlines()) == 1, arguments
        assert "Traceback" not in result.output, arguments


WRONG_USAGE = [
    ["consume", "events", "--from", "tomorrow"],
    ["consume", "events", "--values", "--json"],
    ["consume", "events", "--idle", "1"],
    ["consume", "events", "--max-messages", "0"],
    ["produce", "events", "--format", "json", "-K", ":"],
    ["produce", "events", "-H", "no-equals-sign"],
    ["produce", "events", "--file", "/nowhere/at/all"],
    ["topic", "create", "x", "-c", "retention.ms"],
    ["topic", "alter", "events"],
    ["topic", "delete-records", "events", "--before", "x=1"],
    ["topic", "nonsense"],
]


def test_wrong_usage_has_exit_code_2(events: Path) -> None:
    for arguments in WRONG_USAGE:
        result = run(*arguments, cluster=events)
        assert result.exit_code == 2, (arguments, result.output)


def test_the_address_of_a_kafka_broker_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for failed in (
        run("topic", "list", "--cluster", "localhost:9092"),
        run("topic", "list", cluster=Path("localhost:9092")),
        run("init", "localhost:9092"),
    ):
        assert failed.exit_code == 1
        assert failed.output.startswith("spark-log: cluster: 'localhost:9092' is the address of a Kafka broker.")
    assert list(tmp_path.iterdir()) == []


def test_missing_cluster_is_wrong_usage_and_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    assert run("topic", "list").exit_code == 2
    result = run("topic", "list", "--cluster", str(tmp_path))
    assert result.exit_code == 1
    assert "init" in result.stderr, "says how to make one"


def test_passwords_are_not_shown() -> None:
    result = run("status", "--cluster", "mysql://ada:secret@db/log")
    assert result.exit_code == 1
    assert "secret" not in result.output


def test_the_installed_program_runs(events: Path) -> None:
    """Exit codes, streams and `python -m spark_log` in a real process; a pipe from a slow writer; a closed pipe."""
    environment = {**os.environ, "SPARK_LOG_CLUSTER": str(events)}
    program = [sys.executable, "-m", "spark_log"]
    version = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("spark-log 0.")
    bad = subprocess.run([*program, "consume", "nope"], capture_output=True, text=True, env=environment)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert (
        bad.stderr
        == "spark-log: topic 'nope': unknown topic or partition (`spark-log topic list` shows those that exist)\n"
    )
    produce = ["-m", "spark_log", "produce", "events", "-p", "0", "--cluster", events]
    writer = PythonProcess(*produce, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert writer.stdin is not None
    writer.stdin.write(b"first\n")
    writer.stdin.flush()
    tail = ["-m", "spark_log", "consume", "events", "-p", "0", "--follow", "-n", "1", "--values", "--cluster", events]
    seen = run_process(*tail)
    assert seen.stdout == "first\n", "a line is there before the writer has ended"
    writer.communicate(b"x\n" * 50_000)
    assert writer.returncode == 0
    head = f"{sys.executable} -m spark_log consume events | head -1"
    closed = subprocess.run(["bash", "-c", head], capture_output=True, text=True, env=environment)
    assert closed.stdout.startswith("events-0@0")
    assert "Traceback" not in closed.stderr


def test_help_does_not_import_slow_modules() -> None:
    code = (
        "import sys, spark_log.cli.main; print([m for m in ('pyspark', 'pyarrow', 'sqlalchemy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
