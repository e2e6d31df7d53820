"""The health of a served broker."""

from spark_log.cluster.brokers import add_broker
from spark_log.maintenance.coordinator.broker import Broker


def test_a_broker_whose_threads_have_ended_is_not_healthy(cluster, tmp_path):
    add_broker(cluster, 7, [str(tmp_path / "d7")])
    with Broker(cluster, 7) as broker:
        assert broker.health() is None
        broker._loops.request_stop()
        broker._loops.join()
        assert "spark-log-broker-7: lease, spark-log-broker-7: replicas" in broker.health()
