"""Programs in transactions, which are killed in their lives (`tests.support.children.live`): one process each.

    python -m tests.support.transaction_programs bank_client CLUSTER NAME COUNT PAUSE_AT LIFE...

A client that makes transfers in the bank (see `tests.support.bank`). It continues after its last transfer until COUNT
transfers are made, prints `done NAME-N` after each, and sometimes aborts a transfer, which must never be visible. In
transfer PAUSE_AT (-1: none), with pending records, it prints `paused` and waits for a line. After an abortable error
it prints `again ERROR` and repeats the transfer; a fenced client tries every call, prints `fenced CALL ERROR` for each,
and ends.

    python -m tests.support.transaction_programs copy_loop CLUSTER NAME SESSION_MS INSTANCE LIFE...

It copies topic `in` to topic `out`, each poll in a transaction with the group's offsets. INSTANCE is the
group_instance_id, `-` for none. It prints `copied PARTITION OFFSET` for each record after the commit, and `again ERROR`
when it must abort and read again. On `pause` it prints `pausing`; in its next transaction, with pending records, it
prints `paused` and waits for `go`. At the end of its input it ends when everything is copied.
"""

import os
import select
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidTxnStateError, ProducerFencedError
from spark_log.groups.committed_offsets import committed_offsets
from tests.support.bank import NUMBERS, Leg, group_of, legs_of, numbered, value
from tests.support.children import live, say

_NUMBERS = TopicPartition(NUMBERS, 0)
_ABORTED_MAX = 50


class Client:
    """Makes transfers with a producer that has called init_transactions."""

    def __init__(self, cluster: Cluster, producer: Producer, name: str, pause_at: int) -> None:
        self.producer = producer
        self._cluster, self._name, self._pause_at = cluster, name, pause_at

    @property
    def next_number(self) -> int:
        return committed_offsets(self._cluster.store, group_of(self._name)).get(_NUMBERS, 0)

    def work(self, count: int) -> None:
        aborted = 0
        while (number := self.next_number) < count:
            assert aborted < _ABORTED_MAX, f"transfer {number} does not come about"
            try:
                if number % 4 == 1:
                    self._transfer_and_abort(number)
                self._transfer(number)
            except ProducerFencedError:
                self._try_calls_of_fenced(number)
                return
            except KafkaError as error:
                say("again", type(error).__name__)
                aborted += 1
                try:
                    self.producer.abort_transaction()
                except InvalidTxnStateError:  # it had been committed after all
                    say("found", self._name)

    def _send(self, transfer: str, legs: tuple[Leg, ...]) -> None:
        for leg in legs:
            self.producer.send(leg.branch, value(transfer, leg), leg.account.encode())

    def _transfer_and_abort(self, number: int) -> None:
        transfer = f"{numbered(self._name, number)}-never"
        self.producer.begin_transaction()
        self._send(transfer, legs_of(transfer))
        self.producer.flush()
        self.producer.abort_transaction()

    def begin(self, number: int) -> None:
        """Send a transfer without committing it."""
        transfer = numbered(self._name, number)
        legs = legs_of(transfer)
        self.producer.begin_transaction()
        self._send(transfer, legs[:1])
        self.producer.flush()  # so that a transaction is registered in parts
        self._send(transfer, legs[1:])
        next_number = OffsetAndMetadata(number + 1, "", -1)
        self.producer.send_offsets_to_transaction({_NUMBERS: next_number}, group_of(self._name))

    def _transfer(self, number: int) -> None:
        self.begin(number)
        if number == self._pause_at:
            self.producer.flush()
            self._pause_at = -1
            say("paused")
            sys.stdin.readline()
        self._commit()
        say("done", numbered(self._name, number))

    def _commit(self) -> None:
        while True:
            try:
                self.producer.commit_transaction()
            except KafkaError as error:
                if not getattr(error, "retriable", False):
                    raise
                say("asks", type(error).__name__)
            else:
                return

    def _try_calls_of_fenced(self, number: int) -> None:
        producer, (leg, *_) = self.producer, legs_of("zombie")
        calls: dict[str, Callable[[], object]] = {
            "commit": producer.commit_transaction,
            "abort": producer.abort_transaction,
            "begin": producer.begin_transaction,
            "send": lambda: producer.send(leg.branch, value(numbered(self._name, number), leg)),
        }
        for name, call in calls.items():
            try:
                call()
            except KafkaError as error:
                say("fenced", name, type(error).__name__)
            else:
                say("fenced", name, "nothing")


