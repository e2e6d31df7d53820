"""A real Kafka broker on a free loopback port: one node that is broker and controller (KRaft)."""

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from tests.support.kafka_jars import broker_class_path
from tests.support.ports import free_port

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
