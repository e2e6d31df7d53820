"""Appends batches whose topics are in several stores: one append transaction in each store, in parallel."""

from collections.abc import Callable, Sequence

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, UnknownProducerIdError
from spark_log.ids import StoreId
from spark_log.log.append.producer_rows import copy_producers
from spark_log.log.append.rules import Appended, Rejected
from spark_log.log.log import Log, Records
from spark_log.process import in_parallel

Items = Sequence[tuple[Topic, Records]]
Append = Callable[[Log, Items], list[Appended | Rejected]]

_STORES_AT_ONCE = 8


def append_in_stores(log: Log, items: Items, append: Append) -> list[Appended | Rejected]:
    """Call `append` for the batches of each store, with the log of the store. Returns the outcomes, in order.

    An error of a store is the outcome of its batches; with one store it is raised. A data store does not have the ids
    of idempotent producers, which the home store assigns: those that it misses are copied, and the append is repeated
    once.
    """
    numbers: dict[StoreId, list[int]] = {}
    for number, (topic, _) in enumerate(items):
        numbers.setdefault(topic.store_id, []).append(number)

    def append_part(store_id: StoreId) -> list[Appended | Rejected]:
        part = [items[number] for number in numbers[store_id]]
        try:
            here = log.at(store_id)
            outcomes = append(here, part)
            if _copy_unknown(log.cluster.home, here.cluster, part, outcomes):
                again = [number for number, outcome in enumerate(outcomes) if _is_unknown(outcome)]
                repeated = append(here, [part[number] for number in again])
                for number, outcome in zip(again, repeated, strict=True):
                    outcomes[number] = outcome
            return outcomes
        except SparkLogError as error:
            if len(numbers) == 1:
                raise
            return [Rejected(error) for _ in part]

    stores = list(numbers)
    outcomes: list[Appended | Rejected | None] = [None] * len(items)
    for store_id, part in zip(
        stores, in_parallel(append_part, stores, _STORES_AT_ONCE, "spark-log-append"), strict=True
    ):
        for number, outcome in zip(numbers[store_id], part, strict=True):
            outcomes[number] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def _is_unknown(outcome: Appended | Rejected) -> bool:
    return isinstance(outcome, Rejected) and isinstance(outcome.error, UnknownProducerIdError)


def _copy_unknown(home: Cluster, data: Cluster, items: Items, outcomes: Sequence[Appended | Rejected]) -> bool:
    """Copy the producers that a data store does not know. Returns whether there were any."""
    unknown = {
        records.sequence.producer_id
        for (_, records), outcome in zip(items, outcomes, strict=True)
        if records.sequence is not None and _is_unknown(outcome)
    }
    if data is home or not unknown:
        return False
    return copy_producers(home.store, data.store, unknown)
