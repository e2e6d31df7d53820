"""Provides kafka-python's module kafka.producer with spark-log's producer."""

from spark_log.clients.produce.producer import Producer

KafkaProducer = Producer
