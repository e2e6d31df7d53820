"""A process that makes transfers in the bank (see `tests.support.bank`).

    python -m tests.support.bank_client CLUSTER NAME COUNT PAUSE_AT LIFE...

It continues after its last transfer until COUNT transfers are made, prints `done NAME-N` after each, and sometimes
aborts a transfer, which must never be visible. In transfer PAUSE_AT (-1: none), with pending records, it prints
`paused` and waits for a line. After an abortable error it prints `again ERROR` and repeats the transfer; a fenced
client tries every call, prints `fenced CALL ERROR` for each, and ends.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidTxnStateError, ProducerFencedError
from spark_log.groups.committed_offsets import committed_offsets
from tests.support.bank import NUMBERS, Leg, group_of, legs_of, numbered, value
from tests.support.lives import live, say

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


def main(address: str, name: str, count: int, pause_at: int, lives: list[str]) -> None:
    def work(under_way: Callable[[], None]) -> None:
        with Cluster.open(address) as cluster, at_work(cluster, address, name, pause_at) as client:
            client.producer.init_transactions()
            under_way()
            client.work(count)

    live(lives, work)


if __name__ == "__main__":
    _, address, name, count, pause_at, *lives = sys.argv
    main(address, name, int(count), int(pause_at), lives)
