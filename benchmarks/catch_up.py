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
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.machine import describe_machine
from benchmarks.setup import clusters, noise, parser, records
from spark_log.cluster.brokers import BrokerSession, add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.config.values import LEASE_MS_MAX
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas.catch_up import catch_up

OF_CP_MIN = 0.5
"""The bar: our speed as a part of cp's."""

_VALUE_BYTES = 1_000


def segment(megabytes: int, seed: int) -> pa.Table:
    """Incompressible records, for a segment of about `megabytes` MB."""
    return records(noise(megabytes * 1_000_000 // _VALUE_BYTES, np.random.default_rng(seed), _VALUE_BYTES))


def prepare(cluster: Cluster, folder: Path, segments: int, megabytes: int) -> Topic:
    """A topic led by broker 1, whose replica on broker 2 has nothing."""
    add_broker(cluster, 2, [str(folder / "follower")])
    # alive, but without a process: only this benchmark copies to it
    BrokerSession(cluster.store, 2, LEASE_MS_MAX).register()
    topic = create_topic(cluster, "t", 1, 2)
    assert topic is not None
    cluster.store.transact(lambda connection: connection.execute(t.partition.update().values(leader=1)))
    empty(cluster)
    log = ClientLog(cluster)
    for number in range(segments):
        (outcome,) = log.append(topic, [Records(0, segment(megabytes, number))], acks=1)
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
    options = parser(__doc__, rounds=3)
    options.add_argument("--segments", type=int, default=20)
    options.add_argument("--megabytes", type=int, default=50)
    chosen = options.parse_args()
    print(describe_machine())
    parts = []
    for store, address, folder in clusters(chosen):
        with Cluster.open(address) as cluster:
            parts.append(measure(cluster, store, folder, chosen))
    return 0 if parts[0] >= OF_CP_MIN else 1


if __name__ == "__main__":
    raise SystemExit(main())
