"""Committed offsets of consumer groups."""

from collections.abc import Mapping

import sqlalchemy as sa

from spark_log.cluster.topics import find_topics
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.store import Attempt, Store


def commit_offsets(store: Store, group_id: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
    """Commit the next offsets to read, for a group without members (a Spark query), of topics that exist."""

    def commit(connection: sa.Connection, _attempt: Attempt) -> None:
        now_ms = store.clock(connection).wall_ms
        g, o = t.consumer_group.c, t.group_offset.c
        topics = find_topics(connection, {name for name, _ in offsets})
        known = connection.execute(sa.select(g.commit_count).where(g.group_id == group_id).with_for_update()).scalar()
        if known is None:
            new = {"group_id": group_id, "generation": 0, "assignor": "", "commit_count": 0, "empty_since_ms": now_ms}
            connection.execute(t.consumer_group.insert(), new)
        position = (known or 0) + 1
        rows = [
            {
                "group_id": group_id,
                "topic_id": topics[name].topic_id,
                "partition": partition,
                "committed_offset": offset,
                "leader_epoch": -1,
                "commit_metadata": metadata,
                "committed_ms": now_ms,
                "position": position,
            }
            for (name, partition), offset in sorted(offsets.items())
            if name in topics
        ]
        connection.execute(t.consumer_group.update().where(g.group_id == group_id).values(commit_count=position))
        for topic_id in {row["topic_id"] for row in rows}:
            numbers = [row["partition"] for row in rows if row["topic_id"] == topic_id]
            for first in range(0, len(numbers), 5_000):
                here = (o.group_id == group_id) & (o.topic_id == topic_id)
                connection.execute(t.group_offset.delete().where(here, o.partition.in_(numbers[first : first + 5_000])))
        if rows:
            connection.execute(t.group_offset.insert(), rows)

    store.transact(commit)


def committed_offsets(store: Store, group_id: str) -> dict[TopicPartition, int]:
    """The group's committed offsets; empty for a group that there is not."""
    o = t.group_offset.c
    query = (
        sa.select(t.topic.c.name, o.partition, o.committed_offset)
        .join(t.topic, t.topic.c.topic_id == o.topic_id)
        .where(o.group_id == group_id)
    )
    rows = store.read(lambda connection: connection.execute(query).all())
    return {TopicPartition(name, partition): offset for name, partition, offset in rows}
