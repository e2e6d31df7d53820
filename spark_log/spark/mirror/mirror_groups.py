"""Copies the committed offsets of groups from a mirror's source to its target, where records have the same offsets.
Driver.
"""

import logging
from collections.abc import Mapping
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import by_store
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    GroupIdNotFoundError,
    OffsetMetadataTooLargeError,
    SparkLogError,
    UnknownMemberIdError,
)
from spark_log.groups.committed_offsets import Commit, commit_offsets, read_commits
from spark_log.ids import TopicPartition
from spark_log.log.segments import plan as planner
from spark_log.log.segments.slices import Positions
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import GROUP_OFFSET, TOPIC

logger = logging.getLogger(__name__)

Commits = Mapping[TopicPartition, Commit]

_warned: set[tuple[str, str]] = set()
"""The target clusters and groups of which a warning was logged."""


def advanced(source: Commits, target: Commits, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Commit]:
    """Return the commits that move a group forward in the target, by the target's partitions, at most to their `ends`.

    A group that has read further in the target is not moved back. If a group has read records that are not copied yet,
    it reads them again in the target (at least once).
    """
    moved: dict[TopicPartition, Commit] = {}
    for partition, commit in source.items():
        known, end = target.get(partition), ends.get(partition)
        if end is None:
            continue  # the topic has been deleted
        offset = min(commit.offset, end)
        if known is None or known.offset < offset:
            moved[partition] = commit._replace(offset=offset)
    return moved


def copy_groups(source: Cluster, target: Cluster, pairs: Mapping[str, tuple[Topic, Topic]]) -> dict[str, int]:
    """Move the groups of the source forward in the target. `pairs` are the topics of both, by the source's names.

    Return the number of committed offsets of each group that was moved. A group with live members in the target stays
    unchanged. A group also stays unchanged if a share group of the target has its name, or its metadata is too large: a
    warning names it.
    """
    topics = {name: its_copy for name, (_, its_copy) in pairs.items()}
    query = (
        sa.select(
            GROUP_OFFSET.group_id,
            TOPIC.name,
            GROUP_OFFSET.partition,
            GROUP_OFFSET.committed_offset,
            GROUP_OFFSET.commit_metadata,
        )
        .join(t.topic, TOPIC.topic_id == GROUP_OFFSET.topic_id)
        .where(GROUP_OFFSET.topic_id.in_([mirrored.topic_id for mirrored, _ in pairs.values()]))
        .order_by(GROUP_OFFSET.group_id)
    )
    groups: dict[str, dict[TopicPartition, Commit]] = {}
    for group_id, topic, partition, offset, metadata in source.store.read(lambda c: c.execute(query).all()):
        # without the source's leader epoch, because the target has other epochs
        commit = Commit(offset, metadata.decode(), topic_id=topics[topic].topic_id)
        groups.setdefault(group_id, {})[TopicPartition(topics[topic].name, partition)] = commit
    positions = target.store.read(
        lambda connection: {
            group_id: read_commits(connection, group_id, commits.keys()) for group_id, commits in groups.items()
        }
    )
    limits: dict[TopicPartition, Positions] = {}
    for store_id, there in by_store(topics.values()).items():
        limits |= target.at(store_id).store.read(partial(planner.positions, topics=there))
    ends = {partition: found.high_watermark for partition, found in limits.items()}
    copied: dict[str, int] = {}
    for group_id, commits in groups.items():
        moved = advanced(commits, positions[group_id], ends)
        if moved:
            try:
                commit_offsets(target.store, group_id, moved)
            except UnknownMemberIdError:
                continue
            except (GroupIdNotFoundError, OffsetMetadataTooLargeError) as error:
                _warn_once(target, group_id, error)
                continue
            copied[group_id] = len(moved)
    return copied


def _warn_once(target: Cluster, group_id: str, error: SparkLogError) -> None:
    """Log the warning once for each group of a cluster, not at each step of the mirror."""
    if (target.cluster_id, group_id) not in _warned:
        _warned.add((target.cluster_id, group_id))
        logger.warning("group %r: its offsets are not copied to the target: %s", group_id, error)
