"""The same programs of confluent-kafka on a gateway and on a real broker: what they see must be the same."""

import sys
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import confluent_kafka as rd
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from scripts.conformance.results import Result
from scripts.conformance.servers import broker, gateway

NOON_MS = 1_700_000_000_000
WAIT_S = 30


class Client:
    """A client of one server, with the calls that the programs share. Errors are seen as their names."""

    def __init__(self, address: str) -> None:
        self._servers = {"bootstrap.servers": address}
        self.admin = AdminClient(self._servers)

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """A new topic, that the admin client knows."""
        name = f"topic-{uuid.uuid4()}"
        named = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=named)])[name].result(WAIT_S)
        return name

    def produce(self, topic: str, records: Iterable[dict[str, Any]], **settings: Any) -> list[Any]:
        """Send one record after another; the partition, offset and error of each."""
        producer = rd.Producer({**self._servers, "message.timeout.ms": 10_000, **_dotted(settings)})
        seen: list[Any] = []
        for record in records:
            try:
                producer.produce(topic, on_delivery=lambda error, sent: seen.append(_sent(error, sent)), **record)
            except rd.KafkaException as error:
                seen.append(_name(error.args[0]))
            producer.flush(WAIT_S)
        return seen

    def consumer(self, group: str = "", **settings: Any) -> rd.Consumer:
        defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "enable.partition.eof": True}
        return rd.Consumer({**self._servers, "group.id": group or str(uuid.uuid4()), **defaults, **_dotted(settings)})

    def read(self, topic: str, offset: int, **settings: Any) -> list[Any]:
        """Records and errors of partition 0 from an offset to its end."""
        consumer = self.consumer(**settings)
        consumer.assign([rd.TopicPartition(topic, 0, offset)])
        seen: list[Any] = []
        while not seen or isinstance(seen[-1], tuple):
            message = consumer.poll(WAIT_S)
            error = "nothing" if message is None else message.error()
            seen.append(_name(error) if error else _record(message))
        consumer.close()
        return seen


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def _name(error: Any) -> str:
    return error if isinstance(error, str) else str(error.name())


def _sent(error: Any, message: rd.Message) -> Any:
    return _name(error) if error else (message.partition(), message.offset())


def _record(message: rd.Message) -> Any:
    kind, at_ms = message.timestamp()
    shown = at_ms if kind == rd.TIMESTAMP_CREATE_TIME else "append time"
    return message.offset(), message.key(), message.value(), message.headers(), kind, shown, message.leader_epoch()


def outcome(call: Callable[[], Any]) -> Any:
    """The result of a call, or the name of its error."""
    try:
        return call()
    except rd.KafkaException as error:
        return _name(error.args[0])


def outcomes(futures: dict[Any, Any]) -> list[Any]:
    return [outcome(lambda each=each: each.result(WAIT_S)) for each in futures.values()]  # type: ignore[misc]


def records(count: int) -> list[dict[str, Any]]:
    return [{"value": b"%d" % number, "timestamp": NOON_MS + 1_000 * number} for number in range(count)]


def records_come_back(client: Client) -> Any:
    topic = client.topic()
    given: list[dict[str, Any]] = [
        {"key": None, "value": None}, {"key": b"", "value": b""}, {"key": b"k\0", "value": b"v" * 5_000},
        {"value": b"v", "headers": [("a", b"1"), ("a", None), ("", b"")]},
    ]  # fmt: skip
    sent = [client.produce(topic, [{**each, "timestamp": NOON_MS} for each in given], compression_type=codec)
            for codec in ("none", "gzip", "snappy", "lz4", "zstd")]  # fmt: skip
    return sent, client.read(topic, 0), client.read(topic, 7, isolation_level="read_uncommitted")


def append_time_is_the_servers(client: Client) -> Any:
    topic = client.topic(message_timestamp_type="LogAppendTime")
    return client.produce(topic, records(2)), client.read(topic, 0)


