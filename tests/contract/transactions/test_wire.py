"""Transactions of Kafka clients in the store, without a gateway: fencing, pending batches and offsets, aborts."""

import threading

import pytest
import sqlalchemy as sa
from kafka.structs import TopicPartition as KafkaPartition

from spark_log import Consumer
from spark_log.clients.consume import poll_loop
from spark_log.errors import GroupIdNotFoundError, PolicyViolationError, ProducerFencedError
from spark_log.groups.committed_offsets import Commit, committed_offsets
from spark_log.groups.group_operations import delete_group, delete_offsets
from spark_log.groups.pending_offsets import add_offsets, unstable_partitions
from spark_log.groups.share.administration import reset_share_offsets
from spark_log.groups.transacted_offsets import Committer
from spark_log.ids import TopicPartition
from spark_log.log.append.producer_rows import copy_missing_producers
from spark_log.log.append.rules import (
    Appended,
    Batch,
)
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.metadata import tables as t
from spark_log.transactions import rules, transaction_expiry, transaction_parts, wire_transactions
from spark_log.transactions.fencing_rules import FencedConnectionError, Role
from spark_log.transactions.transaction_expiry import abort_timed_out
from spark_log.transactions.transaction_store import init_producer
from spark_log.transactions.wire_transactions import Registration, WireProducer, register, take_fencing_token
from tests.contract.transactions.transaction_state import FILES, LARGE, NUMBERS, group, name_of, rows, segment_files
from tests.support.share_members import ShareMember
from tests.support.stores import change, topics_view
from tests.support.waiting import LIMIT_S


class Wire:
    """A client's producer with an open transaction, and the fencing tokens of its connections. The topics may be in a
    data store, where the transaction then has a part.
    """

    def __init__(self, cluster):
        self.cluster, self.store, self.topics = cluster, cluster.store, topics_view(cluster)
        ref, self.token, _ = init_producer(cluster, f"id{next(NUMBERS)}", 60_000)
        self.who = WireProducer(self.name_of(ref.producer_id), ref.producer_id, ref.epoch)
        self.offsets_token = take_fencing_token(self.store, self.who, Role.OFFSETS)
        self.begin()

    def name_of(self, producer_id):
        query = sa.select(t.producer.c.transactional_id).where(t.producer.c.producer_id == producer_id)
        return self.store.read(lambda c: c.execute(query).scalar_one())

    def begin(self):
        wire_transactions.begin(self.store, self.who, self.token)

    def abort(self):
        parts = wire_transactions.abort(self.cluster, self.who, self.token)
        transaction_parts.abort_parts(self.cluster, self.who.producer_id, parts)

    def add_offsets(self, group_id, topic, *numbers, offset=1):
        commits = {TopicPartition(topic, number): Commit(offset) for number in numbers}
        return add_offsets(self.store, self.who, self.offsets_token, Committer(group_id, unfenced=True), commits)

    def send(self, topic, first, count=1, provisional=False):
        """The outcomes of batches of one record."""
        batches = [
            Batch(
                topic.topic_id, 0, f"{self.who.producer_id}-{number}", True, 1, 1, 0, 0, 0, "none", "",
                sequence=ProducerSequence(self.who.producer_id, self.who.epoch, number),
            )
            for number in range(first, first + count)
        ]  # fmt: skip
        blobs = {each.name: b"" for each in batches}
        registration = Registration(self.who, batches, self.part())
        [found] = register(self.topics.store, [registration], blobs, provisional=provisional)
        return found

    def part(self):
        """The number of its part in the data store of the topics, which it makes; None at home."""
        if self.topics is self.cluster:
            return None
        numbers = wire_transactions.join(self.store, [self.who], self.topics.store_id)
        copy_missing_producers(self.store, self.topics.store, {self.who.producer_id})
        return numbers[self.who]

    @property
    def pending(self):
        """The number of its pending batches."""
        table = t.transaction if self.topics is self.cluster else t.transaction_part
        [row] = rows(self.cluster, table, table.c.producer_id == self.who.producer_id)
        return row.pending


def unstable(cluster, group_id):
    return cluster.store.read(lambda connection: unstable_partitions(connection, group_id))


