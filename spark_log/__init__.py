"""spark-log: a distributed log with Kafka's model, native to Spark.

>>> from spark_log import Cluster, create_topic, read_topic          # doctest: +SKIP

Names are imported on first use, because executors import this package for every task and need few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from spark_log.clients.admin.client import Admin as Admin
    from spark_log.clients.consume.consumer import Consumer as Consumer
    from spark_log.clients.consume.share_consumer import AcknowledgeType as AcknowledgeType
    from spark_log.clients.consume.share_consumer import ShareConsumer as ShareConsumer
    from spark_log.clients.produce.producer import Producer as Producer
    from spark_log.cluster.cluster import Cluster as Cluster
    from spark_log.maintenance.coordinator.broker import Broker as Broker
    from spark_log.maintenance.coordinator.coordinator import Coordinator as Coordinator
    from spark_log.registry.registry import Registry as Registry
    from spark_log.replication.controller.topic_operations import create_topic as create_topic
    from spark_log.spark.datasource.read.read_topic import read_topic as read_topic
    from spark_log.spark.datasource.write.topic_write import activate_session as activate_session
    from spark_log.spark.datasource.write.topic_write import write_topic as write_topic
    from spark_log.spark.delta_jars import DELTA_SETTINGS as DELTA_SETTINGS
    from spark_log.spark.streams.topic_stream import stream_topic as stream_topic

_HOME = {
    "AcknowledgeType": "spark_log.groups.share.rules",
    "DELTA_SETTINGS": "spark_log.spark.delta_jars",
    "Admin": "spark_log.clients.admin.client",
    "Broker": "spark_log.maintenance.coordinator.broker",
    "Cluster": "spark_log.cluster.cluster",
    "Consumer": "spark_log.clients.consume.consumer",
    "Producer": "spark_log.clients.produce.producer",
    "Coordinator": "spark_log.maintenance.coordinator.coordinator",
    "Registry": "spark_log.registry.registry",
    "ShareConsumer": "spark_log.clients.consume.share_consumer",
    "activate_session": "spark_log.spark.datasource.write.topic_write",
    "create_topic": "spark_log.replication.controller.topic_operations",
    "read_topic": "spark_log.spark.datasource.read.read_topic",
    "stream_topic": "spark_log.spark.streams.topic_stream",
    "write_topic": "spark_log.spark.datasource.write.topic_write",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("spark-log")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
