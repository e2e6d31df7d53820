"""kafka.consumer."""

from spark_log.consume.consumer import Consumer

KafkaConsumer = Consumer
