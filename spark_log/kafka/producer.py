"""kafka.producer."""

from spark_log.produce.producer import Producer

KafkaProducer = Producer
