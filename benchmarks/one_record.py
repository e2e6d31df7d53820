"""Where the time of one record goes: `python -m benchmarks.one_record`, part of `make bench-clients`.

`send().get()` of a record of 100 bytes, one after the other, with the median time of each stage, and beside them two
floors of the same disk and server: a transaction of the driver alone that inserts one row and is forced to disk and, on
PostgreSQL, a statement that does nothing. Then the same with a pause of 10 ms before each record, in which the caches
get cold and the processors sleep. At last a process sends records with this pause to a consumer that waits in this
process, with the stages until `poll` returns each. The timers themselves take about 1 µs a stage.
"""

import contextlib
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import kafka
import psycopg
import sqlalchemy as sa

from benchmarks.kafka_report import Row, parser, write_rows
from benchmarks.setup import StoreRow, report
from benchmarks.stages import timed
from spark_log import Consumer, Producer
from spark_log.clients.consume.partition_reads import Fetching
from spark_log.clients.consume.poll_loop import Polling
from spark_log.clients.produce.sender import Sender
from spark_log.cluster.cluster import Cluster
from spark_log.log.append import append_transaction
from spark_log.log.log import Log
from spark_log.log.segments import plan
from spark_log.metadata import commit_tokens
from spark_log.metadata.store import Store
from spark_log.replication.controller.topic_operations import create_topic

_WARM_UP = 300
_PAUSE_S = 0.01
_STAGES: tuple[tuple[Any, str], ...] = (
    (Producer, "send"),
    (Sender, "_assemble"),
    (Sender, "_append"),
    (Log, "write_each"),
    (Store, "_transact"),
    (append_transaction, "_append"),
    (append_transaction, "_lock"),
    (commit_tokens, "commit"),
    (sa.engine.RootTransaction, "commit"),
)


def measure(address: str, store: str, sends: int, pause_s: float = 0.0) -> Iterator[StoreRow]:
    """Yield the median of the whole, of its stages, and of the floors."""
    if pause_s:
        store = f"{store}, after a pause of {pause_s * 1000:.0f} ms"
    times_us: dict[str, list[float]] = defaultdict(list)
    with Producer(cluster=address) as client:
        for _ in range(_WARM_UP):
            client.send("one-record", bytes(100)).get()
        with contextlib.ExitStack() as stack:
            for owner, name in _STAGES:
                stack.enter_context(mock.patch.object(owner, name, timed(owner, name, times_us)))
            times_us["whole"] = _times_us(lambda: client.send("one-record", bytes(100)).get(), sends, pause_s)
    us = defaultdict(float, {name: statistics.median(each) for name, each in times_us.items() if each})
    commit = us["commit_tokens.commit"] or us["RootTransaction.commit"]
    parts = {
        "hand-overs between the caller and the sender's thread": us["whole"]
        - us["Sender._assemble"]
        - us["Sender._append"],
        "check, partition, build Arrow columns": us["Sender._assemble"],
        "encode the blob": us["Log.write_each"],
        "turn of the writers, connection, BEGIN": us["Store._transact"] - us["append_transaction._append"] - commit,
        "lock and read (4 statements)": us["append_transaction._lock"],
        "rules, and rows to write": us["append_transaction._append"] - us["append_transaction._lock"],
        "COMMIT, with its flush": commit,
        "outcome, metrics, table loop": us["Sender._append"] - us["Log.write_each"] - us["Store._transact"],
    }
    yield StoreRow("send().get()", store, f"{us['whole']:,.0f} µs")
    for what, part_us in parts.items():
        yield StoreRow(f"  {what}", store, f"{part_us:,.0f} µs ({part_us / us['whole']:.0%})")
    for what, action in _floors(address):
        yield StoreRow(what, store, f"{statistics.median(_times_us(action, sends, pause_s)):,.0f} µs")


_WRITER = """
import sys, time
from spark_log import Producer
client = Producer(cluster=sys.argv[1])
client.send("awaited", b"0").get()
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    sent_ns = time.time_ns()
    client.send("awaited", b"%d" % sent_ns).get()
    print(sent_ns, time.time_ns(), flush=True)
    time.sleep(float(sys.argv[3]))
"""
"""Sends the time in nanoseconds in each value, and prints it with that of the acknowledgement."""

_READ_STAGES: tuple[tuple[Any, str], ...] = (
    (Polling, "_wait"),
    (Fetching, "fetch"),
    (plan, "find_positions"),
    (Fetching, "_plan"),
    (plan, "with_inline_data"),
    (Polling, "poll"),
)


