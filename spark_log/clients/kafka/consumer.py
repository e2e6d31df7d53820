"""Provides kafka-python's module kafka.consumer with spark-log's consumer."""

from spark_log.clients.consume.consumer import Consumer

KafkaConsumer = Consumer
