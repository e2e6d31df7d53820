"""Task `flush`: what was acknowledged before it was on disk is forced there by flush.ms."""

from collections.abc import Iterator
from itertools import groupby

from spark_log.append.append_transaction import force
from spark_log.append.flush import partitions_to_flush
from spark_log.cluster.topics import Topic
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Report
from spark_log.partitions.partition_rows import Key


def flush_topics(context: MaintenanceContext) -> Iterator[Report]:
    """Force what is due, with one durable commit for all."""
    due = _due(context)
    if due:
        force(context.cluster.store, [key for _, keys in due for key in keys], context.fence)
    for topic, keys in due:
        yield Report("flush", topic.name, len(keys))


def plan_flush(context: MaintenanceContext) -> Iterator[Report]:
    """The data that `flush_topics` would force to disk now. Changes nothing."""
    for topic, keys in _due(context):
        yield Report("flush", topic.name, len(keys), notes=("deletes nothing",))


def _due(context: MaintenanceContext) -> list[tuple[Topic, list[Key]]]:
    found = partitions_to_flush(context.cluster.store)
    topics = {topic.topic_id: topic for topic in context.topics()} if found else {}
    due = [key for key in found if key[0] in topics]
    return [(topics[topic_id], list(keys)) for topic_id, keys in groupby(due, key=lambda key: key[0])]
