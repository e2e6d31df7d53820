"""Transfers of the bank (`tests.support.bank`) by clients of librdkafka, through gateways that are killed."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import confluent_kafka as rdkafka

from tests.support.bank import NUMBERS, group_of, legs_of, numbered, value
from tests.support.gateway_process import GatewayProcess

WAIT_S = 60
ABORTED_EVERY = 4
"""Each fourth attempt is aborted."""
_SETTINGS = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 10,
    # librdkafka that has lost all brokers at once starts anew from bootstrap.servers (KIP-899), but keeps the ended
    # connection to the group's coordinator in its cache: send_offsets_to_transaction then waits for it without end
    "metadata.recovery.strategy": "none",
}


class Sent(NamedTuple):
    """A record of a transfer."""

    topic: str
    key: bytes
    value: bytes


def records_of(transfer: str) -> list[Sent]:
    return [Sent(leg.branch, leg.account.encode(), value(transfer, leg)) for leg in legs_of(transfer)]


def transfer_all(
    servers: str, transactional_id: str, transfers: Sequence[Sequence[Sent]], done: Callable[[int], None]
) -> None:
    """Make the transfers, from the number on that the group of this id has committed; calls `done` after each."""
    settings: dict[str, Any] = {"bootstrap.servers": servers, **_SETTINGS}
    consumer = rdkafka.Consumer({**settings, "group.id": transactional_id})
    metadata, attempts = consumer.consumer_group_metadata(), 0
    while True:
        producer = rdkafka.Producer(
            {
                **settings,
                "transactional.id": transactional_id,
                # an abort waits that long for a message that the purge missed, on its way to a gateway that was killed
                "message.timeout.ms": 5_000,
                "transaction.timeout.ms": 30_000,
            }
        )
        try:
            producer.init_transactions(WAIT_S)  # ends the transaction of the producer before
            [committed] = consumer.committed([rdkafka.TopicPartition(NUMBERS, 0)], WAIT_S)
            number = max(0, committed.offset)
            while number < len(transfers):
                attempts += 1
                producer.begin_transaction()
                for each in transfers[number]:
                    producer.produce(each.topic, each.value, each.key)
                offsets = [rdkafka.TopicPartition(NUMBERS, 0, number + 1)]
                producer.send_offsets_to_transaction(offsets, metadata, WAIT_S)
                if attempts % ABORTED_EVERY == 0:
                    producer.abort_transaction(WAIT_S)
                    continue
                producer.commit_transaction(WAIT_S)
                done(number)
                number += 1
            break
        except rdkafka.KafkaException:
            producer.purge()  # it was committed or not: the group's offset tells
    consumer.close()


class Clients:
    """One thread for each client, which makes `count` transfers."""

    def __init__(self, servers: str, names: Sequence[str], count: int) -> None:
        self._servers, self._count = servers, count
        self.acknowledged: set[str] = set()
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(name,), name=f"teller {name}") for name in names]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _run(self, name: str) -> None:
        transfers = [numbered(name, number) for number in range(self._count)]
        try:
            transfer_all(
                self._servers,
                group_of(name),
                [records_of(transfer) for transfer in transfers],
                lambda number: self.acknowledged.add(transfers[number]),
            )
        except BaseException as error:
            self.failures.append(error)


@contextlib.contextmanager
def killed_in_turn(gateways: Sequence[GatewayProcess], clients: Clients, every: int, kills: int) -> Iterator[list[int]]:
    """Kill one gateway after the other, each when `every` more transfers are acknowledged, and start it again.

    Yields a list of the numbers of transfers at the kills.
    """
    killed: list[int] = []

    def run() -> None:
        for turn in range(kills):
            while clients.running and len(clients.acknowledged) < (turn + 1) * every:
                threading.Event().wait(0.01)
            killed.append(len(clients.acknowledged))
            gateway = gateways[turn % len(gateways)]
            gateway.kill()
            gateway.start()

    killing = threading.Thread(target=run, name="kills gateways")
    killing.start()
    yield killed
    killing.join()
