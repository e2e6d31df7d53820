"""Task `flush`: what was acknowledged before it was on disk is forced there by flush.ms."""

from collections.abc import Iterator
from itertools import groupby

from spark_log.log.appender import force
from spark_log.log.flush import partitions_to_flush
from spark_log.maintenance.report import Report
from spark_log.maintenance.work import Work


def flush_topics(work: Work) -> Iterator[Report]:
    """Force what is due, with one durable commit for all."""
    store = work.cluster.store
    found = partitions_to_flush(store)
    if not found:
        return
    topics = {topic.topic_id: topic for topic in work.topics()}
    due = [key for key in found if key[0] in topics]
    if due:
        force(store, due, work.guard)
    for topic_id, keys in groupby(due, key=lambda key: key[0]):
        yield Report("flush", topics[topic_id].name, len(list(keys)))
