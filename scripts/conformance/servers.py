"""The servers that suites run on: a gateway, and a real broker."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from tests.support.kafka_programs import KafkaBroker
from tests.support.server_processes import GatewayProcess

_PARTITIONS = "4"
"""Of topics that clients create by their first use."""


@contextlib.contextmanager
def gateway(*options: str, brokers: int = 1) -> Iterator[str]:
    """Address of a gateway of a new cluster with `brokers` storage brokers, with further options of the command."""
    with tempfile.TemporaryDirectory(prefix="spark-log-conformance-") as folder:
        address = f"{folder}/cluster"
        with Cluster.init(address) as cluster:
            for broker_id in range(2, brokers + 1):
                add_broker(cluster, broker_id, [f"{folder}/log-dir-{broker_id}"])
        with GatewayProcess(Path(folder), address, "--partitions", _PARTITIONS, *options) as running:
            yield running.address


@contextlib.contextmanager
def broker(**configs: str | int) -> Iterator[str]:
    """Address of a broker of Kafka without any topics. `configs`: with _ in place of dots."""
    with KafkaBroker(None, num_partitions=_PARTITIONS, heap="1g", **configs) as running:
        yield running.address
