"""A transactional producer of a Kafka client, one request at a time: the test chooses the gateway of each."""

import struct

from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from spark_log.gateway.protocol.wire import Message
from spark_log.log.records.kafka_batch.encode import encode
from tests.support.gateway_wire import WireConnection
from tests.support.kafka_batches import stored, with_checksum
from tests.support.wire_requests import produced

_TRANSACTIONAL = 0x10
_ATTRIBUTES, _PRODUCER = 21, 43
"""Where they are in a batch's header."""
NOON_MS = 1_700_000_000_000
VERSIONS = {"AddPartitionsToTxn": 1, "AddOffsetsToTxn": 1, "TxnOffsetCommit": 3, "EndTxn": 1}
LOADING = 14


def transactional_batch(
    value: bytes, producer_id: int, epoch: int, sequence: int, *, flag: int = _TRANSACTIONAL
) -> bytes:
    """A batch of one record."""
    batch = bytearray(encode(stored([(NOON_MS, b"k", value, [])]), base_offset=0, last_offset=0, leader_epoch=0))
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
    version = VERSIONS[type(request).__name__.removesuffix("Request")]
    code = code_of(connection.exchange(request, version))
    return code_of(connection.exchange(request, version)) if code == LOADING else code
