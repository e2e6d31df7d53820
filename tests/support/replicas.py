"""Clusters of several embedded brokers, the state and invariants of their replicas, and unclean elections."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import sqlalchemy as sa

from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic, find_topic
from spark_log.facts.topics import describe_topics
from spark_log.log.partitions.partition_rows import lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import fail_over, lose_files
from spark_log.log.segments.segment_copy import Pace, SegmentFile, copy_segment
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller import topic_copies
from spark_log.replication.controller.controller import elect_leaders, truncate_log
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.controller.topic_operations import create_topic, insert_topic
from spark_log.replication.replicas import catch_up
from tests.support.stores import topics_view


def add_brokers(cluster: Cluster, folder: Path, *broker_ids: int, racks: dict[int, str] | None = None) -> None:
    """Add embedded brokers, each with one log dir `folder/broker-N`."""
    for broker_id in broker_ids:
        add_broker(cluster, broker_id, [str(folder / f"broker-{broker_id}")], (racks or {}).get(broker_id))


def topic_on(cluster: Cluster, name: str, assignments: Sequence[Sequence[int]], **configs: str) -> Topic:
    """A topic whose partition N has its replicas at `assignments[N]`. Configs have `_` for `.` in their names."""
    first = {info.broker_id: info.log_dir_id for info in reversed(cluster.log_dirs().values())}
    placement = [[(broker_id, first[broker_id]) for broker_id in replicas] for replicas in assignments]  # type: ignore[index]
    named = {key.replace("_", "."): value for key, value in configs.items()}
    if topics_view(cluster) is not cluster:
        with patch.object(topic_copies, "place_replicas", lambda *_: placement):
            return create_topic(cluster, name, len(assignments), len(assignments[0]), named)
    return cluster.store.transact(
        lambda connection: insert_topic(
            connection, name, placement, len(assignments[0]), named, cluster.store.clock(connection)
        )
    )


def assigned(cluster: Cluster, name: str) -> list[list[int]]:
    """AR of each partition."""
    [described] = describe_topics(cluster, [name])
    return [[replica.broker_id for replica in partition.replicas] for partition in described.partitions]


def folder_of(cluster: Cluster, broker_id: int) -> Path:
    """The log dir of a broker that has one."""
    [uri] = [info.uri for info in cluster.log_dirs().values() if info.broker_id == broker_id]
    return Path(unquote(urlsplit(uri).path))


def inspect_and_elect(cluster: Cluster) -> None:
    """One round of the controller in each store: it detects unavailable log dirs and elects leaders."""

    def detect(view: Cluster) -> None:
        inspect_log_dirs(view, unfenced)
        elect_leaders(view.store, unfenced)

    in_each_store(cluster, detect)


def take_away(cluster: Cluster, broker_id: int) -> None:
    """Make the broker's log dir unavailable; the controller detects it and elects leaders."""
    folder = folder_of(cluster, broker_id)
    folder.rename(folder.with_name(f"{folder.name}-away"))
    inspect_and_elect(cluster)


def bring_back(cluster: Cluster, broker_id: int) -> None:
    """Restore the broker's log dir with all its files; the controller detects it."""
    folder = folder_of(cluster, broker_id)
    folder.with_name(f"{folder.name}-away").rename(folder)
    in_each_store(cluster, lambda view: inspect_log_dirs(view, unfenced))


@contextlib.contextmanager
def copied_segments() -> Iterator[list[str]]:
    """The paths of the segment files that replicas copy in this process during the block."""
    copied: list[str] = []

    def copy(sources: Iterable[LogDir], target: LogDir, file: SegmentFile, pace: Pace) -> None:
        copy_segment(sources, target, file, pace)
        copied.append(file.path)

    with patch.object(catch_up, "copy_segment", copy):
        yield copied


def truncate(cluster: Cluster, topic: str, to: int, partition: int = 0) -> None:
    """An unclean election: every log dir returns with only the records below `to`, which is a segment boundary."""
    store = topics_view(cluster).store

    def elect(connection: sa.Connection) -> None:
        found = find_topic(connection, topic)
        here = (
            (SEGMENT.topic_id == found.topic_id)
            & (SEGMENT.partition == partition)
            & (SEGMENT.base_offset < to)
            & (SEGMENT.end_offset > to)
        )
        assert connection.execute(sa.select(SEGMENT.base_offset).where(here)).first() is None, (
            f"{to}: inside of a segment"
        )
        key = (found.topic_id, partition)
        before = lock_partitions(connection, [key])
        state = before[key]
        for replica in state.replicas:
            state = lose_files(state, replica.broker_id, to)
        after, truncation = fail_over(state, {replica.log_dir_id for replica in state.replicas}, unclean=True)
        assert truncation is not None, "nothing was removed"
        now = store.clock(connection)
        after = truncate_log(connection, found, partition, truncation, state, after, now)
        save_partitions(connection, before, {key: after})

    store.transact(elect)
