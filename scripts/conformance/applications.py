"""Kafka Connect and Kafka Streams, whose groups assign by themselves: what they do on a gateway and on a broker."""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kafka
from kafka.admin import NewTopic
from kafka.protocol.admin import DescribeGroupsRequest

from scripts.conformance.connect_worker import create_connector, java, rest, until, worker
from scripts.conformance.results import Result
from scripts.conformance.servers import broker, gateway
from spark_log.gateway.groups.streams_group_requests import REFUSAL
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import free_port

_PROGRAM = Path(__file__).parent / "clients" / "WordCount.java"
_LINES = [f"line {number}" for number in range(100)]
_TEXT = [f"{'abc'[number % 3]} {'xy'[number % 2]}" for number in range(60)]
_GUARANTEES = ("at_least_once", "exactly_once_v2")


def applications(cache: Path) -> list[Result]:
    """Each step, on a gateway and on a broker: "passed" if both see the same.

    Streams groups are tried on a gateway only.
    """
    outputs: list[dict[str, Any]] = []
    for server in (gateway, broker):
        with server() as address, tempfile.TemporaryDirectory(dir=cache) as folder:
            seen: dict[str, Any] = {}
            for step in (_connect, *(lambda a, f, g=each: _streams(a, f, g) for each in _GUARANTEES)):
                seen.update(step(address, Path(folder)))
            outputs.append(seen)
    ours, theirs = outputs
    results = []
    for name, expected in theirs.items():
        same = ours[name] == expected
        results.append(Result("Connect and Streams", name, "passed" if same else "differs"))
        if not same:
            print(f"--- {name}: gateway\n{ours[name]}\n--- broker\n{expected}\n", file=sys.stderr)
    with gateway() as address, tempfile.TemporaryDirectory(dir=cache) as folder:
        return [*results, _streams_group(address, Path(folder))]


def _connect(address: str, folder: Path) -> dict[str, Any]:
    """Two distributed workers, one of them killed: a file becomes a topic, and the topic another file."""
    source, sink = folder / "source.txt", folder / "sink.txt"
    source.write_text("".join(f"{line}\n" for line in _LINES[:50]))
    seen: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        ports = [free_port(), free_port()]
        workers = [stack.enter_context(worker(address, folder, port)) for port in ports]
        for port in ports:
            until(lambda port=port: rest(port, "/connectors") == [])  # type: ignore[misc]
        _create(ports[0], "source", "Source", {"file": str(source), "topic": "copied"})
        _create(ports[1], "sink", "Sink", {"file": str(sink), "topics": "copied"})
        until(lambda: _lines_of(sink) == _LINES[:50])
        seen["a file is copied through a topic"] = _lines_of(sink)
        seen["tasks run on both workers"] = sorted({_worker_of(ports[0], name) for name in ("source", "sink")}) == [
            f"127.0.0.1:{port}" for port in sorted(ports)
        ]
        seen["the group"] = _described(address, "connect-cluster")
        workers[0].kill()
        with source.open("a") as file:
            file.write("".join(f"{line}\n" for line in _LINES[50:]))
        until(lambda: _lines_of(sink)[-1:] == _LINES[-1:])
        seen["the other worker takes over"] = sorted(set(_lines_of(sink)), key=_LINES.index)
        with worker(address, folder, ports[0]):
            until(lambda: sorted(rest(ports[0], "/connectors") or ()) == ["sink", "source"])
            seen["configs are found after a restart"] = rest(ports[0], "/connectors/source/config")["connector.class"]
    return seen


