"""Requests that many tests send to a gateway, about one partition of a topic."""

from collections.abc import Mapping

from kafka.protocol.consumer import FetchRequest, OffsetCommitRequest
from kafka.protocol.producer.produce import ProduceRequest

from spark_log.gateway.protocol.wire import Message
from tests.support.gateway_wire import WireConnection


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


def commit_request(group: str, topic: str, offset: int = 0, *, metadata: str = "", **member: object) -> Message:
    """`member` has fields of the request that name the member; by default it has none."""
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = kind.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
    )
    no_member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    return OffsetCommitRequest(
        group_id=group, **{**no_member, **member}, topics=[kind(name=topic, partitions=[partition])]
    )  # fmt: skip


def committed(connection: WireConnection, request: Message) -> int:
    """Send a commit. The error code of its partition."""
    return int(connection.exchange(request, 8).topics[0].partitions[0].error_code)
