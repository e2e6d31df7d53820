"""Programs of confluent-kafka's share consumer (a preview in 2.16): what they see on a broker and on a gateway.

`python -m scripts.conformance.share_confluent [--server broker|gateway|both]` prints it; with both, it compares.
"""

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka as rd
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from scripts.conformance.results import Result
from scripts.conformance.share_groups import broker_for_shares, gateway_for_shares

_WAIT_S = 30.0
_TYPES = rd.AcknowledgeType


class _Client:
    """Common parts of the programs: topics and groups of their own, and polls as plain values."""

    def __init__(self, address: str) -> None:
        self._servers = {"bootstrap.servers": address}
        self._admin = AdminClient(self._servers)

    def topic(self, values: list[str]) -> str:
        """A new topic with these records in one batch."""
        name = f"topic-{uuid.uuid4()}"
        self._admin.create_topics([NewTopic(name, 1, 1)])[name].result(_WAIT_S)
        self.produce(name, values)
        return name

    def produce(self, topic: str, values: list[str]) -> None:
        producer = rd.Producer({**self._servers, "linger.ms": 500, "message.timeout.ms": 20_000})
        for value in values:
            producer.produce(topic, value.encode())
        producer.flush(_WAIT_S)

    def group(self, **configs: str) -> str:
        """A group that reads from the start, with these configs (with _ in place of dots)."""
        name = f"group-{uuid.uuid4()}"
        wanted = {"share.auto.offset.reset": "earliest", **{key.replace("_", "."): configs[key] for key in configs}}
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(_WAIT_S)
        return name

    @contextmanager
    def consumer(self, group: str, topic: str, **settings: Any) -> Iterator[rd.ShareConsumer]:
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        consumer = rd.ShareConsumer({**self._servers, "group.id": group, **configs})
        try:
            consumer.subscribe([topic])
            yield consumer
        finally:
            consumer.close()


def _poll(consumer: rd.ShareConsumer, wait_s: float = _WAIT_S) -> list[rd.Message]:
    """The first records that come, or none in the time."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        found = list(consumer.poll(min(1.0, wait_s)))
        if found:
            return found
    return []


def _seen(messages: list[rd.Message]) -> list[tuple[str, int, int]]:
    """Value, offset, delivery count."""
    return [(each.value().decode(), each.offset(), each.delivery_count()) for each in messages]


def _committed(consumer: rd.ShareConsumer) -> list[str]:
    """The results of a commit, by the names of errors."""
    return ["none" if error is None else error.args[0].name() for error in consumer.commit_sync(_WAIT_S).values()]


def _raises(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def _implicit(client: _Client) -> dict[str, Any]:
    topic = client.topic(["a", "b", "c"])
    seen: dict[str, Any] = {}
    with client.consumer(client.group(), topic) as consumer:
        records = _poll(consumer)
        seen["records"] = _seen(records)
        seen["acknowledge in implicit mode"] = _raises(lambda: consumer.acknowledge(records[0]))
        seen["commit"] = _committed(consumer)
        seen["commit again"] = _committed(consumer)
        seen["nothing more"] = _seen(_poll(consumer, 2))
    return seen


def _explicit(client: _Client) -> dict[str, Any]:
    topic, group = client.topic(["a", "b", "c"]), client.group()
    seen: dict[str, Any] = {}
    with client.consumer(group, topic, share_acknowledgement_mode="explicit") as consumer:
        records = _poll(consumer)
        seen["records"] = _seen(records)
        consumer.acknowledge(records[0], _TYPES.ACCEPT)
        seen["poll with unacknowledged records"] = _raises(lambda: consumer.poll(1.0))
        consumer.acknowledge(records[1], _TYPES.RELEASE)
        consumer.acknowledge_offset(topic, 0, 2, _TYPES.REJECT)
        seen["commit"] = _committed(consumer)
        released = _poll(consumer)
        seen["released"] = _seen(released)
        consumer.acknowledge(released[0])
        seen["commit of it"] = _committed(consumer)
        seen["acknowledge it again"] = _raises(lambda: consumer.acknowledge(released[0]))
        seen["nothing more"] = _seen(_poll(consumer, 2))
    return seen


def _callback(client: _Client) -> dict[str, Any]:
    topic = client.topic(["a", "b"])
    told: list[Any] = []
    with client.consumer(client.group(), topic) as consumer:
        consumer.set_acknowledgement_commit_callback(
            lambda offsets, error: told.append(([sorted(each) for each in offsets.values()], error))
        )
        records = _seen(_poll(consumer))
        consumer.commit_async()
        deadline = time.monotonic() + _WAIT_S
        while not told and time.monotonic() < deadline:
            consumer.poll(0.5)
    return {"records": records, "told": told}


def _lock_end(client: _Client) -> dict[str, Any]:
    topic = client.topic(["a"])
    seen: dict[str, Any] = {}
    group = client.group(share_record_lock_duration_ms="1500")
    with client.consumer(group, topic, share_acknowledgement_mode="explicit") as consumer:
        record = _poll(consumer)[0]
        time.sleep(2.5)
        consumer.acknowledge(record)
        seen["commit after the end"] = _committed(consumer)
        again = _poll(consumer)
        seen["again"] = _seen(again)
        consumer.acknowledge(again[0])
        seen["commit"] = _committed(consumer)
    return seen


def _close(client: _Client) -> dict[str, Any]:
    topic, group = client.topic(["a", "b"]), client.group()
    seen: dict[str, Any] = {}
    with client.consumer(group, topic, share_acknowledgement_mode="explicit") as consumer:
        records = _poll(consumer)
        consumer.acknowledge(records[0])
    with client.consumer(group, topic) as consumer:
        seen["records of the next consumer"] = _seen(_poll(consumer))
    return seen


PROGRAMS: dict[str, Callable[[_Client], dict[str, Any]]] = {
    "implicit acknowledgements": _implicit,
    "explicit acknowledgements": _explicit,
    "a commit with a callback": _callback,
    "the end of a lock": _lock_end,
    "a close": _close,
}


def observations(server: AbstractContextManager[str]) -> dict[str, Any]:
    """Return the observations of each program."""
    with server as address:
        return {name: program(_Client(address)) for name, program in PROGRAMS.items()}


def share_confluent(_cache: Path) -> list[Result]:
    """Each program: "passed" if it sees the same on a gateway and on a broker."""
    ours, theirs = observations(gateway_for_shares()), observations(broker_for_shares())
    return [
        Result(
            "confluent-kafka's share consumer", name, "passed" if ours[name] == seen else f"{ours[name]}, not {seen}"
        )
        for name, seen in theirs.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", choices=("broker", "gateway", "both"), default="broker")
    server = parser.parse_args().server
    if server == "both":
        for result in share_confluent(Path()):
            print(f"{result.outcome}: {result.test}")
        return 0
    running = broker_for_shares() if server == "broker" else gateway_for_shares()
    for name, seen in observations(running).items():
        print(f"{name}:")
        for step, value in seen.items():
            print(f"  {step}: {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
