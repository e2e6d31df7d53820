"""A distributed worker of Kafka Connect, and requests to its REST interface."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.kafka_programs import applications_class_path

WAIT_S = 180.0
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@contextlib.contextmanager
def java(log: Path, *arguments: str, plugins: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of Java with the class path of the applications, and `plugins` after it."""
    executable = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    class_path = f"{applications_class_path()}:{plugins}".rstrip(":")
    command = [str(executable), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", class_path, *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent)
    try:
        yield process
    except TimeoutError:
        print(f"--- {log.name}\n{log.read_text()[-6000:]}", file=sys.stderr)
        raise
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def worker(
    address: str, folder: Path, port: int, *, plugins: str = "", **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that listens on `port`. `settings`: more of its properties, with _ in place of dots."""
    storage = {
        f"{name}.storage.{key}": value
        for name in ("config", "offset", "status")
        for key, value in (("topic", f"connect-{name}"), ("replication.factor", "1"))
    }
    properties = {
        "bootstrap.servers": address, "group.id": "connect-cluster", **storage,
        "offset.storage.partitions": "2", "status.storage.partitions": "2", "listeners": f"http://127.0.0.1:{port}",
        "rest.advertised.host.name": "127.0.0.1", "offset.flush.interval.ms": "500",
        "key.converter": STRINGS, "value.converter": STRINGS,
        "session.timeout.ms": "6000", "heartbeat.interval.ms": "1000", "scheduled.rebalance.max.delay.ms": "1000",
        "consumer.auto.offset.reset": "earliest", "plugin.discovery": "only_scan",
        "consumer.session.timeout.ms": "6000", "consumer.heartbeat.interval.ms": "1000",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }  # fmt: skip
    file = folder / f"worker-{port}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    program = "org.apache.kafka.connect.cli.ConnectDistributed"
    with java(folder / f"worker-{port}.log", program, str(file), plugins=plugins) as process:
        yield process


def rest(port: int, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """The answer of a worker; None if it does not serve now."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except OSError:
        return None


def create_connector(port: int, name: str, config: Mapping[str, str]) -> None:
    until(
        lambda: rest(port, "/connectors", {"name": name, "config": config}) or name in (rest(port, "/connectors") or ())
    )


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached in {WAIT_S:.0f} s")
        time.sleep(0.3)
