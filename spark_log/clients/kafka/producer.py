"""kafka.producer."""

from spark_log.clients.produce.producer import Producer

KafkaProducer = Producer
