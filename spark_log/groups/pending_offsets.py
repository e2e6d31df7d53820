"""Keeps group offsets that Kafka clients add to their open transactions (TxnOffsetCommit) until the transaction ends.

As in Kafka, a member is checked when it adds offsets, and not again at the commit. So a member that gets a partition
must not start from the last committed offset while another offset is pending: it waits (KIP-447).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from spark_log.cluster.topics import DELETING
from spark_log.failpoints import failpoint
from spark_log.groups.committed_offsets import Commit, of_their_topics, offset_row
from spark_log.groups.transacted_offsets import Commits, Committer, check_committing
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared
from spark_log.metadata.sql_columns import TOPIC, TRANSACTION, TRANSACTION_OFFSET
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Store
from spark_log.transactions import rules
from spark_log.transactions.fencing_rules import FencingToken
from spark_log.transactions.rules import ONGOING
from spark_log.transactions.transaction_rows import write_pending_offsets
from spark_log.transactions.wire_transactions import WireProducer, locked

_GROUPS = Prepared(
    sa.select(TRANSACTION_OFFSET.group_id)
    .distinct()
    .where(TRANSACTION_OFFSET.producer_id == sa.bindparam("producer_id"))
)


def add_offsets(
    store: Store,
    producer: WireProducer,
    token: FencingToken,
    who: Committer,
    commits: Commits,
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> list[TopicPartition]:
    """Make offsets of a group pending in the open transaction. Returns the partitions that do not exist, or whose
    commit has the id of another topic.

    Raises the errors of `rules.check_open` and `rules.check_groups`, and FencedConnectionError. Raises
    UnknownMemberIdError, IllegalGenerationError or FencedInstanceIdError if the member may not commit the offsets now.
    """

    def body(connection: sa.Connection) -> list[TopicPartition]:
        transaction = locked(connection, store, producer, token).transaction
        rules.check_open(transaction, producer.ref)
        groups = {group_id for (group_id,) in _GROUPS.rows(connection, {"producer_id": producer.producer_id})}
        rules.check_groups(groups | {who.group_id}, f"transaction of {transaction.transactional_id!r}")
        # with the group's lock, a member to which a partition is assigned after this finds the pending offset
        check_committing(store, connection, who, commits, lock=True)
        here = of_their_topics(connection, commits)
        rows = [offset_row(who.group_id, partition, commit) for partition, commit in sorted(here.items())]
        write_pending_offsets(connection, producer.producer_id, rows)
        return sorted(commits.keys() - here.keys())

    unknown = store.transact(body, timeout_ms=timeout_ms)
    failpoint("gateway.offsets-added")
    return unknown


def read_pending_offsets(connection: sa.Connection, producer_id: int) -> Mapping[Committer, Commits]:
    """Return the offsets that the producer's open transaction will commit, by group, with unfenced committers. Those of
    topics that are being deleted are left out: they may have come while the deletion began.
    """
    query = (
        sa.select(
            TRANSACTION_OFFSET.group_id,
            TOPIC.name,
            TRANSACTION_OFFSET.partition,
            TRANSACTION_OFFSET.committed_offset,
            TRANSACTION_OFFSET.commit_metadata,
            TRANSACTION_OFFSET.leader_epoch,
            TRANSACTION_OFFSET.topic_id,
        )
        .join(t.topic, TOPIC.topic_id == TRANSACTION_OFFSET.topic_id)
        .where(TRANSACTION_OFFSET.producer_id == producer_id, TOPIC.state != DELETING)
    )
    found: dict[Committer, dict[TopicPartition, Commit]] = defaultdict(dict)
    for group_id, name, partition, offset, metadata, *rest in connection.execute(query):
        commit = Commit(offset, metadata.decode(), *rest)
        found[Committer(group_id, unfenced=True)][TopicPartition(name, partition)] = commit
    return found


def unstable_partitions(connection: sa.Connection, group_id: str) -> Collection[TopicPartition]:
    """Return the partitions for which an open transaction may commit another offset of the group.

    A transaction that has timed out counts until it is aborted: its commit may have begun in time.
    """
    query = (
        sa.select(TOPIC.name, TRANSACTION_OFFSET.partition)
        .join(t.topic, TOPIC.topic_id == TRANSACTION_OFFSET.topic_id)
        .join(t.transaction, TRANSACTION.producer_id == TRANSACTION_OFFSET.producer_id)
        .where(TRANSACTION_OFFSET.group_id == group_id, TRANSACTION.state == ONGOING.value)
    )
    return {TopicPartition(name, partition) for name, partition in connection.execute(query)}
