"""Programs of one function each, which tests run in separate processes and kill: `child_programs PROGRAM ARGUMENTS`.

Other versions of spark-log run them too, so the imports at the top are public names only.

    python -m tests.support.child_programs numbered_producer CLUSTER TOPIC NAME [COUNT] [SETTING=VALUE ...]
    python -m tests.support.child_programs numbered_writer CLUSTER TOPIC WRITER COUNT
    python -m tests.support.child_programs numbered_consumer CLUSTER TOPIC GROUP COMMIT_EVERY [SESSION_MS]
    python -m tests.support.child_programs keyed_producer CLUSTER KEYS TOPIC...
    python -m tests.support.child_programs share_consumer CLUSTER TOPIC GROUP
    python -m tests.support.child_programs coordinator CLUSTER LEASE_MS
    python -m tests.support.child_programs maintenance CLUSTER [TASK ...]
"""

import itertools
import random
import sys
from collections.abc import Callable
from typing import Any

from kafka import ConsumerRebalanceListener

from spark_log import Consumer, Producer
from tests.support.waiting import end_of_input

PAUSE_S = 0.01


def producer_value(name: str, number: int) -> bytes:
    """The value of record N of a numbered producer; every tenth is too large for the inline tail of SMALL_TAILS."""
    filler = random.Random(number).randbytes(1_000).hex() if number % 10 == 9 else ""
    return f"{name}-{number}-{filler}".encode()


def numbered_producer(address: str, topic: str, name: str, *options: str) -> None:
    """Produce numbered records, and print their outcomes.

    Record N of `NAME` has the value `NAME-N-filler` and the key `NAME-(N modulo 7)`. Each acknowledgement is printed as
    `acked N PARTITION OFFSET` by a callback, each failure as `failed N ERROR`. With COUNT, every hundred records are
    flushed. Without, it produces a hundred records a second until its standard input ends, and then prints
    `sent NUMBER`.
    """
    given = dict(text.split("=") for text in options if "=" in text)
    settings: dict[str, Any] = {key: int(text) if text.isdigit() else text for key, text in given.items()}
    count = next((int(text) for text in options if "=" not in text), None)
    ended = end_of_input() if count is None else None
    with Producer(cluster=address, **settings) as producer:
        for number in itertools.count():
            if number == count or (ended is not None and ended.wait(PAUSE_S)):
                break
            future = producer.send(topic, producer_value(name, number), f"{name}-{number % 7}".encode())
            future.add_callback(lambda m, number=number: print(f"acked {number} {m.partition} {m.offset}", flush=True))
            future.add_errback(lambda error, number=number: print(f"failed {number} {error!r}", flush=True))
            if count is not None and number % 100 == 99:
                producer.flush()
    if count is None:
        print(f"sent {number}", flush=True)


def writer_value(writer: str, number: int) -> str:
    """The value of record N of a numbered writer; every third is too large for the inline tail."""
    filler = random.Random(number).randbytes(1_000).hex() if number % 3 == 2 else ""
    return f"{writer}-{number}-{filler}"


def numbered_writer(address: str, topic_name: str, writer: str, count: str) -> None:
    """Append numbered records, and print `sent N` before and `acked N OFFSET` after the append of record N, whose value
    begins with `WRITER-N`. Some are too large for the tail, so files, blobs, sealing and publication all take place.
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.log.append.rules import Appended
    from spark_log.log.log import Records
    from spark_log.maintenance.client_log import ClientLog
    from tests.support.records import table

    log = ClientLog(Cluster.open(address))
    topic = log.find_topic(topic_name)
    for number in range(int(count)):
        print(f"sent {number}", flush=True)
        (outcome,) = log.append(topic, [Records(0, table(writer_value(writer, number)))])
        assert isinstance(outcome, Appended), outcome
        print(f"acked {number} {outcome.base_offset}", flush=True)
    log.close()


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Prints the changes of the assignment."""

    def on_partitions_revoked(self, revoked: set[tuple[str, int]]) -> None:
        print("revoked", *sorted(number for _, number in revoked), flush=True)

    def on_partitions_assigned(self, assigned: set[tuple[str, int]]) -> None:
        print("assigned", *sorted(number for _, number in assigned), flush=True)


