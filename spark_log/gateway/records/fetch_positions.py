"""Finds what there is to read for fetches: the positions of the requested partitions, or their errors."""

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_legal
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    MetadataStoreUnavailableError,
    OffsetOutOfRangeError,
    SparkLogError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.limits.bulkheads import request_context
from spark_log.gateway.protocol.error_codes import NONE, UNKNOWN_SERVER_ERROR, error_code
from spark_log.gateway.records.record_streams import Version
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.gateway.shared_watches import News, Pause, SharedWatches
from spark_log.gateway.topic_stores import TopicStores
from spark_log.ids import StoreId, TopicPartition
from spark_log.log.segments.plan import PartitionSnapshot, find_positions

_UNKNOWN_TOPIC_ID = 100
_FENCED_LEADER_EPOCH = 74
_KAFKA_STORAGE_ERROR = 56
_KNOWN_TO_CLIENTS = frozenset({-1, 1, 2, 3, 6, 9, 29, _KAFKA_STORAGE_ERROR, 78, 100, 103})
"""The codes of reads after which a client continues, or tells its program what is wrong. After any other code, Java's
consumer raises IllegalStateException and loses the records that it has read from other partitions.
"""
NO_ID = uuid.UUID(int=0)
"""The nil id, which kafka-python decodes as None. No topic has it."""
_SMALL_PARTITIONS_MAX = 100
"""The number of partitions of a client whose fetches share reads with those of other clients."""
_PAUSE_OF_CLIENT = Pause(s_min=0.0, factor=2.0, s_max=5.0)
"""Reads for the other fetches of a client use at most a third of a thread, however long they take."""

_Key = tuple[frozenset[StoreId], str]
"""The stores of a fetch, and its client if it shares reads with no other client, otherwise an empty text."""


class Asked(NamedTuple):
    """A partition of a fetch. `topic` is the name, or None if the topic id is unknown."""

    topic: str | None
    topic_id: uuid.UUID
    partition: int
    offset: int
    bytes_max: int
    leader_epoch: int = -1
    """The epoch that the client knows of, or -1."""


@dataclass
class Answer:
    """The parts of a partition's response. `version` is None if there is nothing to read."""

    error: int = NONE
    high_watermark: int = -1
    log_start_offset: int = -1
    topic: Topic | None = None
    version: Version | None = None
    records: bytes = b""


class FoundAnswers(NamedTuple):
    """The answers for all partitions of a fetch, and the number of the store's last change before they were read."""

    change: int
    answers: list[Answer]


@dataclass(frozen=True, eq=False)
class WaitingFetch:
    """A fetch that waits until the answers for its partitions differ from `answers`. All answers differ from None."""

    asked: Sequence[Asked]
    stores: frozenset[StoreId]
    """The stores of its topics."""
    answers: Sequence[Answer] | None