def refused_records(client: Client) -> Any:
    small, compacted = client.topic(max_message_bytes="1000"), client.topic(cleanup_policy="compact")
    return [
        client.produce(small, [{"value": b"v" * 2_000}, {"value": b"v"}]),
        client.produce(compacted, [{"value": b"v"}, {"key": b"k", "value": b"v"}]),
        client.produce(client.topic(), [{"value": b"v", "partition": 3}]),
        client.produce("not a name", [{"value": b"v"}]),
    ]


def producers_of_each_kind(client: Client) -> Any:
    topic = client.topic()
    kinds: list[dict[str, Any]] = [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}]
    return [[each == "nothing" or type(each) for each in client.produce(topic, records(3), **kind)] for kind in kinds]


def reads_outside_of_the_log(client: Client) -> Any:
    topic = client.topic()
    client.produce(topic, records(3))
    deleted = outcomes(client.admin.delete_records([rd.TopicPartition(topic, 0, 1)]))
    read = [
        [client.read(topic, at, auto_offset_reset=reset) for at in (0, 1, 3, 9)]
        for reset in ("earliest", "latest", "error")
    ]
    return [getattr(each, "low_watermark", each) for each in deleted], read


def offsets_by_time(client: Client) -> Any:
    topic = client.topic()
    client.produce(topic, records(5))
    consumer = client.consumer()
    asked = [NOON_MS - 1, NOON_MS, NOON_MS + 1, NOON_MS + 4_000, NOON_MS + 4_001]
    found = [consumer.offsets_for_times([rd.TopicPartition(topic, 0, at_ms)], WAIT_S)[0].offset for at_ms in asked]
    specs = [OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp()]
    there = rd.TopicPartition(topic, 0)
    listed = [outcomes(client.admin.list_offsets({there: spec})) for spec in specs]
    listed = [[(each.offset, each.timestamp) for each in found] for found in listed]
    return found, listed, consumer.get_watermark_offsets(there, WAIT_S)


def committed_offsets(client: Client) -> Any:
    topic, consumer = client.topic(2), client.consumer()

    def commit(partition: int, offset: int, **more: Any) -> Any:
        asked = [rd.TopicPartition(topic, partition, offset, **more)]
        return outcome(lambda: [each.error for each in consumer.commit(offsets=asked, asynchronous=False) or ()])

    tried = [commit(0, 7), commit(0, 5, metadata="é", leader_epoch=0), commit(7, 1), commit(1, 1, metadata="x" * 5_000)]
    asked = [rd.TopicPartition(topic, partition) for partition in (0, 1, 7)]
    found = [(each.offset, each.metadata, each.leader_epoch) for each in consumer.committed(asked, WAIT_S)]
    return tried, found


def topics_that_are_refused(client: Client) -> Any:
    there = client.topic()
    asked = [
        NewTopic(there, 1, 1), NewTopic("not a name", 1, 1), NewTopic("x" * 250, 1, 1), NewTopic("..", 1, 1),
        NewTopic("a", 0, 1), NewTopic("b", 1, 5), NewTopic("c", 1, 1, config={"retention.ms": "soon"}),
        NewTopic("d", 1, 1, config={"no.such.config": "1"}), NewTopic("e", 1, 1, config={"cleanup.policy": "x"}),
    ]  # fmt: skip
    return [
        outcomes(client.admin.create_topics(asked)),
        outcomes(client.admin.delete_topics(["no-such-topic"])),
        [outcomes(client.admin.create_partitions([NewPartitions(name, count)]))
         for name, count in ((there, 3), (there, 3), (there, 1), ("no-such-topic", 3))],
        outcomes(client.admin.delete_records([rd.TopicPartition(there, 0, 5)])),
        outcomes(client.admin.delete_records([rd.TopicPartition("no-such-topic", 0, 0)])),
    ]  # fmt: skip


