"""Clients of every kind on a cluster whose store fails over, with the offsets and times of their acknowledgements."""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka as rdkafka

from spark_log import Consumer, Producer
from spark_log.spark.streams import TransactionalLoop
from tests.support.child_programs import producer_value
from tests.support.children import Child
from tests.support.server_processes import GatewayProcess
from tests.support.waiting import Worker, wait_until

TOPIC, COPY, COPIERS, READERS = "t", "copy", "copiers", "readers"
DELIVERY_MS = 120_000


class Acknowledgements:
    """`places` has the partition and offset of each acknowledged number, `times_s` when each was acknowledged."""

    def __init__(self) -> None:
        self.places: dict[int, tuple[int, int]] = {}
        self.times_s: list[float] = []
        self.failed: list[str] = []

    def add(self, number: int, partition: int, offset: int) -> None:
        self.places[number] = (partition, offset)
        self.times_s.append(time.monotonic())

    def wait_for_more(self, more: int = 1) -> None:
        """Wait until so many more records are acknowledged than those so far."""
        count = len(self.places) + more
        wait_until(lambda: len(self.places) >= count, f"an acknowledgement; failed so far: {self.failed[:3]}")

    def gap_s(self, since_s: float = 0.0) -> float:
        """The longest time between two acknowledgements, of which the second came after `since_s`."""
        times = list(self.times_s)
        return max(later - earlier for earlier, later in itertools.pairwise(times) if later > since_s)


class ProducerProcess(Child):
    """A numbered_producer."""

    def __init__(self, address: str, topic: str, name: str) -> None:
        self.name, self.acknowledged = name, Acknowledgements()
        super().__init__("tests.support.child_programs", "numbered_producer", address, topic, name)

    def heard(self, line: list[str]) -> None:
        kind, number, *rest = line
        if kind == "acked":
            partition, offset = map(int, rest)
            self.acknowledged.add(int(number), partition, offset)
        elif kind == "failed":
            self.acknowledged.failed.append(" ".join(line))

    def end(self) -> None:
        """End it; returns when it has reported every record."""
        self.close_input()
        self.finish(DELIVERY_MS / 1000)


class KafkaProducer(Worker):
    """A producer of librdkafka, which sends numbered records to gateways until `finish`."""

    def __init__(self, servers: str, name: str) -> None:
        self.name, self.acknowledged, self._servers = name, Acknowledgements(), servers
        super().__init__(self._produce)

    def _produce(self, stop: threading.Event) -> None:
        client = rdkafka.Producer(
            {
                "bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 5,
                "message.timeout.ms": DELIVERY_MS,
            }
        )  # fmt: skip
        for number in itertools.count():
            if stop.is_set():
                break
            client.produce(
                TOPIC, producer_value(self.name, number), f"{self.name}-{number % 7}".encode(),
                on_delivery=lambda error, message, number=number: self._delivered(number, error, message),
            )  # fmt: skip
            client.poll(0.02)
        client.flush(DELIVERY_MS / 1000)

    def _delivered(self, number: int, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(number, message.partition(), message.offset())
        else:
            self.acknowledged.failed.append(f"{number} {error}")


class FailoverLoad:
    """Two producers, a producer of librdkafka at a gateway, a copy loop and a consumer group.

    `read` has the value that the group got for each partition and offset.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self.read: dict[tuple[int, int], bytes] = {}
        with ExitStack() as stack:
            gateway = stack.enter_context(GatewayProcess(folder, address))
            self._producers = [ProducerProcess(address, TOPIC, name) for name in ("p", "q")]
            for producer in self._producers:
                stack.callback(producer.kill)
            self._sending = KafkaProducer(gateway.address, "g")
            self._copying = Worker(self._copy)
            self._reading = Worker(self._read_as_group)
            for worker in (self._sending, self._copying, self._reading):
                stack.callback(worker.stop)
            self._stack = stack.pop_all()

    def __enter__(self) -> "FailoverLoad":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def acknowledged(self) -> dict[str, Acknowledgements]:
        """By the name of the producer."""
        producers: list[KafkaProducer | ProducerProcess] = [self._sending, *self._producers]
        return {producer.name: producer.acknowledged for producer in producers}

    def wait_for_more(self) -> None:
        """Wait until each producer has another acknowledgement."""
        for acknowledged in self.acknowledged.values():
            acknowledged.wait_for_more()
        for worker in (self._sending, self._copying, self._reading):
            worker.check()

    def finish(self, is_complete: Callable[[], bool]) -> None:
        """End the producers, wait until copy and group have the rest, and end those."""
        for producer in self._producers:
            producer.end()
        self._sending.finish()

        def has_all() -> bool:
            self._copying.check()
            self._reading.check()
            return is_complete()

        wait_until(has_all, "copy and group come to the end", pause_s=0.1)
        self._copying.finish()
        self._reading.finish()

    def _copy(self, stop: threading.Event) -> None:
        with (
            Consumer(
                TOPIC, cluster=self._address, group_id=COPIERS, enable_auto_commit=False, auto_offset_reset="earliest"
            ) as consumer,
            Producer(cluster=self._address, transactional_id="copier") as producer,
        ):
            loop = TransactionalLoop(consumer, producer)

            def stop_loop() -> None:
                stop.wait()
                loop.stop()

            threading.Thread(target=stop_loop, daemon=True).start()
            loop.run(_copy_records)

    def _read_as_group(self, stop: threading.Event) -> None:
        with Consumer(
            TOPIC, cluster=self._address, group_id=READERS, auto_offset_reset="earliest", auto_commit_interval_ms=500
        ) as consumer:
            while not stop.is_set():
                for partition, records in consumer.poll(200).items():
                    for record in records:
                        self.read[partition.partition, record.offset] = record.value


def _copy_records(records: Sequence[Any], producer: Producer) -> None:
    for record in records:
        producer.send(COPY, record.value, record.key, partition=record.partition)
