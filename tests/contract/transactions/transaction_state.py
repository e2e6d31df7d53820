"""Shared by the tests of transactions: names, and the state of a producer's transaction in the store."""

import itertools
import random

import sqlalchemy as sa
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log.cluster.each_store import in_each_store
from spark_log.metadata import tables as t
from tests.support.stores import change

NUMBERS = itertools.count(100_000)  # as many digits each: names sort in the order in which they are made
LARGE = random.Random(0).randbytes(20_000)
FILES = {"inline.max.bytes": "1000"}


def group():
    return f"g{next(NUMBERS)}"


def commits(topic, offset=1):
    return {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}


def rows(cluster, table, *where):
    """The rows of all stores."""
    query = sa.select(table).where(*where)
    of_stores = in_each_store(cluster, lambda view: view.store.read(lambda c: c.execute(query).all()))
    return [row for found in of_stores.values() for row in found]


def name_of(producer):
    return producer.config["transactional_id"]


def row_of(cluster, producer):
    """The producer's row of table `transaction`."""
    here = sa.select(t.producer.c.producer_id).where(t.producer.c.transactional_id == name_of(producer))
    [row] = rows(cluster, t.transaction, t.transaction.c.producer_id == here.scalar_subquery())
    return row


def nothing_is_pending(cluster, producer):
    return (
        rows(cluster, t.transaction_segment, t.transaction_segment.c.producer_id == row_of(cluster, producer)[0]) == []
    )


def expire(cluster, producer):
    """Let its open transaction exceed its timeout."""
    here = t.transaction.c.producer_id == row_of(cluster, producer).producer_id
    change(cluster, t.transaction.update().where(here).values(until_ms=0))


def segment_files(cluster, topic):
    """Paths of the topic's segment files in its cluster's only log dir."""
    [info] = cluster.log_dirs().values()
    return list(cluster.log_dir(info).list_files(f"{topic.folder}/_segments"))


def offsets(producer, name):
    producer.send_offsets_to_transaction(commits(name), "g")