def configs(client: Client) -> Any:
    topic = client.topic(retention_ms="5000")

    def alter(name: str, config: str, value: str | None, operation: AlterConfigOpType) -> Any:
        entry = ConfigEntry(config, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        return outcomes(client.admin.incremental_alter_configs([resource]))

    names = "retention.ms", "cleanup.policy", "max.message.bytes", "message.timestamp.type", "min.cleanable.dirty.ratio"
    tried = [
        alter(topic, "retention.ms", "6000", AlterConfigOpType.SET),
        alter(topic, "retention.ms", "soon", AlterConfigOpType.SET),
        alter(topic, "retention.ms", "1", AlterConfigOpType.APPEND),
        alter(topic, "cleanup.policy", "compact", AlterConfigOpType.APPEND),
        alter(topic, "max.message.bytes", "-5", AlterConfigOpType.SET),
        alter("no-such-topic", "retention.ms", "1", AlterConfigOpType.SET),
        alter(topic, "max.message.bytes", None, AlterConfigOpType.DELETE),
    ]
    [found] = outcomes(client.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    missing = outcomes(client.admin.describe_configs([ConfigResource(ResourceType.TOPIC, "no-such-topic")]))
    values = [(name, sorted(found[name].value.split(",")), found[name].source) for name in names]  # a list has no order
    return tried, values, missing


def groups(client: Client) -> Any:
    topic, group = client.topic(2), f"group-{uuid.uuid4()}"
    client.produce(topic, [{**each, "partition": number % 2} for number, each in enumerate(records(4))])
    consumer = client.consumer(group)
    consumer.subscribe([topic])
    read = sorted((m.partition(), m.offset()) for m in _until_the_end(consumer, 2))
    consumer.commit(asynchronous=False)

    def described(name: str) -> Any:
        [found] = outcomes(client.admin.describe_consumer_groups([name]))
        members = [sorted(each.assignment.topic_partitions) for each in found.members]
        return found.state, found.partition_assignor, [[p.partition for p in member] for member in members]

    busy = described(group), outcomes(client.admin.delete_consumer_groups([group]))
    consumer.close()
    idle = described(group), outcomes(client.admin.delete_consumer_groups([group, "no-such-group"]))
    return read, busy, idle, described("no-such-group")


def _until_the_end(consumer: rd.Consumer, partitions: int) -> list[rd.Message]:
    """The records up to the end of each partition."""
    found: list[rd.Message] = []
    ends = 0
    while ends < partitions:
        message = consumer.poll(WAIT_S)
        assert message is not None, "no message, and not the end"
        if message.error():
            ends += 1
        else:
            found.append(message)
    return found


def metadata(client: Client) -> Any:
    topic = client.topic(3)
    found = client.admin.list_topics(topic, WAIT_S).topics[topic]
    partitions = [(number, len(each.replicas), len(each.isrs)) for number, each in sorted(found.partitions.items())]
    missing = client.admin.list_topics("not a name", WAIT_S).topics["not a name"]
    name = f"new-{uuid.uuid4()}"  # a broker first answers that it does not exist
    while (created := client.admin.list_topics(name, WAIT_S).topics[name]).error:
        time.sleep(0.1)
    return partitions, _name(missing.error), len(created.partitions)


PROGRAMS = (
    records_come_back,
    append_time_is_the_servers,
    refused_records,
    producers_of_each_kind,
    reads_outside_of_the_log,
    offsets_by_time,
    committed_offsets,
    topics_that_are_refused,
    configs,
    groups,
    metadata,
)


def matrix(_cache: Path) -> list[Result]:
    """Each program, on a gateway and on a broker: "passed" if it sees the same."""
    with broker() as address:
        expected = [program(Client(address)) for program in PROGRAMS]
    with gateway() as address:
        seen = [_seen(program, address) for program in PROGRAMS]
    results = []
    for program, ours, theirs in zip(PROGRAMS, seen, expected, strict=True):
        same = repr(ours) == repr(theirs)
        results.append(Result("differential matrix", program.__name__, "passed" if same else "differs"))
        if not same:
            print(f"--- {program.__name__}: gateway\n{ours}\n--- broker\n{theirs}\n", file=sys.stderr)
    return results


def _seen(program: Callable[[Client], Any], address: str) -> Any:
    try:
        return program(Client(address))
    except Exception as error:  # whatever it is, the broker has given a result
        return repr(error)
