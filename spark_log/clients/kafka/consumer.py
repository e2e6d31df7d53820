"""kafka.consumer."""

from spark_log.clients.consume.consumer import Consumer

KafkaConsumer = Consumer
