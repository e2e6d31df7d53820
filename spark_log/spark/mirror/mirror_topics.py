"""The topics of a mirror: pairs of a topic of the source and its copy in the target, which is made if it is missing."""

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic, find_topic, find_topics
from spark_log.errors import (
    DataLossError,
    InvalidPartitionsError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_log.replication.controller.topic_operations import add_partitions, create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.mirror.mirror_columns import configs_for_target, copy_columns


@dataclass(frozen=True)
class MirrorSettings:
    """The topics to mirror, and how to mirror them."""

    topics: SubscribeTopics | SubscribePattern
    prefix: str = ""
    """Text in front of each topic's name in the target."""
    create: bool = False
    """Create topics and partitions that the target lacks, with the source's configs."""
    replication_factor: int | None = None
    """Replication factor of the topics that are created. With None, it is the source's."""
    offsets_per_step_max: int = 5_000_000
    allow_data_loss: bool = False
    """Continue after records that the source deleted before they were copied. The target then has a gap there."""


class Pair(NamedTuple):
    source: Topic
    target: Topic


class MirroredTopics:
    """The topics of the source that the settings choose, each with its copy in the target. Not thread-safe."""

    def __init__(self, source: Cluster, target: Cluster, settings: MirrorSettings) -> None:
        self._source, self._target, self._settings = source, target, settings
        self._seen: dict[str, Pair] = {}

    def pairs(self) -> dict[str, Pair]:
        """Return the mirrored topics, by their names in the source. Missing ones are created if the settings allow it.

        Raises UnknownTopicOrPartitionError, InvalidPartitionsError (the target has another number of partitions),
        DataLossError (a topic was deleted and created again), and the errors of `create_topic`.
        """
        wanted = self._settings.topics
        everything = self._source.store.read(find_topics)
        names = wanted.select(everything) if isinstance(wanted, SubscribePattern) else list(wanted.topics)
        for name in names:
            validate_user_topic(name, "mirror")
            if name not in everything:
                raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition, in the source")
        there = self._target.store.read(lambda connection: find_topics(connection, map(self.named, names)))
        by_name: dict[str, Pair] = {}
        for name in names:
            pair = Pair(everything[name], self._in_target(everything[name], there.get(self.named(name))))
            known = self._seen.setdefault(name, pair)
            if (known.source.topic_id, known.target.topic_id) != (pair.source.topic_id, pair.target.topic_id):
                raise recreated(name)
            by_name[name] = pair
        return by_name

    def named(self, name: str) -> str:
        """Return the name in the target."""
        return self._settings.prefix + name

    def _in_target(self, source: Topic, target: Topic | None) -> Topic:
        name, settings = self.named(source.name), self._settings
        if target is None:
            if not settings.create:
                raise UnknownTopicOrPartitionError(
                    f"topic {name!r}: unknown topic or partition, in the target (--create-topics makes it)"
                )
            factor = settings.replication_factor or source.replication_factor
            with contextlib.suppress(TopicAlreadyExistsError):  # find_topic raises if the name only collides
                create_topic(self._target, name, source.partition_count, factor, configs_for_target(source))
            target = self._target.store.read(lambda connection: find_topic(connection, name))
        target = copy_columns(self._target, source, target, missing=settings.create)
        if target.partition_count < source.partition_count and settings.create:
            target = add_partitions(self._target, name, source.partition_count)
        if target.partition_count != source.partition_count:
            counts = f"{target.partition_count} in the target and {source.partition_count} in the source"
            raise InvalidPartitionsError(f"partitions: topic {name!r} has {counts}")
        return target


def recreated(name: str) -> DataLossError:
    return DataLossError(f"topic {name!r} was deleted and created again while it was mirrored")
