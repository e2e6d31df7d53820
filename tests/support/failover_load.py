"""Clients of every kind on a cluster whose store fails over, with the offsets and times of their acknowledgements."""

import itertools
import subprocess
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
from tests.support.python_process import PythonProcess
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

    def wait_for_more(self) -> None:
        """Wait until another record is acknowledged than those so far."""
        count = len(self.places)
        wait_until(lambda: len(self.places) > count, f"an acknowledgement; failed so far: {self.failed[:3]}")

    def gap_s(self, since_s: float) -> float:
        """The longest time between two acknowledgements, of which the second came after `since_s`."""
        times = list(self.times_s)
        return max(later - earlier for earlier, later in itertools.pairwise(times) if later > since_s)


class ProducerProcess:
    """A numbered_producer, whose output is read in a thread."""

    def __init__(self, address: str, topic: str, name: str) -> None:
        self.name, self.acknowledged = name, Acknowledgements()
        self._process = PythonProcess(
            "-m", "tests.support.child_programs", "numbered_producer", address, topic, name,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, number, *rest = line.split()
            if kind == "acked":
                partition, offset = map(int, rest)
                self.acknowledged.add(int(number), partition, offset)
            elif kind == "failed":
                self.acknowledged.failed.append(line)

    def finish(self) -> None:
        """End it; returns when it has reported every record."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=DELIVERY_MS / 1000) == 0
        self._thread.join(timeout=60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=60)


class FailoverLoad:
    """Two producers, a producer of librdkafka at a gateway, a copy loop and a consumer group.

    `read` has the value that the group got for each partition and offset.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self.read: dict[tuple[int, int], bytes] = {}
        self.at_gateway = Acknowledgements()
        with ExitStack() as stack:
            self._gateway = stack.enter_context(GatewayProcess(folder, address))
            self._producers = [ProducerProcess(address, TOPIC, name) for name in ("p", "q")]
            for producer in self._producers:
                stack.callback(producer.kill)
            self._sending = Worker(self._produce_at_gateway)
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
        return {"g": self.at_gateway, **{producer.name: producer.acknowledged for producer in self._producers}}

    def wait_for_more(self) -> None:
        """Wait until each producer has another acknowledgement."""
        for acknowledged in self.acknowledged.values():
            acknowledged.wait_for_more()
        for worker in (self._sending, self._copying, self._reading):
            worker.check()

    def finish(self, is_complete: Callable[[], bool]) -> None:
        """End the producers, wait until copy and group have the rest, and end those."""
        for producer in self._producers:
            producer.finish()
        self._sending.finish()

        def has_all() -> bool:
            self._copying.check()
            self._reading.check()
            return is_complete()

        wait_until(has_all, "copy and group come to the end", pause_s=0.1)
        self._copying.finish()
        self._reading.finish()

    def _produce_at_gateway(self, stop: threading.Event) -> None:
        client = rdkafka.Producer(
            {
                "bootstrap.servers": self._gateway.address, "enable.idempotence": True, "linger.ms": 5,
                "message.timeout.ms": DELIVERY_MS,
            }
        )  # fmt: skip
        number = 0

        def delivered(error: Any, message: Any, number: int) -> None:
            if error is None:
                self.at_gateway.add(number, message.partition(), message.offset())
            else:
                self.at_gateway.failed.append(f"{number} {error}")

        while not stop.is_set():
            client.produce(
                TOPIC, producer_value("g", number), b"g-%d" % (number % 7),
                on_delivery=lambda error, message, number=number: delivered(error, message, number),
            )  # fmt: skip
            number += 1
            client.poll(0.02)
        client.flush(DELIVERY_MS / 1000)

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
