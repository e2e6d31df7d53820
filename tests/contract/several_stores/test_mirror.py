"""A mirror copies topics of several stores to topics of several stores: each step is a transaction of one store."""

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.topic_choice import SubscribeTopics
from spark_log.spark.mirror.mirror import Mirror
from spark_log.spark.mirror.mirror_topics import MirrorSettings
from tests.support.mirroring import mirror_all
from tests.support.records import table
from tests.support.topics import stored

STORES = {"a": (None, "west"), "b": ("east", None), "c": ("east", "west")}


def test_each_topic_is_copied_between_the_stores_that_have_it(stores, postgres_server, tmp_path):
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "target")) as target:
        add_store(target, "west", postgres_server.create_prepared_database())
        for name, (there, here) in STORES.items():
            create_topic(stores, name, store=there)
            create_topic(target, name, store=here)
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
