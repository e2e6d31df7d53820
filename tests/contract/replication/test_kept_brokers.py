"""A new topic keeps its brokers in the cluster, and their leases are renewed meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_log.cluster.brokers import BrokerSession, add_broker, keep_brokers, list_brokers, remove_broker
from spark_log.cluster.cluster import Cluster


def test_a_kept_broker_renews_its_lease_and_is_not_removed(postgres_url, tmp_path):
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "d1")) as cluster, ThreadPoolExecutor(2) as others:
        for broker_id in (2, 3):
            add_broker(cluster, broker_id, [str(tmp_path / f"d{broker_id}")])
        session = BrokerSession(cluster.store, 2, 60_000)
        session.register()

        def create(connection, _attempt):
            keep_brokers(connection)
            removal = others.submit(remove_broker, cluster, 3)
            assert others.submit(session.renew).result(60)
            with pytest.raises(TimeoutError):
                removal.result(0.5)
            return removal

        cluster.store.transact(create).result(30)
        assert [broker.broker_id for broker in list_brokers(cluster)] == [1, 2]
