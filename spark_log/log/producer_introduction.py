"""Appends batches of idempotent producers that the store of a topic does not know, because only home has registered
them or because their rows have expired.

A Kafka client never asks for another producer id: after a pause longer than producer.id.expiration.ms it goes on with
its old one, as if there had been no pause (KIP-360).
"""

from collections.abc import Callable, Sequence

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, UnknownProducerIdError
from spark_log.log.append.producer_rows import copy_producers, register_again
from spark_log.log.append.rules import Appended, Rejected
from spark_log.log.batch_files import Records

Items = Sequence[tuple[Topic, Records]]
_HOME_TIMEOUT_MS = 2_000
"""How long an append waits for a home store that does not answer. Batches of other producers wait with it."""


def append_with_producers(
    cluster: Cluster, items: Items, append: Callable[[Items], list[Appended | Rejected]]
) -> list[Appended | Rejected]:
    """Call `append`, and return its outcomes. Batches of producers that the store does not know are appended once more,
    after it got these producers.
    """
    outcomes = append(items)
    refused = [number for number, outcome in enumerate(outcomes) if _is_of_unknown_producer(outcome)]
    producer_ids = {sequence.producer_id for number in refused if (sequence := items[number][1].sequence) is not None}
    if not producer_ids:
        return outcomes
    repeated: Sequence[Appended | Rejected] = [outcomes[number] for number in refused]
    try:
        if _introduced(cluster, producer_ids):
            repeated = append([items[number] for number in refused])
    except SparkLogError as error:  # the other batches are stored
        repeated = [Rejected(error)] * len(refused)
    for number, outcome in zip(refused, repeated, strict=True):
        outcomes[number] = outcome
    return outcomes


def _introduced(cluster: Cluster, producer_ids: set[int]) -> bool:
    """Register or copy the producers that the store lacks. Return whether it may know one of them now."""
    home, store = cluster.home.store, cluster.store
    again = register_again(home, producer_ids, _HOME_TIMEOUT_MS)
    return again if store is home else copy_producers(home, store, producer_ids)


def _is_of_unknown_producer(outcome: Appended | Rejected) -> bool:
    return isinstance(outcome, Rejected) and isinstance(outcome.error, UnknownProducerIdError)