class FetchWatches:
    """Wakes waiting fetches. After a change one read serves all fetches of the same stores: a data store that does not
    answer delays no fetch of others. If a client's fetches wait for many partitions together, the further ones share
    reads with those of the same client only, in its threads: they do not delay other clients. Used by one event loop.
    """

    def __init__(
        self,
        topic_cache: TopicCache,
        stores: TopicStores,
        changes: ChangeWatch,
        run: Callable[[str, Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        """`run` calls a blocking function in one of the threads that a client may use."""
        self._topic_cache, self._stores, self._changes, self._run = topic_cache, stores, changes, run
        self._common = SharedWatches[_Key, WaitingFetch, FoundAnswers](changes, self._read)
        self._of_clients = SharedWatches[_Key, WaitingFetch, FoundAnswers](changes, self._read, _PAUSE_OF_CLIENT)
        self._partitions: Counter[str] = Counter()
        """The partitions of each client in the common watches."""

    async def wait(self, fetch: WaitingFetch, seen: int, timeout_s: float) -> FoundAnswers | None:
        """Return the answers for the fetch as soon as they differ. Return None after the timeout, or if the common read
        has failed: then the fetch has to read its positions itself. `seen` is the number of the store's last change
        before the fetch read them.
        """
        client, partitions = request_context.get().client, len(fetch.asked)
        if self._partitions[client] + partitions > _SMALL_PARTITIONS_MAX:
            return await self._of_clients.wait((fetch.stores, client), fetch, seen, timeout_s)
        self._partitions[client] += partitions
        try:
            return await self._common.wait((fetch.stores, ""), fetch, seen, timeout_s)
        finally:
            self._partitions[client] -= partitions
            if not self._partitions[client]:
                del self._partitions[client]

    async def _read(self, key: _Key, fetches: Sequence[WaitingFetch]) -> News[WaitingFetch, FoundAnswers]:
        _, client = key
        news: News[WaitingFetch, FoundAnswers] = await self._run(client, partial(self._look, fetches))
        return news

    def _look(self, fetches: Sequence[WaitingFetch]) -> News[WaitingFetch, FoundAnswers]:
        change = self._changes.current()
        asked = [each for fetch in fetches for each in fetch.asked]
        answers = iter(find_answers(self._topic_cache, self._stores, asked))
        found: dict[WaitingFetch, FoundAnswers] = {}
        for fetch in fetches:
            answers_of_fetch = list(islice(answers, len(fetch.asked)))
            if answers_of_fetch != fetch.answers:
                found[fetch] = FoundAnswers(change, answers_of_fetch)
        return News(change, lambda fetch: found.pop(fetch, None))  # a fetch puts the records into its answers


def find_answers(topic_cache: TopicCache, stores: TopicStores, asked: Sequence[Asked]) -> list[Answer]:
    """Return an answer without records for each partition."""
    legal = {TopicPartition(each.topic, each.partition) for each in asked if each.topic and is_legal(each.topic)}
    topics = topic_cache.find({tp.topic for tp in legal})
    here = stores.of_partitions(legal, positions_of, topics=topics)
    if unsure := {each.topic for each in asked if each.topic in topics and _may_be_elsewhere(each, here)}:
        for name in unsure:
            topic_cache.forget(name)
        now = topic_cache.find(unsure)
        moved = {name for name, topic in now.items() if topic.store_id != topics[name].store_id}
        topics |= now
        here |= stores.of_partitions([tp for tp in legal if tp.topic in moved], positions_of, topics=topics)
    return [_answer(topic_cache, partition, topics, here) for partition in asked]


def _may_be_elsewhere(asked: Asked, here: Mapping[TopicPartition, PartitionSnapshot | SparkLogError]) -> bool:
    """Whether another store may have the partition: in the store that the cache names it is missing, or is frozen and
    ends before the client's offset.
    """
    position = here.get(TopicPartition(str(asked.topic), asked.partition))
    if position is None or isinstance(position, SparkLogError):
        return position is None
    return position.frozen and asked.offset > position.positions.high_watermark


def positions_of(view: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionSnapshot]:
    return view.store.read(lambda connection: find_positions(connection, partitions))


def _answer(
    topic_cache: TopicCache,
    asked: Asked,
    topics: Mapping[str, Topic],
    here: Mapping[TopicPartition, PartitionSnapshot | SparkLogError],
) -> Answer:
    if asked.topic is None:
        return Answer(_UNKNOWN_TOPIC_ID)
    position, topic = here.get(TopicPartition(asked.topic, asked.partition)), topics.get(asked.topic)
    if isinstance(position, SparkLogError):
        return Answer(fetch_code(position), topic=topic)
    by_id = asked.topic_id != NO_ID
    if position is None or topic is None or topic.topic_id != position.topic_id:
        topic_cache.forget(asked.topic)
        deleted = topic is None or asked.partition < topic.partition_count
        return Answer(_UNKNOWN_TOPIC_ID if by_id and deleted else error_code(UnknownTopicOrPartitionError()))
    if by_id and topic.uuid != asked.topic_id.hex:  # it was deleted and created again
        return Answer(_UNKNOWN_TOPIC_ID)
    start, end = position.positions
    answer = Answer(NONE, end, start, topic)
    if 0 <= asked.leader_epoch < position.leader_epoch:
        # The log may have been truncated: the client asks OffsetForLeaderEpoch whether its offset still means the same.
        # A larger epoch is of another log (a topic that was created again, a store that was restored), never a newer
        # one: the positions are those of the primary. With UNKNOWN_LEADER_EPOCH clients would wait for ever.
        answer.error = _FENCED_LEADER_EPOCH
        return answer
    if not start <= asked.offset <= end:
        answer.error = error_code(OffsetOutOfRangeError())
    elif asked.offset < end:
        answer.version = position.version
    return answer


def fetch_code(error: SparkLogError) -> int:
    """Return the code of an error of a read. After NONE, the client gets no records and asks again."""
    if isinstance(error, MetadataStoreUnavailableError | UnsupportedVersionError):
        return NONE
    code = error_code(error)
    if code in _KNOWN_TO_CLIENTS:
        return code
    return _KAFKA_STORAGE_ERROR if error.retriable else UNKNOWN_SERVER_ERROR