def _streams(address: str, folder: Path, guarantee: str) -> dict[str, Any]:
    """Word counts by two instances, one of them killed; then by one that restores its state from the changelog."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    for topic in ("lines", "counts"):
        admin.create_topics([NewTopic(topic, 2, 1)])
    wanted = {word: str(sum(line.split().count(word) for line in _TEXT)) for word in "abcxy"}
    half = {word: str(sum(line.split().count(word) for line in _TEXT[:30])) for word in "abcxy"}
    seen: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(_word_count(address, folder / f"{guarantee}-{n}", guarantee)) for n in range(2)]
        _produce(address, _TEXT[:30])
        until(lambda: _counts(address) == half)
        seen[f"{guarantee}: words are counted"] = _counts(address)
        seen[f"{guarantee}: the group"] = _described(address, "word-count")
        programs[0].kill()
        _produce(address, _TEXT[30:])
        until(lambda: all(int(count) >= int(wanted[word]) for word, count in _counts(address).items()))
        if guarantee != "at_least_once":  # the lines since the last commit may count twice
            seen[f"{guarantee}: the other instance takes over, and restores the counts"] = _counts(address)
    until(lambda: _described(address, "word-count")["members"] == 0)
    topics = sorted(name for name in admin.list_topics() if not name.startswith("__"))
    seen[f"{guarantee}: the topics of the application"] = [name for name in topics if name.startswith("word-count")]
    admin.delete_groups(["word-count"])
    admin.delete_topics([name for name in topics if name.startswith(("word-count", "lines", "counts"))])
    until(lambda: "lines" not in admin.list_topics())
    admin.close()
    return seen


def _streams_group(address: str, folder: Path) -> Result:
    """A gateway refuses group.protocol=streams (KIP-1071). The application fails with the gateway's words."""
    with kafka.KafkaAdminClient(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic("lines", 2, 1), NewTopic("counts", 2, 1)])
    log = folder / "streams.log"
    with _word_count(address, folder / "streams", "at_least_once", "streams"):
        until(lambda: any(line.startswith("failed: ") for line in _lines_of(log)))
    [failure] = {line for line in _lines_of(log) if line.startswith("failed: ")}
    if REFUSAL not in failure:
        print(f"--- group.protocol=streams: gateway\n{failure}\n", file=sys.stderr)
    return Result("Connect and Streams", "group.protocol=streams", "passed" if REFUSAL in failure else "failed")


@contextlib.contextmanager
def _word_count(address: str, state: Path, guarantee: str, *group_protocol: str) -> Iterator[subprocess.Popen[bytes]]:
    shutil.rmtree(state, ignore_errors=True)
    log = state.with_suffix(".log")
    with java(log, str(_PROGRAM), address, str(state), guarantee, *group_protocol) as run:
        yield run


def _create(port: int, name: str, kind: str, config: Mapping[str, str]) -> None:
    kind = f"org.apache.kafka.connect.file.FileStream{kind}Connector"
    create_connector(port, name, {"connector.class": kind, "tasks.max": "1", **config})


def _worker_of(port: int, connector: str) -> str:
    """Where the connector's task runs."""
    found: list[str] = []

    def running() -> bool:
        tasks = (rest(port, f"/connectors/{connector}/status") or {}).get("tasks", [])
        found[:] = [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]
        return len(found) == 1

    until(running)
    return found[0]


def _described(address: str, group: str) -> dict[str, Any]:
    """By a request of its own: kafka-python decodes the metadata of members as that of consumers."""
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=False)
    with WireConnection(int(address.rpartition(":")[2])) as wire:
        [found] = wire.exchange(request, 5).groups
    kinds = ("group_state", "protocol_type", "protocol_data")
    return {**{kind: getattr(found, kind) for kind in kinds}, "members": len(found.members)}


def _lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _produce(address: str, lines: list[str]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    for number, line in enumerate(lines):
        producer.send("lines", line.encode(), partition=number % 2)
    producer.flush()
    producer.close()


def _counts(address: str) -> dict[str, str]:
    """The last count of each word that is committed."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    parts = [kafka.TopicPartition("counts", number) for number in range(2)]
    consumer.assign(parts)
    consumer.seek_to_beginning(*parts)
    ends = consumer.end_offsets(parts)
    found: dict[str, str] = {}
    deadline = time.monotonic() + 10
    while any(consumer.position(part) < ends[part] for part in parts) and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            found.update((record.key.decode(), record.value.decode()) for record in records)
    consumer.close()
    return found
