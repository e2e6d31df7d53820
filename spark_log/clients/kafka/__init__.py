"""Provides the modules of kafka-python with spark-log's clients. A program changes only its import:
`from spark_log.clients.kafka import KafkaProducer`.

The layout is that of kafka-python 3, with the module paths of kafka-python 2 that programs import. Classes without a
connection, such as TopicPartition, NewTopic, serializers and errors, are kafka-python's own: lines that import them
from `kafka` may stay as they are.
"""

import sys
from importlib import import_module
from typing import Any

from kafka import AsyncConsumerRebalanceListener as AsyncConsumerRebalanceListener
from kafka import ConsumerGroupMetadata as ConsumerGroupMetadata
from kafka import ConsumerRebalanceListener as ConsumerRebalanceListener
from kafka import DefaultSerializer as DefaultSerializer
from kafka import Deserializer as Deserializer
from kafka import IsolationLevel as IsolationLevel
from kafka import JsonSerializer as JsonSerializer
from kafka import OffsetAndMetadata as OffsetAndMetadata
from kafka import OffsetSpec as OffsetSpec
from kafka import Serializer as Serializer
from kafka import TopicPartition as TopicPartition
from kafka import TopicPartitionReplica as TopicPartitionReplica
from kafka import __version__ as __version__
from kafka import coordinator as coordinator
from kafka import future as future
from kafka import partitioner as partitioner
from kafka import serializer as serializer
from kafka.admin import NewPartitions as NewPartitions
from kafka.admin import NewTopic as NewTopic

from spark_log.clients.kafka import admin as admin
from spark_log.clients.kafka import consumer as consumer
from spark_log.clients.kafka import errors as errors
from spark_log.clients.kafka import producer as producer
from spark_log.clients.kafka import structs as structs
from spark_log.clients.kafka.admin import KafkaAdminClient as KafkaAdminClient
from spark_log.clients.kafka.consumer import KafkaConsumer as KafkaConsumer
from spark_log.clients.kafka.producer import KafkaProducer as KafkaProducer

_SAME = {
    "coordinator": "kafka.coordinator",
    "coordinator.assignors": "kafka.coordinator.assignors",
    "coordinator.assignors.abstract": "kafka.coordinator.assignors.abstract",
    "coordinator.assignors.cooperative_sticky": "kafka.coordinator.assignors.cooperative_sticky",
    "coordinator.assignors.range": "kafka.coordinator.assignors.range",
    "coordinator.assignors.roundrobin": "kafka.coordinator.assignors.roundrobin",
    "coordinator.assignors.sticky": "kafka.coordinator.assignors.sticky",
    "coordinator.assignors.sticky.sticky_assignor": "kafka.coordinator.assignors.sticky.sticky_assignor",
    "future": "kafka.future",
    "partitioner": "kafka.partitioner",
    "partitioner.default": "kafka.partitioner.default",
    "partitioner.sticky": "kafka.partitioner.sticky",
    "serializer": "kafka.serializer",
    "serializer.abstract": "kafka.serializer.abstract",
    "version": "kafka.version",
    # submodules
    "admin.acl_resource": "kafka.admin._acls",
    "admin.client": "spark_log.clients.kafka.admin",
    "admin.config_resource": "kafka.admin._configs",
    "admin.new_partitions": "kafka.admin._partitions",
    "admin.new_topic": "kafka.admin._topics",
    "consumer.fetcher": "kafka.consumer.fetcher",
    "consumer.group": "spark_log.clients.kafka.consumer",
    "consumer.subscription_state": "kafka.consumer.subscription_state",
    "producer.future": "kafka.producer.future",
    "producer.kafka": "spark_log.clients.kafka.producer",
}
"""The module that implements each module name of this package."""

for _name, _target in _SAME.items():
    # `import` uses sys.modules first: one module has two names, so its classes are the same under both
    _module = sys.modules[f"{__name__}.{_name}"] = import_module(_target)
    _parent, _, _leaf = f"{__name__}.{_name}".rpartition(".")
    setattr(sys.modules[_parent], _leaf, _module)

_NOT_HERE = ("BrokerConnection", "KafkaClient", "SimpleClient", "SimpleConsumer", "SimpleProducer")


def __getattr__(name: str) -> Any:
    if name in _NOT_HERE:
        raise ImportError(
            f"spark_log.clients.kafka has no {name}: there is no connection to a broker."
            " Use KafkaProducer, KafkaConsumer and KafkaAdminClient"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
