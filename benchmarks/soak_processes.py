"""The processes of the soak: each runs one function of this module until its pipe says stop.

A record's value begins with the time of its `send`, so that consumers can tell how old it is. Each process that knows
latencies puts them into its pipe once a minute, as (series, number of the minute, latencies in ms).
"""

import itertools
import os
import time
from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path

from spark_log import Consumer, Producer
from spark_log.maintenance.coordinator.coordinator import Coordinator

EVENTS, STATE, PAIRED, COPY = "events", "state", "paired", "copy"
"""Topics: of the producers; compacted; of the transactions; of the stream."""
GROUP = "readers"
BATCH = 10
"""Records that a producer sends together."""
_KEYS = 200
_PAYLOAD = os.urandom(200).hex().encode()


class Minutes:
    """Latencies in ms, sent to the parent process at the end of each minute of the run."""

    def __init__(self, pipe: Connection, began_s: float) -> None:
        self._pipe, self._began_s = pipe, began_s
        self._minute = 0
        self._latencies_ms: dict[str, list[float]] = defaultdict(list)

    def add(self, series: str, latency_ms: float) -> None:
        self._latencies_ms[series].append(latency_ms)

    def stopped(self) -> bool:
        """Report a minute that has ended; returns whether the parent asks to stop."""
        minute = int((time.monotonic() - self._began_s) / 60)
        if minute > self._minute:
            for series, latencies_ms in self._latencies_ms.items():
                self._pipe.send((series, self._minute, latencies_ms))
            self._latencies_ms.clear()
            self._minute = minute
        return self._pipe.poll()


def coordinate(address: str, pipe: Connection, began_s: float, rate: int) -> None:
    """All periodic tasks, with the settings of the cluster."""
    with Coordinator(address):
        pipe.recv()


def produce(address: str, pipe: Connection, began_s: float, rate: int) -> None:
    """`rate` records a second to `events`, BATCH at a time, each tenth to `state` too; measures until they are durable.

    Every minute another Producer takes over, as after a restart of a service.
    """
    minutes = Minutes(pipe, began_s)
    number = 0
    while not minutes.stopped():
        with Producer(cluster=address, linger_ms=5) as producer:
            opened_s = time.monotonic()
            for turn in itertools.count():
                time.sleep(max(0.0, opened_s + turn * BATCH / rate - time.monotonic()))
                if minutes.stopped() or time.monotonic() - opened_s > 60:
                    break
                began_ns = time.time_ns()
                sent = []
                for number in range(number + 1, number + 1 + BATCH):  # noqa: B020 - counts on
                    sent.append(producer.send(EVENTS, key=b"%d" % (number % _KEYS), value=_value()))
                sent.append(producer.send(STATE, key=b"%d" % (turn % _KEYS), value=_value()))
                for future in sent:
                    future.get(60)
                minutes.add("send until durable", (time.time_ns() - began_ns) / 1e6)


def transact(address: str, pipe: Connection, began_s: float, rate: int) -> None:
    """A transaction a second with BATCH records, each fifth one aborted; every minute under a new transactional id."""
    minutes = Minutes(pipe, began_s)
    for name in itertools.count():
        if minutes.stopped():
            return
        with Producer(cluster=address, transactional_id=f"soak-{name}") as producer:
            producer.init_transactions()
            opened_s = time.monotonic()
            for turn in range(60):
                time.sleep(max(0.0, opened_s + turn - time.monotonic()))
                if minutes.stopped():
                    break
                began_ns = time.time_ns()
                producer.begin_transaction()
                for number in range(BATCH):
                    producer.send(PAIRED, key=b"%d" % number, value=_value())
                if turn % 5 == 4:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    minutes.add("transaction", (time.time_ns() - began_ns) / 1e6)


def consume(address: str, pipe: Connection, began_s: float, rate: int) -> None:
    """A member of the group for the whole run; measures the age of the records that it gets."""
    minutes = Minutes(pipe, began_s)
    with _consumer(address) as consumer:
        while not minutes.stopped():
            _take(consumer, minutes)


def come_and_go(address: str, pipe: Connection, began_s: float, rate: int) -> None:
    """A member of the group that leaves after half a minute and joins again half a minute later, so that the group
    rebalances twice a minute; nothing is measured of it.
    """
    minutes = Minutes(pipe, began_s)
    while not minutes.stopped():
        with _consumer(address) as consumer:
            until_s = time.monotonic() + 30
            while time.monotonic() < until_s and not minutes.stopped():
                _take(consumer, None)
        pipe.poll(30)


def stream(address: str, pipe: Connection, began_s: float, rate: int) -> None:
    """A Spark driver with a stream from `events` to `copy`, a micro-batch every ten seconds; measures its batches.

    Once a minute the heap is collected and its size put into the pipe, as (series, minute, [MB]).
    """
    from benchmarks.throughput import spark_session

    folder = Path(os.environ["SPARK_LOG_SOAK_FOLDER"])
    more = {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "20",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "100",
        "spark.sql.ui.retainedExecutions": "5",
    }
    spark = spark_session(folder, more)
    options = {"cluster": address, "subscribe": EVENTS, "startingOffsets": "latest"}
    rows = spark.readStream.format("spark_log").options(**options).load().select("key", "value")
    writer = rows.writeStream.format("spark_log").options(cluster=address, topic=COPY)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(processingTime="10 seconds")
    query = writer.start()
    minutes, known = Minutes(pipe, began_s), -1
    while not minutes.stopped():
        query.awaitTermination(1)
        assert query.isActive, query.exception()
        last = query.lastProgress
        if last is not None and last.batchId > known and last.numInputRows:
            known = last.batchId
            minutes.add("micro-batch", last.durationMs["triggerExecution"])
            if known % 6 == 0:
                assert spark._jvm is not None
                spark._jvm.java.lang.System.gc()
                memory = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
                minutes.add("JVM heap after a collection", memory.getHeapMemoryUsage().getUsed() / 1e6)
    query.stop()
    spark.stop()


def _consumer(address: str) -> Consumer:
    consumer = Consumer(cluster=address, group_id=GROUP, auto_offset_reset="latest", isolation_level="read_committed")
    consumer.subscribe([EVENTS, PAIRED, COPY])
    return consumer


def _take(consumer: Consumer, minutes: Minutes | None) -> None:
    found = consumer.poll(500)
    now_ns = time.time_ns()
    for partition, records in found.items():
        if minutes is not None and partition.topic == EVENTS:
            for record in records:
                minutes.add("send until consumed", (now_ns - int(record.value[:19])) / 1e6)


def _value() -> bytes:
    return b"%d" % time.time_ns() + _PAYLOAD