def test_only_the_newest_fencing_token_may_act(cluster, topic):
    name, mine = topic(), group()
    wire = Wire(cluster)
    wire.add_offsets(mine, name, 0)
    old, old_offsets = wire.token, wire.offsets_token
    wire.token = take_fencing_token(cluster.store, wire.who, Role.COORDINATOR)
    for call in (
        lambda: wire_transactions.begin(cluster.store, wire.who, old),
        lambda: wire_transactions.abort(cluster, wire.who, old),
        lambda: wire_transactions.read_open(cluster.store, wire.who, old),
    ):
        with pytest.raises(FencedConnectionError):
            call()
    wire.add_offsets(mine, name, 0)  # this role has a fencing token of its own
    wire.abort()
    wire.begin()
    with pytest.raises(FencedConnectionError):  # the client aborts if it has given one up
        wire.add_offsets(mine, name, 0)
    wire.offsets_token = take_fencing_token(cluster.store, wire.who, Role.OFFSETS)
    wire.add_offsets(mine, name, 0)
    assert old_offsets != wire.offsets_token
    init_producer(cluster, wire.who.transactional_id, 60_000)
    with pytest.raises(ProducerFencedError):
        take_fencing_token(cluster.store, wire.who, Role.COORDINATOR)


def test_a_group_with_offsets_in_an_open_transaction_does_not_become_a_share_group(cluster, topic):
    """The transaction could not be committed."""
    name, mine = topic(), group()
    wire = Wire(cluster)
    wire.add_offsets(mine, name, 0)
    for begin in (
        lambda: ShareMember(cluster, ["later"], mine),
        lambda: reset_share_offsets(cluster, mine, {}),
        lambda: reset_share_offsets(cluster, mine, {}, dry_run=True),
    ):
        with pytest.raises(GroupIdNotFoundError, match=f"Group {mine} is not a share group"):
            begin()
    wire.abort()
    ShareMember(cluster, ["later"], mine)


def test_offset_is_unstable_until_a_transaction_that_has_timed_out_is_aborted(cluster, topic):
    name, mine = topic(), group()
    wire = Wire(cluster)
    wire.add_offsets(mine, name, 0)
    change(
        cluster, t.transaction.update().where(t.transaction.c.producer_id == wire.who.producer_id).values(until_ms=0)
    )
    assert unstable(cluster, mine) == {(name, 0)}, "a commit that began in time may be under way"
    seen = cluster.store.changes.current()
    assert list(abort_timed_out(cluster)) == [wire.who.transactional_id]
    assert cluster.store.changes.wait(seen, 30), "consumers that wait for it are woken"
    assert unstable(cluster, mine) == set()


def test_files_are_deleted_after_every_transaction_that_has_timed_out_is_aborted(cluster, topic, monkeypatch):
    wires, aborted, deletions = [Wire(cluster), Wire(cluster)], [], []
    for wire in wires:
        wire.add_offsets(group(), topic(), 0)
    change(cluster, t.transaction.update().values(until_ms=0))
    monkeypatch.setattr(transaction_expiry, "delete_files", lambda *_: deletions.append(list(aborted)))
    for transactional_id in abort_timed_out(cluster):
        aborted.append(transactional_id)
    assert {wire.who.transactional_id for wire in wires} <= set(aborted) and deletions == [aborted]


def test_a_transaction_that_cannot_be_aborted_does_not_stop_the_others(cluster, topic, monkeypatch):
    wires, aborted, read = [Wire(cluster), Wire(cluster)], [], transaction_expiry.read_pending
    for wire in wires:
        wire.add_offsets(group(), topic(), 0)
    damaged, whole = sorted(wires, key=lambda wire: wire.who.producer_id)

    def read_pending(connection, producer_id):
        if producer_id == damaged.who.producer_id:
            raise KeyError("damaged")
        return read(connection, producer_id)

    change(cluster, t.transaction.update().values(until_ms=0))
    with monkeypatch.context() as patched:
        patched.setattr(transaction_expiry, "read_pending", read_pending)
        with pytest.raises(KeyError):
            aborted.extend(abort_timed_out(cluster))  # one by one
    assert whole.who.transactional_id in aborted
    assert damaged.who.transactional_id in list(abort_timed_out(cluster))


def test_deleted_offsets_are_not_committed_by_an_open_transaction(cluster, topic):
    name, mine, other = topic(2), group(), group()
    wire = Wire(cluster)
    for group_id in (mine, other):
        wire.add_offsets(group_id, name, 0, 1)
    delete_offsets(cluster.store, mine, [TopicPartition(name, 0)])
    assert unstable(cluster, mine) == {(name, 1)}
    delete_group(cluster.store, mine)
    assert unstable(cluster, mine) == set()
    assert unstable(cluster, other) == {(name, 0), (name, 1)}


@pytest.mark.parametrize("end", ["client", "next producer"])
def test_abort_wakes_those_who_wait_for_its_offsets(cluster, topic, end, monkeypatch):
    wire = Wire(cluster)
    wire.add_offsets(group(), topic(), 0)
    announced = []
    monkeypatch.setattr(cluster.store.changes, "announce", lambda: announced.append(True))
    if end == "client":
        wire.abort()
    else:
        init_producer(cluster, wire.who.transactional_id, 60_000)
    assert announced


