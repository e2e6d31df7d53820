"""Consumers of librdkafka that run in threads, one after the other in the same place: a rolling restart."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import confluent_kafka as rdkafka

from tests.support.waiting import LIMIT_S

_POLL_S = 0.05


class Ownership:
    """Which reader has which partition at this moment, as their callbacks tell."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: dict[tuple[str, int], str] = {}
        self.twice: list[tuple[tuple[str, int], str, str]] = []
        """Partitions that a second reader got, with both."""
        self.lost = 0

    def take(self, name: str, partitions: Sequence[Any]) -> None:
        with self._lock:
            for each in partitions:
                partition = (each.topic, each.partition)
                other = self._owner.get(partition)
                if other is not None:
                    self.twice.append((partition, other, name))
                self._owner[partition] = name

    def drop(self, name: str, partitions: Sequence[Any]) -> None:
        with self._lock:
            for each in partitions:
                if self._owner.get((each.topic, each.partition)) == name:
                    del self._owner[each.topic, each.partition]

    def count(self, name: str) -> int:
        with self._lock:
            return list(self._owner.values()).count(name)

    def drop_lost(self, name: str, partitions: Sequence[Any]) -> None:
        self.lost += len(partitions)
        self.drop(name, partitions)


class RollingReader:
    """A consumer in a thread. `stop` closes it: it commits what it has read, and leaves.

    A message below the position of a partition that the reader has had without a break is not counted a second time.
    After an incremental rebalance librdkafka 2.x can fetch again from an old offset, without asking for the committed
    one (its issue 4686): the server hands over no partition, so that nothing is said about it. A message that two
    readers see, or that one sees again after a new assignment, does count.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], topics: Sequence[str], ownership: Ownership) -> None:
        self.name, self.seen = name, []  # type: tuple[str, list[bytes]]
        self._settings, self._topics, self._ownership = settings, topics, ownership
        self._positions: dict[tuple[str, int], int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self.error: BaseException | None = None
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self.name} does not close"
        assert self.error is None, self.error

    def _take(self, partitions: Sequence[Any]) -> None:
        for each in partitions:
            self._positions.pop((each.topic, each.partition), None)
        self._ownership.take(self.name, partitions)

    def _is_new(self, message: Any) -> bool:
        """Whether the message is not below the position, which moves behind it."""
        partition = (message.topic(), message.partition())
        if message.offset() < self._positions.get(partition, 0):
            return False
        self._positions[partition] = message.offset() + 1
        return True

    def _run(self) -> None:
        own = self._ownership
        try:
            consumer = rdkafka.Consumer(dict(self._settings))
            consumer.subscribe(
                list(self._topics),
                on_assign=lambda _, got: self._take(got),
                on_revoke=lambda _, gone: own.drop(self.name, gone),
                on_lost=lambda _, gone: own.drop_lost(self.name, gone),
            )
            while not self._stopped.is_set():
                for message in consumer.consume(200, _POLL_S):
                    value = message.value()
                    if message.error() is None and value is not None and self._is_new(message):
                        self.seen.append(value)
            consumer.close()
        except BaseException as error:
            self.error = error
