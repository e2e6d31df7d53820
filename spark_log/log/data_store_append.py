"""Appends to the topics of a data store, which does not know the ids of all idempotent producers: home assigns them."""

from collections.abc import Callable, Sequence

from spark_log.cluster.topics import Topic
from spark_log.errors import UnknownProducerIdError
from spark_log.log.append.producer_rows import copy_producers
from spark_log.log.append.rules import Appended, Rejected
from spark_log.log.log import Log, Records

Items = Sequence[tuple[Topic, Records]]


def append_with_producers(
    log: Log, items: Items, append: Callable[[Log, Items], list[Appended | Rejected]]
) -> list[Appended | Rejected]:
    """Call `append` with the log of a data store, and return its outcomes. Batches of producers that the store does not
    know are appended again, once, after the rows of these producers were copied from home.
    """
    outcomes = append(log, items)
    refused = [number for number, outcome in enumerate(outcomes) if _is_of_unknown_producer(outcome)]
    producer_ids = {sequence.producer_id for number in refused if (sequence := items[number][1].sequence) is not None}
    if producer_ids and copy_producers(log.cluster.home.store, log.cluster.store, producer_ids):
        repeated = append(log, [items[number] for number in refused])
        for number, outcome in zip(refused, repeated, strict=True):
            outcomes[number] = outcome
    return outcomes


def _is_of_unknown_producer(outcome: Appended | Rejected) -> bool:
    return isinstance(outcome, Rejected) and isinstance(outcome.error, UnknownProducerIdError)