def test_position_waits_for_the_end_of_the_transaction(cluster, cluster_address, topic, monkeypatch):
    name, mine = topic(), group()
    wire = Wire(cluster)
    wire.add_offsets(mine, name, 0, offset=7)
    asked = threading.Event()

    def noticed(*arguments):
        found = unstable_partitions(*arguments)
        asked.set()
        return found

    monkeypatch.setattr(poll_loop, "unstable_partitions", noticed)
    consumer = Consumer(cluster=cluster_address, group_id=mine, auto_offset_reset="earliest")
    partition = KafkaPartition(name, 0)
    consumer.assign([partition])
    assert consumer.position(partition, timeout_ms=1) is None
    asked.clear()

    def abort_later():
        asked.wait()
        wire.abort()

    ending = threading.Thread(target=abort_later)
    ending.start()
    assert consumer.position(partition) == 0
    ending.join()
    consumer.close()


def test_pending_batches_are_counted_and_bounded(cluster, topic, log, monkeypatch):
    there = log.find_topic(topic())
    wire = Wire(cluster)
    monkeypatch.setattr(rules, "PENDING_MAX", 3)
    assert [type(each) for each in wire.send(there, 0, 2)] == [Appended] * 2
    assert [each.duplicate for each in wire.send(there, 0, 2)] == [True, True]
    assert wire.pending == 2
    third, refused = wire.send(there, 2, 2)
    assert isinstance(third, Appended)
    assert isinstance(refused.error, PolicyViolationError)
    assert "more than 3 batches" in str(refused.error)
    assert wire.pending == 3
    pending = rows(cluster, t.transaction_segment, t.transaction_segment.c.producer_id == wire.who.producer_id)
    assert sorted(each.position for each in pending) == [0, 1, 2]
    wire.abort()
    assert wire.pending == 0


def test_a_transaction_has_offsets_of_a_limited_number_of_groups(cluster, topic, monkeypatch):
    name, groups = topic(2), [group() for _ in range(3)]
    wire = Wire(cluster)
    monkeypatch.setattr(rules, "GROUPS_MAX", 2)
    for mine in groups[:2]:
        wire.add_offsets(mine, name, 0)
    with pytest.raises(PolicyViolationError, match="of more than 2 groups"):
        wire.add_offsets(groups[2], name, 0)
    wire.add_offsets(groups[1], name, 1)
    assert [len(unstable(cluster, mine)) for mine in groups] == [1, 2, 0]
    wire.abort()
    wire.begin()
    wire.offsets_token = take_fencing_token(cluster.store, wire.who, Role.OFFSETS)
    wire.add_offsets(groups[2], name, 0)


def test_provisional_offsets_follow_the_log_end(cluster, topic, log):
    there = log.find_topic(topic())
    wire, other = Wire(cluster), Wire(cluster)
    change(cluster, t.partition.update().where(t.partition.c.topic_id == there.topic_id).values(log_end_offset=100))
    assert [each.base_offset for each in wire.send(there, 0, 2)] == [-1, -1]
    assert [each.base_offset for each in wire.send(there, 1, 3, provisional=True)] == [101, 102, 103]
    assert [each.base_offset for each in other.send(there, 0, 1, provisional=True)] == [100]
    wire.abort()
    other.abort()


def test_offsets_of_a_request_are_written_by_one_statement(cluster, topic):
    name, mine = topic(50), group()
    wire = Wire(cluster)
    statements = []

    def written(offset, *numbers):
        statements.clear()
        assert wire.add_offsets(mine, name, *numbers, offset=offset) == []
        return sum("transaction_offset" in each for each in statements)

    def note(_connection, _cursor, statement, *_):
        statements.append(statement)

    sa.event.listen(cluster.store.engine, "before_cursor_execute", note)
    try:
        assert [written(1, 0), written(2, *range(50))] == [1, 1]
    finally:
        sa.event.remove(cluster.store.engine, "before_cursor_execute", note)
    found = rows(cluster, t.transaction_offset, t.transaction_offset.c.group_id == mine)
    assert sorted((each.partition, each.committed_offset) for each in found) == [(n, 2) for n in range(50)]
    assert committed_offsets(cluster.store, mine) == {}


def test_next_producer_deletes_the_files_of_the_transaction_that_it_aborts(cluster, log, topic, begin):
    name = topic(**FILES)
    producer = begin()
    producer.send(name, LARGE).get(timeout=LIMIT_S)
    there = log.find_topic(name)
    assert len(segment_files(cluster, there)) == 1
    begin(name_of(producer))
    assert segment_files(cluster, there) == []
