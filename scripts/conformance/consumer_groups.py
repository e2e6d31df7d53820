"""The consumer protocol (KIP-848) request by request: the answers of a gateway beside those of a real broker."""

import tempfile
from pathlib import Path

from scripts.conformance.results import Result
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.consumer_members import MEMBERS_MAX, TOPICS, observations
from tests.support.kafka_programs import KafkaBroker
from tests.support.server_processes import GatewayProcess

_SUITE = "consumer protocol"


def consumer_groups(_cache: Path) -> list[Result]:
    """Each step: "passed" if both answer the same."""
    results = []
    for ours, brokers in zip(_of_gateway(), _of_broker(), strict=True):
        step, _, seen = brokers.partition(": ")
        outcome = "passed" if ours == brokers else f"gateway {ours.partition(': ')[2]}, broker {seen}"
        results.append(Result(_SUITE, step, outcome))
    return results


def _of_gateway() -> list[str]:
    with tempfile.TemporaryDirectory(prefix="spark-log-conformance-") as folder:
        with Cluster.init(f"{folder}/cluster") as cluster:
            alter_settings(cluster, {"group.consumer.max.size": str(MEMBERS_MAX)})
            for name, partitions in TOPICS.items():
                create_topic(cluster, name, partitions)
        with GatewayProcess(Path(folder), f"{folder}/cluster") as gateway:
            return observations(gateway.port)


def _of_broker() -> list[str]:
    with KafkaBroker(
        group_consumer_max_size=MEMBERS_MAX,
        group_consumer_assignment_interval_ms=0,
        group_consumer_assignor_offload_enable="false",
    ) as broker:
        for name, partitions in TOPICS.items():
            broker.create_topic(name, partitions)
        return observations(int(broker.address.rpartition(":")[2]))
