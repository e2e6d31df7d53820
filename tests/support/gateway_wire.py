"""Requests to a gateway in any version of the protocol, byte by byte: clients choose one version.

`WireConnection` sends them. Functions make requests that many tests send, about one partition. `WireProducer` is a
transactional producer of a Kafka client, one request at a time: the test chooses the gateway of each.
"""

import select
import socket
import ssl
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from uuid import UUID

from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.consumer import FetchRequest, OffsetCommitRequest
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from spark_log.gateway.protocol.wire import Message, read_body
from spark_log.log.records.kafka_batch.encode import encode
from tests.support.kafka_batches import stored, with_checksum

_CORRELATION_ID = 7
_API_VERSIONS = 18


class WireConnection:
    """A connection that sends one request at a time. A context manager."""

    def __init__(
        self, port: int, timeout_s: float = 30.0, context: ssl.SSLContext | None = None,
        client_id: str = "test", source: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        """`context`: for a gateway with TLS. `source`: the loopback address of the client."""
        self._client_id = client_id
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s, (source, 0))
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="127.0.0.1")

    def __enter__(self) -> "WireConnection":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._socket.close()

    def exchange(self, request: Message, version: int) -> Message:
        """The response, decoded by kafka-python: exactly as long as its fields."""
        self.send(request, version)
        return self.receive(request, version)

    def send(self, request: Message, version: int) -> None:
        self._socket.sendall(frame_of(request, version, self._client_id))

    def send_start(self, request: Message, version: int, size: int) -> None:
        """Only the first `size` bytes of the request."""
        self._socket.sendall(frame_of(request, version, self._client_id)[:size])

    def fileno(self) -> int:
        return self._socket.fileno()

    def readable(self, timeout_s: float) -> bool:
        """Whether bytes of the gateway, or its end of the connection, arrive within this time."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def send_bytes(self, data: bytes) -> None:
        """A frame without a header."""
        self.send_frame(struct.pack(">i", len(data)) + data)

    def send_frame(self, frame: bytes) -> None:
        """A request as it is sent: its length, header and body."""
        self._socket.sendall(frame)

    def receive_bytes(self) -> bytes:
        [size] = struct.unpack(">i", self._read(4))
        return self._read(size)

    def receive(self, request: Message, version: int) -> Message:
        """The response to the first request, one like this, that was sent and is not answered."""
        request.API_VERSION = version
        request.with_header(_CORRELATION_ID, self._client_id)
        frame = self.receive_bytes()
        assert frame[:4] == _CORRELATION_ID.to_bytes(4, "big")
        flexible = request.flexible_version_q(version) and request.API_KEY != _API_VERSIONS
        assert not flexible or frame[4] == 0, "the header has tagged fields"
        request.header.request_api_version = 0  # the class of all versions, also of those that kafka-python lacks
        kind = ResponseClassRegistry.get_response_class(request.header)[None]
        return read_body(kind, min(version, kind.max_version), memoryview(frame)[4 + flexible :])

    def is_closed(self) -> bool:
        """Whether the gateway closes the connection, and sends nothing before."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the gateway has closed the connection"
            found += more
        return found


def frame_of(request: Message, version: int, client_id: str = "") -> bytes:
    """A request as it is sent: its length, header and body."""
    request.API_VERSION = version
    request.with_header(_CORRELATION_ID, client_id)
    return request.encode(header=True, framed=True)  # type: ignore[no-any-return]


def request_about(name: str, kind: type[Message], version: int) -> Message:
    """One element in each array, `name` for each text, 1 for each number."""
    return _filled(kind._struct, kind, name, version)


def _filled(struct: Any, kind: Any, name: str, version: int) -> Any:
    simple = {"string": name, "bool": False, "uuid": UUID(int=5), "bytes": b"", "records": b""}
    values: dict[str, Any] = {}
    for field in struct.untagged_fields(version):
        if field.is_struct_array() or field.is_struct():
            value = _filled(field, field.data_class, name, version)
        else:
            value = simple.get(field.array_of.type_str if field.is_array() else field.type_str, 1)
        values[field.name] = [value] if field.is_array() else value
    return kind(**values)


def forbidden_nulls(message: Message, version: int) -> list[str]:
    """Paths of the fields that are null although Kafka's schema does not allow it."""
    return [
        path
        for field in message._struct.untagged_fields(version)
        for path in _nulls(field, getattr(message, field.name), version, field.name)
    ]


def _nulls(field: Any, value: Any, version: int, path: str) -> list[str]:
    if value is None:
        nullable = field.nullable_for_version_q(version) or field.type_str in ("bitfield", "uuid")
        return [] if nullable else [path]
    if not (field.is_struct_array() or field.is_struct()):
        return []
    return [
        wrong
        for each in (value if field.is_array() else [value])
        for inner in field.untagged_fields(version)
        for wrong in _nulls(inner, getattr(each, inner.name), version, f"{path}.{inner.name}")
    ]


def codes_of(message: Message, version: int) -> set[int]:
    """All error codes of a response."""
    return _codes(message._struct, message, version)


def _codes(struct: Any, element: Any, version: int) -> set[int]:
    found: set[int] = set()
    for field in struct.untagged_fields(version):
        value = getattr(element, field.name)
        if field.name.endswith("error_code"):
            found.add(value)
        elif field.is_struct_array():
            found |= {code for each in value or () for code in _codes(field, each, version)}
    return found


