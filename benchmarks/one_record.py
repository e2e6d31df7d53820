"""Where the time of one record goes: `python -m benchmarks.one_record`, part of `make bench-clients`.

`send().get()` of a record of 100 bytes, one after the other, with the median time of each stage, and beside them two
floors of the same disk and server: a transaction of the driver alone that inserts one row and is forced to disk and, on
PostgreSQL, a statement that does nothing. The timers themselves take about 1 µs a stage.
"""

import argparse
import contextlib
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import sqlalchemy as sa

from benchmarks import kafka_report
from benchmarks.producer import Row, report
from spark_log import Producer
from spark_log.clients.produce.sender import Sender
from spark_log.cluster.cluster import Cluster
from spark_log.log.append import append_transaction
from spark_log.log.log import Log
from spark_log.metadata import commit_tokens
from spark_log.metadata.store import Store
from spark_log.replication.controller.topic_operations import create_topic

_WARM_UP = 300
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


def measure(address: str, store: str, sends: int) -> Iterator[Row]:
    """Yield the median of the whole, of its stages, and of the floors."""
    with Cluster.open(address) as cluster:
        create_topic(cluster, "one-record", 1)
    times_us: dict[str, list[float]] = defaultdict(list)
    with Producer(cluster=address) as client:
        for _ in range(_WARM_UP):
            client.send("one-record", bytes(100)).get()
        with contextlib.ExitStack() as stack:
            for owner, name in _STAGES:
                stack.enter_context(mock.patch.object(owner, name, _timed(owner, name, times_us)))
            times_us["whole"] = _times_us(lambda: client.send("one-record", bytes(100)).get(), sends)
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
    yield Row("send().get()", store, f"{us['whole']:,.0f} µs")
    for what, part_us in parts.items():
        yield Row(f"  {what}", store, f"{part_us:,.0f} µs ({part_us / us['whole']:.0%})")
    for what, action in _floors(address):
        yield Row(what, store, f"{statistics.median(_times_us(action, sends)):,.0f} µs")


def _timed(owner: Any, name: str, times_us: dict[str, list[float]]) -> Callable[..., Any]:
    """Return `owner.name` such that each call adds its time, under the last part of the owner's name."""
    called = getattr(owner, name)
    times = times_us[f"{owner.__name__.rpartition('.')[2]}.{name}"]

    def timed(*arguments: Any, **keywords: Any) -> Any:
        began = time.perf_counter()
        try:
            return called(*arguments, **keywords)
        finally:
            times.append((time.perf_counter() - began) * 1e6)

    return timed


def _floors(address: str) -> Iterator[tuple[str, Callable[[], object]]]:
    insert = "INSERT INTO floor (data) VALUES (%s)"
    if "://" not in address:
        files = sqlite3.connect(Path(address, "floor.db"), isolation_level=None)
        files.execute("PRAGMA journal_mode=WAL")
        files.execute("PRAGMA synchronous=FULL")
        files.execute("CREATE TABLE floor (id INTEGER PRIMARY KEY, data BLOB)")

        def commit_file() -> None:
            files.execute("BEGIN IMMEDIATE")
            files.execute(insert.replace("%s", "?"), (bytes(100),))
            files.execute("COMMIT")

        yield "floor: one row, committed by the driver alone", commit_file
        files.close()
        return
    with psycopg.connect(sa.make_url(address).set(drivername="postgresql").render_as_string(False)) as server:
        server.autocommit = True
        server.execute("CREATE TABLE floor (id bigserial PRIMARY KEY, data bytea)")
        yield "floor: one row, committed by the driver alone", lambda: server.execute(insert, (bytes(100),))
        yield "floor: a round trip, SELECT 1", lambda: server.execute("SELECT 1").fetchone()


def _times_us(action: Callable[[], object], count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        times.append((time.perf_counter() - began) * 1e6)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=1_500)
    parser.add_argument("--folder", help="where the clusters are made; default: the system's temporary folder")
    parser.add_argument("--postgresql", help="URL of an empty PostgreSQL database, to be measured too")
    parser.add_argument("--json", help="write the results to this file as well")
    arguments = parser.parse_args()
    rows = report("one record", arguments, lambda address, store: measure(address, store, arguments.sends))
    stages: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        stages[row.store][row.what.strip()] = row.measured
    found = [kafka_report.Row(f"one record on {store}", shown, {}) for store, shown in stages.items()]
    kafka_report.write_rows(found, arguments.json)


if __name__ == "__main__":
    main()