def measure_consumer(address: str, store: str, sends: int) -> Iterator[StoreRow]:
    """Yield the median time from a send to a waiting consumer, and its stages."""
    spans: dict[str, tuple[int, int]] = {}
    times_us: dict[str, list[float]] = defaultdict(list)
    command = [sys.executable, "-c", _WRITER, address, str(sends + _WARM_UP), str(_PAUSE_S)]
    with (
        Consumer(cluster=address, auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer,
        contextlib.ExitStack() as stack,
    ):
        consumer.assign([kafka.TopicPartition("awaited", 0)])
        while not consumer.poll(1_000):  # the first record says that the writer is ready
            pass
        for owner, name in _READ_STAGES:
            stack.enter_context(mock.patch.object(owner, name, _spanned(owner, name, spans)))
        assert writer.stdin is not None and writer.stdout is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
        polled = 0
        while polled < sends + _WARM_UP:
            records = [record for records in consumer.poll(10_000).values() for record in records]
            returned_ns = time.time_ns()
            lines = [writer.stdout.readline() for _ in records]
            sent_ns, acknowledged_ns = map(int, lines[0].split())
            polled += len(records)
            if len(records) > 1 or polled <= _WARM_UP or spans["_wait"][1] < sent_ns:
                continue  # it did not wait for this record
            stages = _read_stages(sent_ns, acknowledged_ns, returned_ns, spans)
            for stage, (began_ns, ended_ns) in stages.items():
                times_us[stage].append((ended_ns - began_ns) / 1_000)
    us = {stage: statistics.median(times) for stage, times in times_us.items()}
    whole_us = us.pop("whole")
    store = f"{store}, to a waiting consumer"
    yield StoreRow("from send to the record", store, f"{whole_us:,.0f} µs")
    for stage, stage_us in us.items():
        yield StoreRow(f"  {stage}", store, f"{stage_us:,.0f} µs ({stage_us / whole_us:.0%})")


def _read_stages(
    sent_ns: int, acknowledged_ns: int, returned_ns: int, spans: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Return begin and end of each stage. The consumer may notice a commit before the sender has its answer."""
    woken_ns = spans["_wait"][1]
    return {
        "whole": (sent_ns, returned_ns),
        "the sender has its acknowledgement (beside what follows)": (sent_ns, acknowledged_ns),
        "send and commit, until the consumer notices": (sent_ns, woken_ns),
        "connection of the pool, BEGIN, positions": (woken_ns, spans["find_positions"][1]),
        "plan": spans["_plan"],
        "blob": spans["with_inline_data"],
        "end of the snapshot": (spans["with_inline_data"][1], spans["fetch"][1]),
        "decode the blob, build Arrow columns": (spans["fetch"][1], spans["poll"][1]),
        "Python record": (spans["poll"][1], returned_ns),
    }


def _spanned(owner: Any, name: str, spans: dict[str, tuple[int, int]]) -> Callable[..., Any]:
    """Return `owner.name` such that each call notes its begin and end."""
    called = getattr(owner, name)

    def spanned(*arguments: Any, **keywords: Any) -> Any:
        began_ns = time.time_ns()
        try:
            return called(*arguments, **keywords)
        finally:
            spans[name] = began_ns, time.time_ns()

    return spanned


def _floors(address: str) -> Iterator[tuple[str, Callable[[], object]]]:
    insert = "INSERT INTO floor (data) VALUES (%s)"
    if "://" not in address:
        files = sqlite3.connect(Path(address, "floor.db"), isolation_level=None)
        files.execute("PRAGMA journal_mode=WAL")
        files.execute("PRAGMA synchronous=FULL")
        files.execute("CREATE TABLE IF NOT EXISTS floor (id INTEGER PRIMARY KEY, data BLOB)")

        def commit_file() -> None:
            files.execute("BEGIN IMMEDIATE")
            files.execute(insert.replace("%s", "?"), (bytes(100),))
            files.execute("COMMIT")

        yield "floor: one row, committed by the driver alone", commit_file
        files.close()
        return
    with psycopg.connect(sa.make_url(address).set(drivername="postgresql").render_as_string(False)) as server:
        server.autocommit = True
        server.execute("CREATE TABLE IF NOT EXISTS floor (id bigserial PRIMARY KEY, data bytea)")
        yield "floor: one row, committed by the driver alone", lambda: server.execute(insert, (bytes(100),))
        yield "floor: a round trip, SELECT 1", lambda: server.execute("SELECT 1").fetchone()


def _times_us(action: Callable[[], object], count: int, pause_s: float) -> list[float]:
    times = []
    for _ in range(count):
        if pause_s:
            time.sleep(pause_s)
        began = time.perf_counter()
        action()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def main() -> None:
    options = parser(__doc__, rounds=None)
    options.add_argument("--sends", type=int, default=1_500)
    arguments = options.parse_args()

    def both(store: str, address: str, _folder: Path) -> Iterator[StoreRow]:
        with Cluster.open(address) as cluster:
            create_topic(cluster, "one-record", 1)
            create_topic(cluster, "awaited", 1)
        yield from measure(address, store, arguments.sends)
        yield from measure(address, store, arguments.sends // 2, _PAUSE_S)
        yield from measure_consumer(address, store, arguments.sends // 2)

    rows = report("one record", arguments, both)
    stages: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        stages[row.store][row.what.strip()] = row.measured
    found = [Row(f"one record on {store}", shown, {}) for store, shown in stages.items()]
    write_rows(found, arguments.json)


if __name__ == "__main__":
    main()
