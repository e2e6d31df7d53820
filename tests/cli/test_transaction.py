"""`spark-log transaction …`, `topic producers`, and what `status` and `maintenance` say of transactions."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_log import Producer
from spark_log.cli.output import duration_of
from spark_log.cli.records.produce import RECORDS_PER_BATCH_MAX
from spark_log.cluster.cluster import Cluster
from spark_log.errors import TransactionAbortableError
from spark_log.metadata import tables as t
from tests.cli.conftest import consumed, ok, run
from tests.support.python_process import PythonProcess, killed_at
from tests.support.stores import change

KILLED = """
import sys
from spark_log import Producer
producer = Producer(cluster=sys.argv[1], transactional_id="killed", transaction_timeout_ms=5_000)
producer.init_transactions()
producer.begin_transaction()
producer.send("events", b"never seen", partition=1)
producer.flush()
producer.commit_transaction()
"""


@pytest.fixture
def transfer(events: Path) -> Iterator[Any]:
    """A producer with an open transaction of 3 records in events-0 and 1 in events-1."""
    with Producer(cluster=str(events), transactional_id="transfer") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_table("events", pa.table({"value": [b"x"] * 4, "partition": [0, 0, 0, 1]}))
        producer.flush()
        yield producer


def rows_of(table: str) -> list[list[str]]:
    """The cells of a printed table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]


def test_an_open_transaction_is_shown_and_aborted(events: Path, transfer: Any) -> None:
    [row] = rows_of(ok("transaction", "list", cluster=events))
    assert [row[0], row[1], row[3], row[4]] == ["transfer", "Ongoing", "60 s", "2"]
    [listed] = json.loads(ok("transaction", "list", "--state", "ongoing", "--json", cluster=events))
    assert (listed["transactional_id"], listed["producer_epoch"], listed["batches"]) == ("transfer", 0, 2)
    assert listed["open_ms"] >= 0 and listed["overdue"] is False
    shown = ok("transaction", "describe", "transfer", cluster=events)
    assert "state             Ongoing\n" in shown
    assert [row[:3] for row in rows_of(shown)] == [["events-0", "1", "3"], ["events-1", "1", "1"]]
    described = json.loads(ok("transaction", "describe", "transfer", "--json", cluster=events))
    assert [(part["partition"], part["records"]) for part in described["pending"]] == [(0, 3), (1, 1)]
    assert ok("transaction", "find-hanging", cluster=events) == "There is no hanging transaction.\n"
    assert "open_transactions  1, the oldest for " in ok("status", cluster=events)
    status = json.loads(ok("status", "--json", cluster=events))
    assert status["open_transactions"] == 1 and status["oldest_transaction_ms"] >= 0

    asked = run("transaction", "abort", "transfer", stdin="n\n", cluster=events)
    assert asked.exit_code == 1 and "4 records" in asked.stderr
    assert json.loads(ok("status", "--json", cluster=events))["open_transactions"] == 1
    said = ok("transaction", "abort", "transfer", "--yes", cluster=events)
    assert said == "Aborted the transaction of transfer: 4 records dropped.\n"
    again = run("transaction", "abort", "transfer", "--yes", cluster=events)
    assert again.exit_code == 1
    assert again.output == (
        "spark-log: transactional id 'transfer' has no open transaction: its state is CompleteAbort\n"
    )
    status = json.loads(ok("status", "--json", cluster=events))
    assert (status["open_transactions"], status["oldest_transaction_ms"], status["records"]) == (0, None, 0)
    with pytest.raises(TransactionAbortableError):
        transfer.commit_transaction()
    transfer.abort_transaction()
    transfer.begin_transaction()
    transfer.send("events", b"next")
    transfer.commit_transaction()
    assert [row["value"] for row in consumed(events)] == ["next"]


def test_producers_of_a_topic(events: Path, transfer: Any) -> None:
    with Producer(cluster=str(events)) as producer:
        for _ in range(3):
            producer.send("events", b"y", partition=0)
        producer.flush()
    rows = rows_of(ok("topic", "producers", "events", cluster=events))
    assert [(row[0], row[3], row[4], row[6]) for row in rows] == [
        ("events-0", "transfer", "-", "3"),
        ("events-0", "-", "2", "-"),
        ("events-1", "transfer", "-", "0"),
    ]
    [one] = json.loads(ok("topic", "producers", "events", "-p", "1", "--json", cluster=events))
    assert (one["topic"], one["partition"], one["transactional_id"]) == ("events", 1, "transfer")
    ok("topic", "create", "quiet", cluster=events)
    sent = ok("produce", "quiet", "--transactional-id", "load", stdin="1\n2\n", cluster=events)
    assert sent.startswith("Sent 2 records (2 B) in ") and "/s" not in sent
    ended = run("topic", "producers", "quiet", cluster=events)
    assert ended.stdout == "No producer of quiet is known.\n"
    assert "`spark-log transaction list` has all" in ended.stderr
    assert "load" in ok("transaction", "list", cluster=events)


def test_transaction_of_a_killed_process_is_aborted(events: Path) -> None:
    killed_at("transaction.registered", "-c", KILLED, events)
    with Cluster.open(str(events)) as opened:
        change(opened, t.transaction.update().values(until_ms=2**60))
        assert ok("maintenance", "transactions", cluster=events) == "Nothing to do.\n"
        change(opened, t.transaction.update().values(until_ms=0))
    [row] = rows_of(ok("transaction", "find-hanging", cluster=events))
    assert row[0] == "killed" and row[1].endswith(", overdue")
    assert row[2:] == ["5 s", "events-1", "1"]
    [hanging] = json.loads(ok("transaction", "find-hanging", "--json", cluster=events))
    assert hanging["overdue"] is True and len(hanging["pending"]) == 1

    [row] = rows_of(ok("maintenance", "transactions", cluster=events))
    assert (row[0], row[-1]) == ("transactions", "aborted killed: its transaction.timeout.ms has passed")
    assert ok("maintenance", "transactions", cluster=events) == "Nothing to do.\n"
    assert ok("transaction", "find-hanging", cluster=events) == "There is no hanging transaction.\n"
    [listed] = json.loads(ok("transaction", "list", "--state", "CompleteAbort", "--json", cluster=events))
    assert (listed["transactional_id"], listed["batches"]) == ("killed", 0)
    assert consumed(events) == []


