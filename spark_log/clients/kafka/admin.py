"""Provides kafka-python's module kafka.admin with spark-log's client."""

from kafka.admin import *  # noqa: F403
from kafka.admin import ConfigFilterType as ConfigFilterType
from kafka.admin import NewPartitions as NewPartitions
from kafka.admin import NewTopic as NewTopic

from spark_log.clients.admin.client import Admin

KafkaAdminClient = Admin
