"""Kafka's own programs: their JARs, a real broker, and the Java producer.

Spark's resolver fetches the JARs of a broker and of Spark's Kafka connector once into the environment. `KafkaBroker` is
one node on a free loopback port that is broker and controller (KRaft). `java_producer` runs Kafka's producer in a
separate JVM, driven through py4j.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from spark_log.spark.delta_jars import spark_jars_folder
from tests.support.server_processes import free_port

KAFKA_VERSION = "4.4.0"
"""Version of the broker, its tools, and Kafka's Java clients that tests and benchmarks compare with."""
BROKER = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}")
"""The broker, and Kafka's command line tools."""
STREAMS = (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",)
CONNECT_FILE_VERSION = "4.3.1"
"""Version of the connectors of files, for the worker of Kafka Connect that the tools bring. Maven Central has none of
version 4.4.0."""
CONNECT_FILE = (f"org.apache.kafka:connect-file:{CONNECT_FILE_VERSION}",)
DEBEZIUM_VERSION = "3.6.1.Final"
DEBEZIUM = (f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}",)
CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
)
_SPARK_HAS = "org.apache.hadoop:*,org.scala-lang*:*,org.slf4j:*,com.google.code.findbugs:*"
"""Dependencies of the connector that Spark has already."""


def broker_class_path() -> str:
    """Class path of the broker and its tools, for `java -cp`."""
    [scala] = spark_jars_folder().glob("scala-library-*.jar")  # the resolver leaves out what Spark itself brings
    return f"{_folder(f'broker-{KAFKA_VERSION}', BROKER, '')}/*:{scala}"


def applications_class_path() -> str:
    """Class path of Kafka Connect with its connectors of files, and of Kafka Streams.

    The dependencies of the connectors come last: they have a class that newer clients do not have any more.
    """
    streams = _folder(f"streams-{KAFKA_VERSION}", STREAMS, "org.apache.kafka:kafka-clients")
    files = _folder(f"connect-file-{CONNECT_FILE_VERSION}", CONNECT_FILE, "")
    return f"{streams}/*:{broker_class_path()}:{files}/*"


def debezium_class_path() -> str:
    """Class path of Debezium's connector for PostgreSQL, for a worker of Kafka Connect."""
    return f"{_folder(f'debezium-{DEBEZIUM_VERSION}', DEBEZIUM, 'org.apache.kafka:*,org.slf4j:*')}/*"


def connector_jars() -> str:
    """The connector's files, for the setting `spark.jars`."""
    return ",".join(str(file) for file in sorted(_folder("connector", CONNECTOR, _SPARK_HAS).glob("*.jar")))


def _folder(name: str, packages: tuple[str, ...], excluded: str) -> Path:
    target = Path(sys.prefix) / "kafka" / name
    if target.is_dir():
        return target
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        program = Path(scratch) / "nothing.py"  # spark-submit resolves packages before it runs a program
        program.write_text("")
        command = [str(spark_jars_folder().parent / "bin" / "spark-submit"), "--master", "local[1]"]
        command += ["--packages", ",".join(packages), "--exclude-packages", excluded]
        command += ["--conf", f"spark.jars.ivy={scratch}/ivy", str(program)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka's JARs could not be fetched:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        shutil.move(f"{scratch}/ivy/jars", target)
    return target


_CLUSTER_ID = "sparklogbenchmark00000"  # 16 bytes in base64
_PR_SET_PDEATHSIG = 1


class KafkaBroker:
    """A broker with its own data folder, as Kafka configures one by default (no fsync per message).

    A context manager: starts at entry; ends and removes its data at exit. After `end`, `start` begins it again with its
    data, on the same port.
    """

    def __init__(self, folder: Path | None = None, *, heap: str = "1g", **configs: str | int) -> None:
        """`folder` is where the data folder is made; `configs` are broker configs, with _ in place of dots."""
        self._root = Path(tempfile.mkdtemp(prefix="spark-log-kafka-", dir=folder))
        self._heap = heap
        self._configs = {name.replace("_", "."): value for name, value in configs.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"127.0.0.1:{free_port()}"
        self._controller = f"127.0.0.1:{free_port()}"

    @property
    def data(self) -> Path:
        """The log dir."""
        return self._root / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, timeout_s: float = 120.0) -> None:
        """Format the log dir if it is new, start the broker, and wait until it answers."""
        configs = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{self._controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self._controller}",
            "log.dirs": self.data,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **self._configs,
        }
        properties = self._root / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in configs.items()))
        if not self.data.exists():
            subprocess.run(
                [*self._java(), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)],
                check=True,
                capture_output=True,
            )
        with (self._root / "log").open("ab") as log:
            command = [*self._java(), "kafka.Kafka", str(properties)]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._root, preexec_fn=_end_with_the_parent
            )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Kafka did not start:\n{(self._root / 'log').read_text()[-4000:]}")
            time.sleep(0.2)

    def create_topic(self, name: str, partitions: int, **configs: str | int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            topic = NewTopic(name, partitions, 1, topic_configs={k.replace("_", "."): v for k, v in configs.items()})
            admin.create_topics([topic])
        finally:
            admin.close()

    def delete_topic(self, name: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            admin.delete_topics([name])
        finally:
            admin.close()

    def stop(self) -> None:
        """End the broker and remove its data."""
        self.end()
        shutil.rmtree(self._root, ignore_errors=True)

    def end(self) -> None:
        """End the broker, and keep its data."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _java(self) -> list[str]:
        java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
        return [str(java), f"-Xmx{self._heap}", f"-Xms{self._heap}", "-XX:+UseG1GC", "-cp", broker_class_path()]

    def _answers(self) -> bool:
        try:
            KafkaAdminClient(bootstrap_servers=self.address, request_timeout_ms=2_000).close()
        except KafkaError:
            return False
        return True

    def __enter__(self) -> "KafkaBroker":
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


def _end_with_the_parent() -> None:
    """The broker gets SIGTERM when the thread that started it ends, also by a signal (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


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
