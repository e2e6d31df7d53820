"""Runs the same function for each store of a cluster, with the cluster as that store sees it."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import find_store, find_stores, name_of
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import MetadataStoreUnavailableError, SparkLogError, redact
from spark_log.ids import HOME, HOME_NAME, StoreId, TopicPartition
from spark_log.process import in_parallel

logger = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

_AT_ONCE = 8
ASK_TIMEOUT_MS = 2_000
"""How long a store that does not answer is asked again, where its facts are shown with those of other stores."""
_PAUSE_S = 5.0


@dataclass(frozen=True)
class Answers(Generic[T]):
    """The results of a function for the stores of a cluster, home first, and the errors of the stores that failed."""

    results: dict[StoreId, T] = field(default_factory=dict)
    failures: dict[StoreId, SparkLogError] = field(default_factory=dict)

    def unavailable(self, topic: Topic) -> bool:
        """Whether the store of the topic failed."""
        return topic.store_id in self.failures


def ask_stores(
    cluster: Cluster, work: Callable[[Cluster], T], store_ids: Iterable[StoreId] | None = None
) -> Answers[T]:
    """Call `work` for these stores, by default for all, in parallel. An error of the home store is raised; one of a
    data store is logged and returned. A data store that could not be reached is not asked again for some seconds, and
    is logged once until it answers.
    """
    answers: Answers[T] = Answers()
    failed = cluster.home.failures

    def ask(store_id: StoreId) -> T | SparkLogError:
        until_s, earlier = failed.get(store_id, (0.0, None))
        if earlier is not None and clock.monotonic_s() < until_s:
            return earlier
        try:
            result = work(cluster.at(store_id, timeout_ms=ASK_TIMEOUT_MS))
        except SparkLogError as error:
            unavailable = isinstance(error, MetadataStoreUnavailableError)
            if unavailable:
                failed[store_id] = (clock.monotonic_s() + _PAUSE_S, error)
            if store_id != HOME and not (unavailable and earlier):
                logger.warning("store %s does not answer: %s", store_id, redact(str(error)))
            return error
        failed.pop(store_id, None)
        return result

    asked = list(cluster.store_ids() if store_ids is None else store_ids)
    for store_id, result in zip(asked, in_parallel(ask, asked, _AT_ONCE, "spark-log-stores"), strict=True):
        if not isinstance(result, SparkLogError):
            answers.results[store_id] = result
        elif store_id == HOME:
            raise result
        else:
            answers.failures[store_id] = result
    return answers


def in_each_store(
    cluster: Cluster, work: Callable[[Cluster], T], store_ids: Iterable[StoreId] | None = None
) -> dict[StoreId, T]:
    """Call `work` for these stores, by default for all, and return the results, home first. The first error is
    raised.
    """
    answers = ask_stores(cluster, work, store_ids)
    for error in answers.failures.values():
        raise error
    return answers.results


def by_store(topics: Iterable[Topic]) -> dict[StoreId, list[Topic]]:
    """Return the topics of each store that has one of them, by the number of the store."""
    grouped: dict[StoreId, list[Topic]] = {}
    for topic in sorted(topics, key=lambda topic: topic.store_id):
        grouped.setdefault(topic.store_id, []).append(topic)
    return grouped


def partitions_by_store(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[StoreId, list[TopicPartition]]:
    """Return the partitions of each store, home first; those of unknown topics are the home store's. If `cluster`
    is the view of a data store, all are its own.
    """
    grouped: dict[StoreId, list[TopicPartition]] = {}
    chosen = list(partitions)
    if cluster is not cluster.home or cluster.store.sqlite:
        return {cluster.store_id: chosen} if chosen else {}
    topics = cluster.home.store.read(lambda connection: find_topics(connection, {tp.topic for tp in chosen}))
    for tp in chosen:
        store_id = topics[tp.topic].store_id if tp.topic in topics else HOME
        grouped.setdefault(store_id, []).append(tp)
    return dict(sorted(grouped.items()))


def in_stores_of(
    cluster: Cluster,
    values: Mapping[TopicPartition, V],
    work: Callable[[Cluster, Mapping[TopicPartition, V]], Mapping[TopicPartition, T]],
) -> dict[TopicPartition, T]:
    """Call `work` for each store that has some of these partitions, with their values, and join the results."""
    results: dict[TopicPartition, T] = {}
    for store_id, there in partitions_by_store(cluster, values).items():
        results |= work(cluster.at(store_id), {partition: values[partition] for partition in there})
    return results


def store_names(cluster: Cluster) -> dict[StoreId, str]:
    """Return the names of all stores, also of those that are being added."""
    stores = [] if cluster.home.store.sqlite else cluster.home.store.read(find_stores)
    return {store_id: name_of(store_id, stores) for store_id in (HOME, *(each.store_id for each in stores))}


def find_view(cluster: Cluster, name: str | None) -> Cluster:
    """Return the cluster as the store of this name sees it; None is the home store. Raises StoreNotFoundError."""
    if name in (None, HOME_NAME):
        return cluster.home
    return cluster.at(cluster.home.store.read(lambda connection: find_store(connection, str(name))).store_id)
