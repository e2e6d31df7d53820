"""Three replicas at work: a topic is copied into one of factor 3 while log dirs are lost, and nothing is missing.

    python scripts/demo_replicas.py --cluster ADDRESS [--topic flights] [--work .demo] [--help]

`make demo` runs it at its end. In a cluster of its own (WORK/replicas) with three brokers the topic is copied with
acks=all and min.insync.replicas=2. After a third the log dir of a broker is deleted, and writing goes on; a new, empty
one takes its place and catches up; then the log dir of another broker is deleted, and every record is read and
compared with the source. Exit code 1 if anything differs.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from spark_log import Cluster, Consumer, Coordinator, Producer, create_topic
from spark_log.cluster.brokers import add_broker
from spark_log.errors import SparkLogError, redact
from spark_log.facts.topics import PartitionInfo, describe_topics

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
COLUMNS = ["partition", "offset", "key", "value", "timestamp"]
GIVE_UP_S = 60


def main() -> int:
    arguments = _arguments()
    folder = Path(arguments.work).absolute() / "replicas"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run: it is ours
    folder.mkdir(parents=True)
    address = str(folder / "cluster")
    try:
        source = _all(arguments.cluster, arguments.topic)
        with Cluster.init(address, log_dir=str(folder / "disk1")) as cluster:
            for broker in (2, 3):
                add_broker(cluster, broker, [str(folder / f"disk{broker}")], rack=f"rack {broker}")
            partitions = len(source.column("partition").unique())
            configs = {
                "min.insync.replicas": "2",
                "message.timestamp.after.max.ms": str(2**62),
                "retention.ms": "-1",  # the coordinator would drop what is of 2013
            }
            create_topic(cluster, arguments.topic, partitions, replication_factor=3, configs=configs)
            failure = _run(cluster, address, arguments.topic, source, folder)
    except SparkLogError as error:
        failure = redact(str(error))
    if failure:
        console.print(f"[bold red]replicas:[/bold red] {failure}")
        return 1
    console.print(
        f"  all {source.num_rows:,} records are there, at their offsets, on the disk that had come back empty"
    )
    return 0


def _lose(disk: Path) -> None:
    """Delete a disk's folder at once, although a thread may be writing a file there."""
    away = disk.with_name(f"{disk.name}-lost")
    disk.rename(away)
    shutil.rmtree(away)


def _run(cluster: Cluster, address: str, topic: str, source: pa.Table, folder: Path) -> str:
    """The story; a reason why it went wrong, or ''."""
    third = source.num_rows // 3
    with Producer(cluster=address, acks="all") as producer:
        _send(producer, topic, source.slice(0, third))
        _lose(folder / "disk2")
        console.print(f"  {third:,} records sent; broker 2 loses its disk")
        _send(producer, topic, source.slice(third, third))
        console.print(f"  {third:,} more sent meanwhile: {_show(cluster, topic)}")
        (folder / "disk2").mkdir(exist_ok=True)  # a commit to the topic's table may have made the lost folder again
        with Coordinator(cluster):
            began = time.monotonic()
            while any(len(part.isr) < 3 for part in _partitions(cluster, topic)):
                if time.monotonic() - began > GIVE_UP_S:
                    return f"the new disk has not caught up in {GIVE_UP_S} s: {_show(cluster, topic)}"
                time.sleep(0.05)
        console.print(f"  it gets an empty one, which catches up in {time.monotonic() - began:.1f} s")
        _lose(folder / "disk1")
        console.print("  broker 1 loses its disk")
        _send(producer, topic, source.slice(2 * third))
    console.print(f"  the rest sent: {_show(cluster, topic)}")
    _lose(folder / "disk3")
    console.print("  broker 3 loses its disk too; now everything is read")
    copy = _all(address, topic)
    return "" if copy.equals(source) else f"{copy.num_rows:,} records came back, and they differ from the source"


def _send(producer: Producer, topic: str, records: pa.Table) -> None:
    producer.send_table(topic, records.select(["partition", "key", "value", "timestamp"]))
    producer.flush()


def _all(address: str, topic: str) -> pa.Table:
    """Everything of a topic, by partition and offset."""
    whole = pa.concat_tables(_portions(address, topic)).combine_chunks()
    return whole.sort_by([("partition", "ascending"), ("offset", "ascending")])


def _portions(address: str, topic: str) -> Iterator[pa.Table]:
    with Consumer(topic, cluster=address, auto_offset_reset="earliest") as consumer:
        while True:
            polled = consumer.poll_arrow(timeout_ms=2_000)
            if not polled:
                return
            for part in polled.values():
                yield part.select(COLUMNS)


def _partitions(cluster: Cluster, topic: str) -> tuple[PartitionInfo, ...]:
    return describe_topics(cluster, [topic])[0].partitions


def _show(cluster: Cluster, topic: str) -> str:
    found = {(part.leader, tuple(sorted(part.isr))) for part in _partitions(cluster, topic)}
    leaders = sorted({str(leader) for leader, _ in found})
    in_sync = sorted({str(broker) for _, isr in found for broker in isr})
    return f"brokers {' and '.join(in_sync)} are in sync, {' and '.join(leaders)} lead"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cluster",
        default=os.environ.get("SPARK_LOG_CLUSTER"),
        required="SPARK_LOG_CLUSTER" not in os.environ,
        help="folder or URL of the cluster that has the topic [env SPARK_LOG_CLUSTER]",
    )
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--work", default=".demo", help="folder for the cluster of its own [%(default)s]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
