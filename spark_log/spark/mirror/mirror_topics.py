"""Finds the topics of a mirror, each with its copy in the target, and creates missing copies."""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa

from spark_log import errors
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ASK_TIMEOUT_MS, ask_stores, by_store
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic, find_topic, find_topics, topics_of_ids
from spark_log.errors import (
    DataLossError,
    InvalidPartitionsError,
    MetadataStoreUnavailableError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    SparkLogError,
    TopicAlreadyExistsError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.ids import HOME, StoreId, TopicPartition
from spark_log.log.append.targets import targets_of
from spark_log.replication.controller.topic_operations import add_partitions, create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.mirror.mirror_columns import configs_for_target, copy_columns
from spark_log.text import some_of

logger = logging.getLogger(__name__)

ERRORS_OF_ONE_TOPIC = (
    errors.CorruptRecordError,
    errors.DataLossError,
    errors.IncompatibleSchemaError,
    errors.InvalidConfigurationError,
    errors.InvalidPartitionsError,
    errors.InvalidRecordError,
    errors.InvalidReplicationFactorError,
    errors.InvalidSchemaError,
    errors.InvalidTopicError,
    errors.OffsetOutOfRangeError,
    errors.PolicyViolationError,
    errors.SchemaRegistryError,
    errors.SchemaRegistryUnavailableError,  # each topic may have a registry of its own
    errors.SourceUnavailableError,  # and log dirs of its own
    errors.TopicAlreadyExistsError,
    errors.UnknownTopicOrPartitionError,
)
"""Errors that concern a single topic. Errors of a store, or of a log dir of the target, are not among them."""
UNAVAILABLE = (NotEnoughReplicasError, NotLeaderForPartitionError)
"""Errors of all topics that have lost a broker of the target. `leave_out_unavailable` finds these by metadata alone."""


@dataclass(frozen=True)
class MirrorSettings:
    """The topics to mirror, and how to mirror them."""

    topics: SubscribeTopics | SubscribePattern
    prefix: str = ""
    """Text with which each topic's name in the target begins."""
    create: bool = False
    """Whether to create topics and partitions that the target lacks, with the source's configs."""
    replication_factor: int | None = None
    """Replication factor of created topics. With None, they have that of the source."""
    offsets_per_step_max: int = 5_000_000
    allow_data_loss: bool = False
    """Whether to continue after records that the source deleted before they were copied. The target then has a gap."""


class Pair(NamedTuple):
    source: Topic
    target: Topic


class MirroredTopics:
    """The topics of the source that the settings choose, each with its copy in the target. Not thread-safe.

    If a topic that a pattern chose fails, it is left out and tried again later, because its owner may not know of the
    mirror. The error of a topic that was named is raised.
    """

    def __init__(self, source: Cluster, target: Cluster, settings: MirrorSettings) -> None:
        self._source, self._target, self._settings = source, target, settings
        self._seen: dict[str, Pair] = {}
        self._names: list[str] = []
        self._warned: set[tuple[str, type[SparkLogError]]] = set()
        self.failed: dict[str, SparkLogError] = {}
        """The topics that were left out and not mirrored since, each with its first error."""
        self.isolated = ERRORS_OF_ONE_TOPIC if isinstance(settings.topics, SubscribePattern) else ()
        """The errors for which a topic is left out. Named topics have none."""

    def pairs(self) -> dict[str, Pair]:
        """Return the mirrored topics, by their names in the source. Create missing copies if the settings allow it.

        Topics that a pattern chose are left out if they have one of these errors; for named topics it is raised:
        UnknownTopicOrPartitionError, InvalidPartitionsError (the target has another number of partitions),
        DataLossError (a topic was deleted and created again), and the errors of `create_topic`.
        """
        wanted = self._settings.topics
        everything = self._source.store.read(find_topics)
        names = wanted.select(everything) if isinstance(wanted, SubscribePattern) else list(wanted.topics)
        for name in names:
            validate_user_topic(name, "mirror")
            if name not in everything:
                raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition, in the source")
        self._names = names
        self.failed = {
            name: error
            for name, error in self.failed.items()
            if name in everything and not isinstance(error, MetadataStoreUnavailableError)
        }
        there = self._target.store.read(lambda connection: find_topics(connection, map(self.named, names)))
        by_name: dict[str, Pair] = {}
        for name in names:
            try:
                by_name[name] = self._pair(everything[name], there.get(self.named(name)))
            except self.isolated as error:
                self.leave_out(name, error)
        if self.isolated:
            unreachable = self._unreachable(by_name)
            for name in sorted(unreachable):
                self.leave_out(name, unreachable[name])
            by_name = {name: pair for name, pair in by_name.items() if name not in unreachable}
        return by_name

    def _unreachable(self, pairs: Mapping[str, Pair]) -> dict[str, SparkLogError]:
        """Return the topics whose data store, in the source or the target, does not answer, with the store's error."""
        of_source = _failures(self._source, (pair.source for pair in pairs.values()))
        of_target = _failures(self._target, (pair.target for pair in pairs.values()))
        unreachable: dict[str, SparkLogError] = {}
        for name, pair in pairs.items():
            error = of_source.get(pair.source.store_id) or of_target.get(pair.target.store_id)
            if error is not None:
                unreachable[name] = error
        return unreachable

    def is_transient(self, error: SparkLogError) -> bool:
        """Whether another call of `pairs` may avoid the error: a topic is moving to another store, or a data store
        whose topics can be left out does not answer.
        """
        if isinstance(error, MetadataStoreUnavailableError):
            return bool(self.isolated and self._unreachable(self._seen))
        return isinstance(error, TopicMovedError) or self._have_moved(self._names)

    def check_not_moved(self, names: Collection[str]) -> None:
        """Raise TopicMovedError if one of these topics has moved to another store since `pairs` looked it up."""
        if self._have_moved(names):
            raise TopicMovedError(f"topic {some_of(sorted(names))}: it was moved to another metadata store")

    def _have_moved(self, names: Collection[str]) -> bool:
        seen = [self._seen[name] for name in names if name in self._seen]
        for cluster, topics in ((self._source, [p.source for p in seen]), (self._target, [p.target for p in seen])):
            topic_ids = [topic.topic_id for topic in topics]
            now = cluster.store.read(partial(topics_of_ids, topic_ids=topic_ids))
            if any(topic.topic_id in now and now[topic.topic_id].store_id != topic.store_id for topic in topics):
                return True
        return False

    def leave_out(self, name: str, error: SparkLogError) -> None:
        """Record that a topic could not be mirrored. Log a warning at the first error of each kind."""
        self.failed.setdefault(name, error)
        if (name, type(error)) not in self._warned:
            self._warned.add((name, type(error)))
            logger.warning("topic %r is not mirrored: %s", name, redact(str(error)))

    def leave_out_unavailable(self, pairs: Mapping[str, Pair], partitions: Collection[TopicPartition]) -> set[str]:
        """Leave out the topics with a partition, among these, to which the target cannot append now by its metadata: it
        has no leader, or fewer in-sync replicas than min.insync.replicas. Return the topics' names in the source.

        Named topics are not left out, and neither are all topics of the mirror: then the append waits.
        """
        if not self.isolated:
            return set()
        unavailable: dict[str, SparkLogError] = {}
        for store_id in {pairs[tp.topic].target.store_id for tp in partitions}:
            there = [tp for tp in partitions if pairs[tp.topic].target.store_id == store_id]
            unavailable |= self._target.at(store_id).store.read(partial(_unavailable, pairs=pairs, partitions=there))
        if not pairs.keys() - self.failed.keys() - unavailable.keys():
            return set()
        for name, error in sorted(unavailable.items()):
            self.leave_out(name, error)
        return set(unavailable)

    def try_unavailable_again(self) -> None:
        """Forget the failures of topics that were left out because the target could not append to them."""
        self.failed = {name: error for name, error in self.failed.items() if not isinstance(error, UNAVAILABLE)}

    def mirrored(self, names: Collection[str]) -> None:
        """Record that these topics are mirrored: they have not failed any more. Log those that had been left out."""
        for name in sorted({name for name, _ in self._warned} & set(names)):
            self.failed.pop(name, None)
            self._warned = {each for each in self._warned if each[0] != name}
            logger.warning("topic %r is mirrored again", name)

    def raise_failures(self, *, of_all: bool = False) -> None:
        """Raise an error with the reasons of all topics that were left out. With `of_all`, only if no topic remains."""
        if self.failed and not (of_all and len(self.failed) < len(self._names)):
            reasons = (f"topic {name!r} is not mirrored: {error}" for name, error in sorted(self.failed.items()))
            raise SparkLogError("; ".join(reasons)) from next(iter(self.failed.values()))

    def named(self, name: str) -> str:
        """Return a topic's name in the target."""
        return self._settings.prefix + name

    def _pair(self, source: Topic, target: Topic | None) -> Pair:
        pair = Pair(source, self._in_target(source, target))
        before = self._seen.get(source.name, pair)
        self._seen[source.name] = pair  # later calls compare it with the positions in the target
        if (before.source.topic_id, before.target.topic_id) != (pair.source.topic_id, pair.target.topic_id):
            raise recreated(source.name)
        return pair

    def _in_target(self, source: Topic, target: Topic | None) -> Topic:
        name, settings = self.named(source.name), self._settings
        if target is None:
            if not settings.create:
                raise UnknownTopicOrPartitionError(
                    f"topic {name!r}: unknown topic or partition, in the target (--create-topics makes it)"
                )
            factor = settings.replication_factor or source.replication_factor
            try:
                create_topic(self._target, name, source.partition_count, factor, configs_for_target(source))
            except TopicAlreadyExistsError:
                if name not in self._target.store.read(lambda connection: find_topics(connection, [name])):
                    raise  # the name only collides
            target = self._target.store.read(lambda connection: find_topic(connection, name))
        target = copy_columns(self._target, source, target, missing=settings.create)
        if target.partition_count < source.partition_count and settings.create:
            target = add_partitions(self._target, name, source.partition_count)
        if target.partition_count != source.partition_count:
            counts = f"{target.partition_count} in the target and {source.partition_count} in the source"
            raise InvalidPartitionsError(f"partitions: topic {name!r} has {counts}")
        return target


def _unavailable(
    connection: sa.Connection, pairs: Mapping[str, Pair], partitions: Collection[TopicPartition]
) -> dict[str, SparkLogError]:
    """Return the topics of the source with a partition, among these, to which the target cannot append now, each with
    an error.
    """
    unavailable: dict[str, SparkLogError] = {}
    for name in {tp.topic for tp in partitions}:
        topic = pairs[name].target
        in_sync_min = topic.config.min_insync_replicas
        for number, target in targets_of(connection, topic, [n for its, n in partitions if its == name], "all").items():
            where, in_sync = f"{topic.name}-{number}", len(target.log_dirs)
            if not in_sync:
                unavailable[name] = NotLeaderForPartitionError(f"{where} has no leader: no in-sync replica is alive")
            elif in_sync < in_sync_min:
                unavailable[name] = NotEnoughReplicasError(
                    f"{where}: {in_sync} replica(s) in sync, min.insync.replicas is {in_sync_min}"
                )
    return unavailable


def _failures(cluster: Cluster, topics: Iterable[Topic]) -> Mapping[StoreId, SparkLogError]:
    """Return the data stores of these topics that do not answer, each with its error."""

    def ask(view: Cluster) -> object:
        return view.store.read(lambda connection: connection.scalar(sa.select(1)), timeout_ms=ASK_TIMEOUT_MS)

    answers = ask_stores(cluster, ask, by_store(topics).keys() - {HOME})
    for error in answers.failures.values():
        if not isinstance(error, MetadataStoreUnavailableError):
            raise error
    return answers.failures


def recreated(name: str) -> DataLossError:
    return DataLossError(f"topic {name!r} was deleted and created again while it was mirrored")