def produce_request(
    batches: Mapping[str, bytes], *, partition: int = 0, acks: int = -1, transactional_id: str | None = None
) -> Message:
    """A record batch for this partition of each topic."""
    kind = ProduceRequest.TopicProduceData
    topics = [
        kind(name=name, partition_data=[kind.PartitionProduceData(index=partition, records=batch)])
        for name, batch in batches.items()
    ]
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=30_000, topic_data=topics)


def produced(
    connection: WireConnection, topic: str, batch: bytes, *, partition: int = 0, transactional_id: str | None = None
) -> Message:
    """Send a record batch. The response for its partition."""
    request = produce_request({topic: batch}, partition=partition, transactional_id=transactional_id)
    [answer] = connection.exchange(request, 8).responses[0].partition_responses
    return answer


def fetch_request(
    topic: str, offset: int = 0, *, max_bytes: int, max_wait_ms: int = 0, min_bytes: int = 0, leader_epoch: int = -1
) -> Message:
    kind = FetchRequest.FetchTopic
    partition = kind.FetchPartition(
        partition=0, current_leader_epoch=leader_epoch, fetch_offset=offset, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=max_bytes,
    )  # fmt: skip
    return FetchRequest(
        replica_id=-1, max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, isolation_level=0,
        session_id=0, session_epoch=-1, topics=[kind(topic=topic, partitions=[partition])], forgotten_topics_data=[],
        rack_id="",
    )  # fmt: skip


def commit_request(
    group: str, topic: str, offset: int = 0, *, partition: int = 0, metadata: str = "", **member: object
) -> Message:
    """`member` has fields of the request that name the member; by default it has none."""
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    commit = kind.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
    )
    no_member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return OffsetCommitRequest(
        group_id=group, **{**no_member, **member}, topics=[kind(name=topic, partitions=[commit])]
    )  # fmt: skip


def committed(connection: WireConnection, request: Message) -> int:
    """Send a commit. The error code of its partition."""
    return int(connection.exchange(request, 8).topics[0].partitions[0].error_code)


_TRANSACTIONAL = 0x10
_ATTRIBUTES, _PRODUCER = 21, 43
"""Where they are in a batch's header."""
_NOON_MS = 1_700_000_000_000
TRANSACTION_VERSIONS = {"AddPartitionsToTxn": 1, "AddOffsetsToTxn": 1, "TxnOffsetCommit": 3, "EndTxn": 1}
LOADING = 14


def transactional_batch(
    value: bytes, producer_id: int, epoch: int, sequence: int, *, flag: int = _TRANSACTIONAL
) -> bytes:
    """A batch of one record."""
    batch = bytearray(encode(stored([(_NOON_MS, b"k", value, [])]), base_offset=0, last_offset=0, leader_epoch=0))
    struct.pack_into(">h", batch, _ATTRIBUTES, flag)
    struct.pack_into(">qhi", batch, _PRODUCER, producer_id, epoch, sequence)
    return with_checksum(batch)


class WireProducer:
    """Requests of one transactional id, in versions before KIP-890. Each method returns the error code."""

    def __init__(self, connection: WireConnection, name: str | None = "id", timeout_ms: int = 60_000) -> None:
        self.name, self._sequence = name or "", 0
        found = connection.exchange(InitProducerIdRequest(name, timeout_ms), 1)
        assert found.error_code == 0
        self.producer_id, self.epoch = found.producer_id, found.producer_epoch

    @classmethod
    def resumed(cls, name: str, producer_id: int, epoch: int, sequence: int) -> "WireProducer":
        """A producer that has sent so many records already."""
        producer = cls.__new__(cls)
        producer.name, producer.producer_id, producer.epoch, producer._sequence = name, producer_id, epoch, sequence
        return producer

    @property
    def _who(self) -> tuple[str, int, int]:
        return self.name, self.producer_id, self.epoch

    def add_partitions(self, topic: str) -> Message:
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        name, producer_id, epoch = self._who
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[kind(name=topic, partitions=[0])],
        )

    def add_offsets(self, group: str) -> Message:
        return AddOffsetsToTxnRequest(*self._who, group)

    def commit_offset(self, topic: str, offset: int, group: str) -> Message:
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = kind.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        name, producer_id, epoch = self._who
        return TxnOffsetCommitRequest(
            transactional_id=name,
            group_id=group,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[kind(name=topic, partitions=[partition])],
        )

    def end(self, *, commit: bool) -> Message:
        return EndTxnRequest(*self._who, commit)

    def send(
        self,
        connection: WireConnection,
        topic: str,
        value: bytes,
        *,
        flag: int = _TRANSACTIONAL,
        transactional: bool = True,
    ) -> Message:
        """The response for the partition. `transactional`: whether the request names the transactional id."""
        batch = transactional_batch(value, self.producer_id, self.epoch, self._sequence, flag=flag)
        found = produced(connection, topic, batch, transactional_id=self.name if transactional else None)
        self._sequence += not found.error_code
        return found


def code_of(response: Message) -> int:
    """The first error code of a response."""
    for name in ("results_by_topic_v3_and_below", "topics"):
        for topic in getattr(response, name, None) or ():
            for partition in getattr(topic, "results_by_partition", None) or getattr(topic, "partitions", None) or ():
                code = getattr(partition, "partition_error_code", None)
                return int(partition.error_code if code is None else code)
    return int(response.error_code)


def call(connection: WireConnection, request: Message) -> int:
    """The error code. A connection that has no claim yet takes it at the first call."""
    version = TRANSACTION_VERSIONS[type(request).__name__.removesuffix("Request")]
    code = code_of(connection.exchange(request, version))
    return code_of(connection.exchange(request, version)) if code == LOADING else code