@contextmanager
def at_work(cluster: Cluster, address: str, name: str, pause_at: int = -1) -> Iterator[Client]:
    """A client whose producer has not called init_transactions yet."""
    transactional_id = group_of(name)
    with Producer(cluster=address, transactional_id=transactional_id, transaction_timeout_ms=600_000) as producer:
        yield Client(cluster, producer, name, pause_at)


def bank_client(address: str, name: str, count: str, pause_at: str, *lives: str) -> None:
    def work(under_way: Callable[[], None]) -> None:
        with Cluster.open(address) as cluster, at_work(cluster, address, name, int(pause_at)) as client:
            client.producer.init_transactions()
            under_way()
            client.work(int(count))

    live(lives, work)


SOURCE, TARGET, GROUP = "in", "out", "copiers"


def transformed(value: bytes) -> bytes:
    return value.upper()


class Copier:
    """Copies until its input has ended and everything is copied."""

    def __init__(self, consumer: Consumer, producer: Producer) -> None:
        self._consumer, self._producer = consumer, producer
        self._transactions = 0
        self._pausing = self._ending = False

    def work(self) -> None:
        while not (self._ending and self._done()):
            self._listen()
            polled = self._consumer.poll(50)
            if polled:
                try:
                    self._copy(polled)
                except KafkaError as error:
                    say("again", type(error).__name__)
                    self._producer.abort_transaction()
                    self._rewind()

    def _listen(self) -> None:
        if not self._ending and select.select([0], [], [], 0)[0]:
            word = os.read(0, 100)
            if word:
                assert word == b"pause\n"
                self._pausing = True
                say("pausing")
            self._ending = not word

    def _copy(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        self._producer.begin_transaction()
        for (_, number), records in polled.items():
            for record in records:
                self._producer.send(TARGET, transformed(record.value), record.key, partition=number)
        self._transactions += 1
        if self._transactions % 4 == 2:  # as if the transformation had failed
            self._producer.flush()
            self._producer.abort_transaction()
            self._rewind()
            return
        ends = {partition: OffsetAndMetadata(records[-1].offset + 1, "", -1) for partition, records in polled.items()}
        self._producer.send_offsets_to_transaction(ends, self._consumer.group_metadata())
        if self._pausing:
            self._producer.flush()
            self._pausing = False
            say("paused")
            assert os.read(0, 100) == b"go\n"
        self._producer.commit_transaction()
        for (_, number), records in polled.items():
            for record in records:
                say("copied", number, record.offset)

    def _rewind(self) -> None:
        """Seek to the committed offsets of the group."""
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, self._consumer.committed(partition) or 0)

    def _done(self) -> bool:
        partitions = [TopicPartition(SOURCE, number) for number in self._consumer.partitions_for_topic(SOURCE) or ()]
        ends = self._consumer.end_offsets(partitions)
        return all(self._consumer.committed(partition) == ends[partition] for partition in partitions)


def copy_loop(address: str, name: str, session_ms: str, instance: str, *lives: str) -> None:
    def work(under_way: Callable[[], None]) -> None:
        with (
            Producer(cluster=address, transactional_id=f"copy-{name}") as producer,
            Consumer(
                SOURCE,
                cluster=address,
                group_id=GROUP,
                group_instance_id=None if instance == "-" else instance,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                max_poll_records=3,
                session_timeout_ms=int(session_ms),
                heartbeat_interval_ms=int(session_ms) // 5,
            ) as consumer,
        ):
            producer.init_transactions()
            under_way()
            Copier(consumer, producer).work()

    live(lives, work)


if __name__ == "__main__":
    _, program, *arguments = sys.argv
    {"bank_client": bank_client, "copy_loop": copy_loop}[program](*arguments)
