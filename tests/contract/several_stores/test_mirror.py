"""A mirror copies topics of several stores to topics of several stores: each step is a transaction of one store."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import find_topic
from spark_log.errors import CorruptRecordError
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribePattern, SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from tests.support.mirroring import mirror_all, without_spark
from tests.support.records import table
from tests.support.topics import append_to, stored

STORES = {"a": (None, "west"), "b": ("east", None), "c": ("east", "west")}


@pytest.fixture
def target(stores, postgres_server, tmp_path):
    """A cluster of two stores; the topics are created here and in the source."""
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "target")) as target:
        add_store(target, "west", postgres_server.create_prepared_database())
        for name, (there, here) in STORES.items():
            create_topic(stores, name, store=there)
            create_topic(target, name, store=here)
        yield target


def test_each_topic_is_copied_between_the_stores_that_have_it(stores, target):
    log = ClientLog(stores)
    mirror = Mirror(stores, target, MirrorSettings(SubscribeTopics(tuple(STORES))))
    for round_ in range(2):
        for name in STORES:
            log.append(log.find_topic(name), [Records(0, table(f"{name}{round_}", "x"))])
        assert len(mirror_all(mirror)) == 2, "one for each store of the target"
        for name in STORES:
            assert stored(target, name) == stored(stores, name)
    mirror.close()
    log.close()


def test_a_topic_that_fails_keeps_no_other_store_waiting(stores, target):
    def run(transfers):
        if any(transfer.target.topic_id == b.topic_id for transfer in transfers):
            raise CorruptRecordError("damaged")
        return without_spark(transfers)

    b = target.store.read(lambda connection: find_topic(connection, "b"))
    for name, count in (("a", 1), ("b", 9), ("c", 1)):
        append_to(stores, name, *("x" * count))
    mirror = Mirror(stores, target, MirrorSettings(SubscribePattern("^[abc]$")))
    assert mirror.step(run).records == 2, "although the store of b is the one most behind"
    assert mirror.step(run) is None
    assert list(mirror.topics.failed) == ["b"]
    mirror.close()
