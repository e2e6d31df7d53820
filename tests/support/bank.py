"""A bank whose ledger is three topics, and its invariants, which hold in every snapshot.

Accounts are keys in three topics, the branches. A transfer is one transaction: a record that debits an account of one
branch, one that credits an account of another, a note in the third, and the number of the client's next transfer as an
offset of the client's group. A *leg* is one of the three records.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

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
from tests.support.numbered_writer import SMALL_TAILS

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
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="auditor")

    def __enter__(self) -> "Auditor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_PACE_S):
                self.audit()
        except BaseException as error:
            self._failure = error

    def audit(self) -> Statement:
        acknowledged = set(self._acknowledged())
        statement = audit(self._cluster, self._clients)
        statement.check(settled=statement.of_one_store)
        assert acknowledged <= set(statement.legs)
        return statement
