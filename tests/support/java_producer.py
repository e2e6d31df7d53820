"""Kafka's Java producer in a separate JVM, driven through py4j."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from spark_log.spark.delta_jars import spark_jars_folder
from tests.support.kafka_jars import connector_jars


class JavaProducer:
    """`send` returns at once; `acknowledged` waits for every record that was sent."""

    def __init__(self, gateway: JavaGateway, settings: dict[str, str]) -> None:
        self.jvm = jvm = gateway.jvm
        properties = jvm.java.util.Properties()
        for name, value in settings.items():
            properties.setProperty(name, value)
        serializer = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
        self._record = jvm.org.apache.kafka.clients.producer.ProducerRecord
        self.java = jvm.org.apache.kafka.clients.producer.KafkaProducer(properties, serializer(), serializer())
        """For calls that have no method here."""
        self._sent: list[tuple[bytes, Any]] = []

    def send(self, topic: str, key: bytes, value: bytes) -> None:
        self._sent.append((value, self.java.send(self._record(topic, key, value))))

    def acknowledged(self) -> list[bytes]:
        """The values of all records. Raises py4j's error of the first record that was not acknowledged."""
        self.java.flush()
        for _, future in self._sent:
            future.get()
        self.java.close()
        return [value for value, _ in self._sent]


@contextmanager
def java_producer(settings: dict[str, str]) -> Iterator[JavaProducer]:
    """A producer with these settings (Kafka's names), as Spark's connector brings it. Its JVM ends with the context."""
    classes = ":".join([*connector_jars().split(","), f"{spark_jars_folder()}/*"])
    port, process = launch_gateway(
        classpath=classes, die_on_exit=True, return_proc=True, redirect_stderr=subprocess.DEVNULL
    )
    # Without memory management: for each object that Python frees it would ask the port to free it too, also after the
    # JVM has ended, and wait for an answer for ever if another server has the port by then.
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, enable_memory_management=False))
    try:
        yield JavaProducer(gateway, settings)
    finally:
        gateway.close()
        process.kill()
        process.wait(timeout=60)