def numbered_consumer(address: str, topic: str, group: str, commit_every: str, session_ms: str = "1500") -> None:
    """Consume a topic in a group until standard input ends: commit after every COMMIT_EVERY polls.

    It prints `assigned N...`, `processed PARTITION OFFSET VALUE` for each record, and `committed` after each commit.
    """
    ended = end_of_input()
    with Consumer(
        cluster=address,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=3,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=200,
    ) as consumer:
        consumer.subscribe([topic], listener=Listener())
        polls = 0
        while not ended.is_set():
            for partition, records in consumer.poll(100).items():
                for record in records:
                    print("processed", partition.partition, record.offset, record.value.decode(), flush=True)
                polls += 1
            if polls >= int(commit_every):
                consumer.commit()
                print("committed", flush=True)
                polls = 0


PADDING = "." * 100


def keyed_value(topic: str, number: int) -> bytes | None:
    """The value of record N of a keyed producer in this topic."""
    return None if topic.startswith("latest") and number % 11 == 0 else f"{number}{PADDING}".encode()


def keyed_producer(address: str, keys: str, *topics: str) -> None:
    """Produce numbered records with keys to several topics until standard input ends.

    Record N goes to every topic, with key `k<N modulo KEYS>` and value `<N>` and some padding; every 11th is a
    tombstone in the topics whose name begins with `latest`. Each acknowledgement is printed as
    `acked TOPIC PARTITION OFFSET N`.
    """
    ended = end_of_input()
    number = 0
    with Producer(cluster=address, delivery_timeout_ms=120_000) as producer:
        while not ended.wait(0.005):
            for topic in topics:
                future = producer.send(topic, keyed_value(topic, number), f"k{number % int(keys)}".encode())
                future.add_callback(
                    lambda m, number=number: print(f"acked {m.topic} {m.partition} {m.offset} {number}", flush=True)
                )
            number += 1


_POLL_MS = 30_000


def share_consumer(address: str, topic: str, group: str) -> None:
    """A share consumer that does what its input says, and prints the outcome.

    Commands, one a line: `poll` waits for records, and prints `polled OFFSET:COUNT ...`. `accept`, `release` and
    `reject` acknowledge the records of the last poll, commit, and print `committed` with `None`, or the name of the
    error of the partition. At the end of its input it closes.
    """
    from spark_log import AcknowledgeType, ShareConsumer  # earlier versions have none

    with ShareConsumer(topic, cluster=address, group_id=group, share_acknowledgement_mode="explicit") as consumer:
        polled = []
        for line in sys.stdin:
            command = line.strip()
            if command == "poll":
                polled = [record for records in consumer.poll(_POLL_MS).values() for record in records]
                print("polled", *(f"{record.offset}:{record.delivery_count}" for record in polled), flush=True)
            else:
                for record in polled:
                    consumer.acknowledge(record, AcknowledgeType[command.upper()])
                errors = {str(None if e is None else type(e).__name__) for e in consumer.commit_sync().values()}
                print("committed", *sorted(errors), flush=True)


def coordinator(address: str, lease_ms: str) -> None:
    """Compete for the coordinator lease until the process is killed."""
    from spark_log.cluster.cluster import Cluster
    from spark_log.config import ClusterSettings
    from spark_log.maintenance.coordinator.coordinator import Coordinator

    settings = ClusterSettings(controller_lease_ms=int(lease_ms))
    with Cluster.open(address) as cluster, Coordinator(cluster, settings=settings):
        print("started", flush=True)
        sys.stdin.read()


def maintenance(address: str, *tasks: str) -> None:
    """Repeat maintenance, or only these tasks, until standard input ends or a failpoint kills the process."""
    from spark_log.cluster.cluster import Cluster
    from spark_log.maintenance import run_tasks

    ended = end_of_input()
    with Cluster.open(address) as cluster:
        while True:
            for report in run_tasks(cluster, tasks or None):
                print(report, flush=True)
            print("round", flush=True)
            if ended.wait(0.05):
                return


PROGRAMS: tuple[Callable[..., None], ...] = (
    numbered_producer, numbered_writer, numbered_consumer, keyed_producer, share_consumer, coordinator, maintenance,
)  # fmt: skip

if __name__ == "__main__":
    _, program, *arguments = sys.argv
    {each.__name__: each for each in PROGRAMS}[program](*arguments)
