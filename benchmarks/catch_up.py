"""How fast a lost replica is copied, against `cp` of the same files with fsync in the same run.

    python -m benchmarks.catch_up [--segments 20] [--megabytes 50] [--rounds 3] [--postgresql URL]

The segments hold incompressible values; the replica is empty at the beginning of each round. Both copies begin with the
source in the page cache and end with every byte forced to disk; they take turns, and the medians are compared.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.machine import describe_machine
from spark_log.cluster.brokers import BrokerSession, add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas.catch_up import catch_up

OF_CP_MIN = 0.5
"""The bar: our speed as a part of cp's."""

_VALUE_BYTES = 1_000


def records(megabytes: int, seed: int) -> pa.Table:
    """Incompressible records, for a segment of about `megabytes` MB."""
    rows = megabytes * 1_000_000 // _VALUE_BYTES
    values = np.random.default_rng(seed).bytes(rows * _VALUE_BYTES)
    offsets = np.arange(rows + 1, dtype=np.int32) * _VALUE_BYTES
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    columns = [
        pa.nulls(rows, pa.binary()),
        pa.Array.from_buffers(pa.binary(), rows, buffers),
        pa.nulls(rows, RECORD_SCHEMA.field("headers").type),
        pa.array(np.full(rows, 1_700_000_000_000_000), pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def prepare(cluster: Cluster, folder: Path, segments: int, megabytes: int) -> Topic:
    """A topic led by broker 1, whose replica on broker 2 has nothing."""
    add_broker(cluster, 2, [str(folder / "follower")])
    BrokerSession(
        cluster.store, 2, 3_600_000
    ).register()  # alive, but without a process: only this benchmark copies to it
    topic = create_topic(cluster, "t", 1, 2)
    assert topic is not None
    cluster.store.transact(lambda connection: connection.execute(t.partition.update().values(leader=1)))
    empty(cluster)
    log = ClientLog(cluster)
    for number in range(segments):
        (outcome,) = log.append(topic, [Records(0, records(megabytes, number))], acks=1)
        assert isinstance(outcome, Appended), outcome
    log.close()
    return topic


def empty(cluster: Cluster) -> None:
    here = t.replica.c.broker_id == 2
    lost = t.replica.update().where(here).values(log_end_offset=0, in_sync=False)
    cluster.store.transact(lambda connection: connection.execute(lost))


def cp(source: Path, target: Path) -> float:
    """Seconds that cp takes for a folder, every file and the folder forced to disk."""
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    subprocess.run(["sync", *map(str, sorted(target.iterdir())), str(target)], check=True)
    return time.perf_counter() - began


def measure(cluster: Cluster, name: str, folder: Path, arguments: argparse.Namespace) -> float:
    topic = prepare(cluster, folder, arguments.segments, arguments.megabytes)
    [leader] = [info for info in cluster.log_dirs().values() if info.broker_id == 1]
    source = Path(leader.uri.removeprefix("file://"), topic.folder, "_segments", "0")
    replica = folder / "follower" / topic.folder
    size = sum(path.stat().st_size for path in source.iterdir())
    theirs_s, ours_s = [], []
    for _ in range(arguments.rounds + 1):
        os.sync()
        theirs_s.append(cp(source, folder / "copy"))
        shutil.rmtree(folder / "copy")
        shutil.rmtree(replica, ignore_errors=True)
        empty(cluster)
        os.sync()
        began = time.perf_counter()
        done = catch_up(cluster, topic, 0, 2)
        ours_s.append(time.perf_counter() - began)
        copied = (replica / "_segments" / "0").iterdir()
        assert done.in_sync and sum(path.stat().st_size for path in copied) == size
    theirs, ours = statistics.median(theirs_s[1:]), statistics.median(ours_s[1:])
    print(
        f"{name}: {arguments.segments} segments, {size / 1e6:.0f} MB: catch-up {size / ours / 1e6:.0f} MB/s,"
        f" cp and fsync {size / theirs / 1e6:.0f} MB/s: {theirs / ours:.2f} of cp (bar: >= {OF_CP_MIN})"
    )
    return theirs / ours


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--segments", type=int, default=20)
    arguments.add_argument("--megabytes", type=int, default=50)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--postgresql", metavar="URL", help="an empty database to measure too")
    chosen = arguments.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-") as name:
        folder = Path(name, "sqlite")
        with Cluster.init(str(folder)) as cluster:
            part = measure(cluster, "SQLite", folder, chosen)
        shutil.rmtree(folder)
        if chosen.postgresql:
            folder = Path(name, "postgresql")
            with Cluster.init(chosen.postgresql, log_dir=str(folder / "leader")) as cluster:
                measure(cluster, "PostgreSQL", folder, chosen)
    return 0 if part >= OF_CP_MIN else 1


if __name__ == "__main__":
    raise SystemExit(main())