def test_transactional_input_is_visible_whole_or_not_at_all(events: Path) -> None:
    once = ("produce", "events", "--transactional-id", "load", "-H", "from=test")
    lines = "".join(f"k{number % 5}:v{number}\n" for number in range(1000))
    broken = run(*once, "-K", ":", stdin="k:v\n" * RECORDS_PER_BATCH_MAX + "no separator\n", cluster=events)
    assert broken.exit_code == 1
    assert broken.stdout.startswith("Sent 0 records (0 B)"), "the first batch was sent, and is gone"
    assert broken.stderr == f"spark-log: line {RECORDS_PER_BATCH_MAX + 1}: no key separator ':' in 'no separator'\n"
    assert json.loads(ok("transaction", "list", "--json", cluster=events))[0]["state"] == "CompleteAbort"
    assert consumed(events, "--isolation-level", "read_uncommitted") == []

    sent = json.loads(ok(*once, "-K", ":", "--json", stdin=lines, cluster=events))
    assert (sent["records"], sum(sent["end_offsets"].values())) == (1000, 1000)
    rows = consumed(events, "--isolation-level", "read_committed")
    assert sorted(int(str(row["value"])[1:]) for row in rows) == list(range(1000))
    ok("produce", "events", "-K", ":", stdin="k3:last\n", cluster=events)
    of_key = [row for row in consumed(events) if row["key"] == "k3"]
    assert [row["value"] for row in of_key] == [f"v{number}" for number in range(3, 1000, 5)] + ["last"]
    assert len({row["partition"] for row in of_key}) == 1, "where it goes without a transaction too"
    assert rows[0]["headers"] == [{"key": "from", "value": "test"}]

    ok(*once, stdin="", cluster=events)
    chosen = "".join(json.dumps({"value": str(number), "partition": number % 2}) + "\n" for number in range(4))
    ok(*once, "--format", "json", stdin=chosen, cluster=events)
    assert [row["value"] for row in consumed(events, "-p", "1", "--from", "-2")] == ["1", "3"]
    [listed] = json.loads(ok("transaction", "list", "--json", cluster=events))
    assert (listed["transactional_id"], listed["producer_epoch"], listed["state"]) == ("load", 6, "CompleteCommit")

    nowhere = run(*once, "-p", "2", stdin="x\n", cluster=events)
    assert nowhere.exit_code == 1 and nowhere.stderr.startswith("spark-log: partition") and "2" in nowhere.stderr
    assert run(*once, "--acks", "1", stdin="x", cluster=events).exit_code == 2
    assert run("produce", "events", "--transactional-id", "", stdin="x", cluster=events).exit_code == 2
    assert run("consume", "events", "--isolation-level", "dirty", cluster=events).exit_code == 2


def test_interrupted_transactional_input_is_aborted(events: Path) -> None:
    command = ["-m", "spark_log", "produce", "events", "--transactional-id", "typed", "--cluster", events]
    pipe = subprocess.PIPE
    with PythonProcess(*command, stdin=pipe, stdout=pipe, stderr=pipe) as typing:
        assert typing.stdin is not None and typing.stderr is not None
        typing.stdin.write(b"one line\n")
        typing.stdin.flush()
        while ok("transaction", "list", "-s", "Ongoing", "--json", cluster=events) == "[]\n":
            assert typing.poll() is None, typing.stderr.read()
        # Python does not see a signal that comes just before its read(2) blocks: like a person, press again
        for _ in range(12):
            typing.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                typing.wait(timeout=10)
                break
        assert typing.returncode == 1
        assert typing.stderr.read() == b"Stopped: the transaction is aborted.\n"
    [listed] = json.loads(ok("transaction", "list", "--json", cluster=events))
    assert (listed["transactional_id"], listed["state"]) == ("typed", "CompleteAbort")
    assert consumed(events) == []


def test_wrong_usage_and_errors_are_one_line(events: Path) -> None:
    assert ok("transaction", "list", cluster=events) == "There is no transactional id.\n"
    nothing = ok("transaction", "list", "-s", "Ongoing", cluster=events)
    assert nothing == "There is no transaction of these states.\n"
    wrong = run("transaction", "list", "--state", "PrepareCommit", cluster=events)
    assert wrong.exit_code == 2 and "CompleteCommit" in wrong.stderr
    for command in ("describe", "abort"):
        failed = run("transaction", command, "nobody", cluster=events)
        assert failed.exit_code == 1
        assert failed.output == "spark-log: transactional id 'nobody': there is no producer with it\n"
    unknown = run("topic", "producers", "events", "-p", "2", cluster=events)
    assert unknown.output == "spark-log: topic 'events', partition 2: unknown topic or partition\n"


def test_duration_of_shows_whole_units() -> None:
    of = {0: "0 ms", 999: "999 ms", 1_000: "1 s", 119_999: "119 s", 120_000: "2 min", 7_199_999: "119 min"}
    longer = {7_200_000: "2 h", 172_799_999: "47 h", 172_800_000: "2 d", 10**12: "11,574 d"}
    assert {ms: duration_of(ms) for ms in {**of, **longer}} == {**of, **longer}
