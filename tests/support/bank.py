"""A bank whose ledger is three topics, its invariants, which hold in every snapshot, and its clients of librdkafka.

Accounts are keys in three topics, the branches. A transfer is one transaction: a record that debits an account of one
branch, one that credits an account of another, a note in the third, and the number of the client's next transfer as an
offset of the client's group. A *leg* is one of the three records.

The `Clients` of librdkafka make transfers through gateways that are killed. `transaction_programs` has clients of ours.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import confluent_kafka as rdkafka
import sqlalchemy as sa

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.groups.committed_offsets import read_commits
from spark_log.ids import HOME, OffsetRange, StoreId, TopicPartition
from spark_log.log.records.schema import read_schema
from spark_log.log.segments import plan as planner
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import Slice
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import SMALL_TAILS
from tests.support.server_processes import GatewayProcess
from tests.support.waiting import Worker

BRANCHES = ("north", "south", "west")
NUMBERS = "numbers"
"""The topic, without records, whose offsets are the numbers of transfers; one partition serves all clients."""
ACCOUNTS = 5
"""Partitions of each branch."""
OPENING = 100
TOTAL = len(BRANCHES) * ACCOUNTS * OPENING

_PARTITIONS = 2
_PACE_S = 0.1
"""Pause between two checks of an auditor, so that other processes get CPU time."""


class Leg(NamedTuple):
    branch: str
    account: str
    amount: int


def numbered(client: str, number: int) -> str:
    """Id of a transfer."""
    return f"{client}-{number}"


def legs_of(transfer: str) -> tuple[Leg, Leg, Leg]:
    """The legs of a transfer, a function of its id; the third is the note."""
    chance = random.Random(transfer)
    branches = chance.sample(BRANCHES, k=len(BRANCHES))
    amount = chance.randint(1, 9)
    moved = zip(branches, (-amount, amount, 0), strict=True)
    one, two, three = (Leg(branch, f"a{chance.randrange(ACCOUNTS)}", moving) for branch, moving in moved)
    return one, two, three


def value(transfer: str, leg: Leg) -> bytes:
    """One value in four is too large for the tail, so that files, blobs and seals all occur."""
    chance = random.Random(f"{transfer} {leg}")
    filler = chance.randbytes(600).hex() if chance.random() < 0.25 else ""
    return f"{transfer} {leg.amount} {filler}".encode()


def group_of(client: str) -> str:
    return f"client-{client}"


def open_bank(
    cluster: Cluster,
    address: str,
    replication_factor: int = 1,
    configs: Mapping[str, str] = SMALL_TAILS,
    stores: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create the topics and the accounts. `stores` is the store of each branch, by default the cluster's default."""
    for branch in BRANCHES:
        create_topic(cluster, branch, _PARTITIONS, replication_factor, configs, store=stores.get(branch))
    create_topic(cluster, NUMBERS)
    with Producer(cluster=address, transactional_id="founder") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for branch in BRANCHES:
            for number in range(ACCOUNTS):
                leg = Leg(branch, f"a{number}", OPENING)
                producer.send(branch, value("opening", leg), leg.account.encode())
        producer.commit_transaction()


@dataclass(frozen=True)
class Statement:
    """The bank, in one snapshot of each store that has a part of it."""

    legs: Mapping[str, Sequence[Leg]]
    """The legs of each transfer."""
    following: Mapping[str, int]
    """The number of each client's next transfer, as its group has committed it."""
    of_one_store: bool = True

    def check(self, *, settled: bool = True) -> None:
        """Invariants 7 and 8: each transfer is complete, stored once, and has its offset; so the total is constant.

        If it is not settled, home has committed offsets of transfers that the data store has not followed yet.
        """
        assert sum(leg.amount for legs in self.legs.values() for leg in legs) == TOTAL
        for transfer, legs in self.legs.items():
            if transfer != "opening":
                assert sorted(legs) == sorted(legs_of(transfer)), f"{transfer}: {legs}"
        wanted = {numbered(client, number) for client, end in self.following.items() for number in range(end)}
        transfers = set(self.legs) - {"opening"}
        assert transfers == wanted if settled else transfers <= wanted


def audit(cluster: Cluster, clients: Sequence[str]) -> Statement:
    """Read the bank in one snapshot, or in one of each store that has a branch, home last: each transfer that has a leg
    in a data store is decided then, and has its offset.
    """
    elsewhere = {topic.store_id for topic in cluster.store.read(_branches).values()} - {HOME}
    slices = [piece for store_id in elsewhere for piece in cluster.at(store_id).store.read(_read_branches)]
    at_home, following = cluster.store.read(lambda connection: _read(connection, clients))
    slices += at_home
    legs: dict[str, list[Leg]] = {}
    for batch in Fetcher(cluster.log_dirs()).read(slices, read_schema(columns=["topic", "key", "value"])):
        for row in batch.to_pylist():
            transfer, amount, _ = row["value"].decode().split(" ")
            legs.setdefault(transfer, []).append(Leg(row["topic"], row["key"].decode(), int(amount)))
    return Statement(legs, following, not elsewhere)


def _branches(connection: sa.Connection) -> dict[str, Topic]:
    return find_topics(connection, set(BRANCHES))


def _read(connection: sa.Connection, clients: Sequence[str]) -> tuple[list[Slice], dict[str, int]]:
    """Return the segments of the branches at home, and the committed offsets of the clients' groups."""
    here = TopicPartition(NUMBERS, 0)
    commits = {client: read_commits(connection, group_of(client)).get(here) for client in clients}
    following = {client: commit.offset if commit else 0 for client, commit in commits.items()}
    return _read_branches(connection, HOME), following


def _read_branches(connection: sa.Connection, store_id: StoreId | None = None) -> list[Slice]:
    """Return the segments of the branches that are in the store of this connection."""
    topics = {name: topic for name, topic in _branches(connection).items() if store_id in (None, topic.store_id)}
    positions = planner.positions(connection, topics.values())
    ranges = {partition: OffsetRange(*known) for partition, known in positions.items()}
    return planner.with_inline_data(connection, planner.plan(connection, topics, ranges))


class Auditor:
    """Checks the bank continuously: each snapshot has at least the transfers acknowledged before."""

    def __init__(self, cluster: Cluster, clients: Sequence[str], acknowledged: Callable[[], Set[str]]) -> None:
        self._cluster, self._clients, self._acknowledged = cluster, clients, acknowledged

    def __enter__(self) -> "Auditor":
        self._worker = Worker(self._run, "auditor")
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.finish()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_PACE_S):
            self.audit()

    def audit(self) -> Statement:
        acknowledged = set(self._acknowledged())
        statement = audit(self._cluster, self._clients)
        statement.check(settled=statement.of_one_store)
        assert acknowledged <= set(statement.legs)
        return statement


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
        self._servers, self._names, self._count = servers, names, count
        self.acknowledged: set[str] = set()

    def __enter__(self) -> "Clients":
        self._pool = ThreadPoolExecutor(len(self._names), "teller")
        self._runs = [self._pool.submit(self._run, name) for name in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for run in self._runs:
            run.result()

    @property
    def running(self) -> bool:
        return not all(run.done() for run in self._runs)

    def _run(self, name: str) -> None:
        transfers = [numbered(name, number) for number in range(self._count)]
        transfer_all(
            self._servers,
            group_of(name),
            [records_of(transfer) for transfer in transfers],
            lambda number: self.acknowledged.add(transfers[number]),
        )


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
