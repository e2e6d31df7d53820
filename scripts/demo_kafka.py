"""Kafka clients on the cluster: confluent-kafka reads the flights and writes records, through a gateway.

    python scripts/demo_kafka.py --cluster ADDRESS --records N [--topic flights] [--help]

`make demo` runs it at the end. It starts `spark-log gateway` on a free port. A consumer of confluent-kafka reads the
whole topic as it would from Kafka, and an idempotent producer sends the flights of one carrier to another topic, which
spark-log's own consumer reads. Exit code 1 if a record is missing or differs.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import confluent_kafka
from rich.console import Console

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.replication.controller.topic_operations import create_topic, delete_topic

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
CARRIER = "HA"
COPY = "flights-of-one-carrier"
GIVE_UP_S = 120


def main() -> int:
    arguments = _arguments()
    with Cluster.open(arguments.cluster) as cluster:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            delete_topic(cluster, COPY)
        create_topic(cluster, COPY, partitions=2)
    with _gateway(arguments.cluster) as address:
        began = time.monotonic()
        values = _consume(address, arguments.topic, arguments.records)
        seconds = time.monotonic() - began
        console.print(
            f"  a consumer of confluent-kafka has read {len(values):,} records: {len(values) / seconds:,.0f} a second"
        )
        chosen = [value for value in values if json.loads(value).get("carrier") == CARRIER]
        _produce(address, chosen)
    copied = _read_copy(arguments.cluster, len(chosen))
    if len(values) != arguments.records or sorted(copied) != sorted(chosen):
        read = f"{len(values):,} read, {len(copied):,} of {len(chosen):,} copied"
        console.print(f"[bold red]Kafka clients:[/bold red] {read}")
        return 1
    console.print(
        f"  its producer has sent the {len(chosen):,} flights of {CARRIER} to {COPY}; spark-log reads the same"
    )
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    address = os.environ.get("SPARK_LOG_CLUSTER")
    parser.add_argument("--cluster", default=address, required=address is None, help="[env SPARK_LOG_CLUSTER]")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--records", type=int, required=True, help="how many the topic has")
    return parser.parse_args()


@contextlib.contextmanager
def _gateway(cluster: str) -> Iterator[str]:
    """The address of a running gateway."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "spark_log", "gateway", "--listen", address]
    # the address of the cluster may hold a password: not on the command line
    environment = {**os.environ, "SPARK_LOG_CLUSTER": cluster}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            if "listens" not in process.stdout.readline():
                raise SystemExit("the gateway did not start")
            yield address
        finally:
            process.send_signal(signal.SIGTERM)


def _consume(address: str, topic: str, count: int) -> list[bytes]:
    settings = {"bootstrap.servers": address, "group.id": f"kafka-{os.getpid()}", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + GIVE_UP_S
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value() or b"" for message in consumer.consume(5_000, 1)]
    consumer.close()
    return found


def _produce(address: str, values: list[bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(COPY, value, str(number))
    producer.flush(GIVE_UP_S)


def _read_copy(cluster: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(COPY, cluster=cluster, auto_offset_reset="earliest", consumer_timeout_ms=1_000) as consumer:
        found += [record.value for record in consumer]
    return found[: count + 1]


if __name__ == "__main__":
    sys.exit(main())
