"""A new topic keeps its brokers in the cluster, and their leases are renewed meanwhile. The health of a broker."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_log.cluster import brokers
from spark_log.cluster.brokers import BrokerSession, add_broker, keep_brokers, list_brokers, remove_broker
from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidConfigurationError
from spark_log.maintenance.coordinator.broker import Broker


def test_a_kept_broker_renews_its_lease_and_is_not_removed(postgres_url, tmp_path):
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "d1")) as cluster, ThreadPoolExecutor(2) as others:
        for broker_id in (2, 3):
            add_broker(cluster, broker_id, [str(tmp_path / f"d{broker_id}")])
        session = BrokerSession(cluster.store, 2, 60_000)
        session.register()

        def create(connection):
            keep_brokers(connection)
            removal = others.submit(remove_broker, cluster, 3)
            assert others.submit(session.renew).result(60)
            with pytest.raises(TimeoutError):
                removal.result(0.5)
            return removal

        cluster.store.transact(create).result(30)
        assert [broker.broker_id for broker in list_brokers(cluster)] == [1, 2]


def test_two_removals_at_once_leave_a_broker(postgres_url, tmp_path, monkeypatch):
    removals, delete_rows = [], brokers.delete_rows_of_log_dirs
    with Cluster.init(postgres_url, log_dir=str(tmp_path / "d1")) as cluster, ThreadPoolExecutor(1) as other:
        add_broker(cluster, 2, [str(tmp_path / "d2")])

        def delete_beside_another_removal(connection, log_dir_ids):
            if not removals:
                removals.append(other.submit(remove_broker, cluster, 1))
                with pytest.raises(TimeoutError):
                    removals[0].result(0.5)
            delete_rows(connection, log_dir_ids)

        monkeypatch.setattr(brokers, "delete_rows_of_log_dirs", delete_beside_another_removal)
        remove_broker(cluster, 2)
        with pytest.raises(InvalidConfigurationError, match="broker 1 is the only one"):
            removals[0].result(60)
        assert [broker.broker_id for broker in list_brokers(cluster)] == [1]


def test_a_broker_whose_threads_have_ended_is_not_healthy(cluster, tmp_path):
    add_broker(cluster, 7, [str(tmp_path / "d7")])
    with Broker(cluster, 7) as broker:
        assert broker.health() is None
        broker._loops.request_stop()
        broker._loops.join()
        assert "spark-log-broker-7: lease, spark-log-broker-7: replicas" in broker.health()
