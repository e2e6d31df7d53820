"""Topics move between stores: nothing is lost, nothing is twice, and every position stays."""

import pytest
import sqlalchemy as sa
from kafka.structs import TopicPartition

from spark_log import Consumer, Producer
from spark_log.cluster.topics import find_topic
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_moves import move_topic
from spark_log.replication.controller.topic_operations import create_topic


def rows_of(view, topic_id):
    """The tables of a store that have rows of the topic."""
    with view.store.snapshot() as connection:
        names = [table.name for table in t.metadata.tables.values() if "topic_id" in table.c]
        return {
            name
            for name in names
            if connection.execute(
                sa.select(sa.func.count())
                .select_from(t.metadata.tables[name])
                .where(t.metadata.tables[name].c.topic_id == topic_id)
            ).scalar()
        }


@pytest.fixture
def address(stores):
    return stores.store.address.with_password


def values(consumer, count):
    found = []
    while len(found) < count:
        for records in consumer.poll(500).values():
            found += [record.value.decode() for record in records]
    return found


def test_a_topic_moves_there_and_back(stores, address):
    topic = create_topic(stores, "t", 2, configs={"inline.max.bytes": "100", "inline.tail.bytes": "200"})
    east = stores.at(1)
    with (
        Producer(cluster=address, enable_idempotence=True) as producer,
        Consumer("t", cluster=address, group_id="g", auto_offset_reset="earliest") as consumer,
    ):

        def send(first, last):
            for number in range(first, last):
                producer.send("t", f"{number}".encode(), partition=number % 2)
            producer.flush()

        send(0, 50)
        assert sorted(map(int, values(consumer, 50))) == list(range(50))
        for store, view, other, first in (("east", east, stores, 50), ("home", stores, east, 100)):
            move_topic(stores, "t", store)
            assert stores.store.read(lambda c: find_topic(c, "t")).store_id == view.store_id
            assert "segment" in rows_of(view, topic.topic_id)
            assert rows_of(other, topic.topic_id) <= ({"topic", "group_offset"} if other is stores else set())
            send(first, first + 50)
            assert sorted(map(int, values(consumer, 50))) == list(range(first, first + 50))
        assert sum(consumer.position(TopicPartition("t", p)) for p in range(2)) == 150
