"""Handles descriptions, elections and reassignments of partitions, and requests for the ends of leader epochs."""

import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_internal, is_legal
from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import ElectionNotNeededError, InvalidTopicError, SparkLogError, UnknownTopicOrPartitionError
from spark_log.gateway.access.refusals import refusal
from spark_log.gateway.access.rights import SHOWN_TOPICS, each_topic, on_cluster
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.live_gateways import LiveGateway, choose_gateway, partition_fields, read_live_gateways
from spark_log.gateway.protocol.error_codes import NONE, client_message, error_code, outcome_of
from spark_log.gateway.protocol.request_limits import TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import PARTITION_BYTES, TOPIC_BYTES, Needed, Services
from spark_log.gateway.topic_stores import CHANGE_S
from spark_log.gateway.topics.metadata_requests import add_epochs_of_data_stores, leader_epochs
from spark_log.ids import TopicPartition
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.partitions.truncations import read_truncations
from spark_log.log.segments.plan import PartitionSnapshot, find_positions
from spark_log.replication.controller.reassignment_rows import ReassignmentStatus, list_reassignments
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.controller.requested_elections import elect

_INVALID_TOPIC = error_code(InvalidTopicError())
_UNKNOWN_TOPIC_OR_PARTITION = error_code(UnknownTopicOrPartitionError())
_ELECTION_NOT_NEEDED = error_code(ElectionNotNeededError())
_FENCED_LEADER_EPOCH, _UNKNOWN_LEADER_EPOCH = 74, 75
_NO_ID = uuid.UUID(int=0)
_PARTITIONS_MAX = 2000
"""The limit of partitions in one response (max.request.partition.size.limit)."""


class Page(NamedTuple):
    """Partitions [first, last) of each topic, and the topic and partition with which the next page begins, if any."""

    topics: Sequence[tuple[str, int, int]]
    next: tuple[str, int] | None


def page_of(counts: Mapping[str, int], begin: tuple[str, int] | None, limit: int) -> Page:
    """Return the page of at most max(1, `limit`) partitions from `begin` on, sorted by topic name.

    `counts` are the numbers of partitions. A topic with 0 partitions does not exist; it is on the page, too.
    """
    topics: list[tuple[str, int, int]] = []
    left = max(1, limit)
    for name in sorted(counts):
        if begin is not None and name < begin[0]:
            continue
        first = max(0, begin[1]) if begin is not None and name == begin[0] else 0
        if left == 0:
            return Page(topics, (name, first))
        last = min(counts[name], first + left)
        topics.append((name, first, last))
        left -= max(0, last - first)
        if last < counts[name]:
            return Page(topics, (name, last))
    return Page(topics, None)


class _Facts(NamedTuple):
    """Facts of one moment. `epochs` has leader epochs by topic id and partition, of the topics on the page, None if the
    partition's store does not answer.
    """

    gateways: Sequence[LiveGateway]
    topics: Mapping[str, Topic]
    page: Page
    epochs: dict[int, dict[int, int | None]]


async def describe_topic_partitions(services: Services, request: Message, client: Client) -> Message:
    """Return a page of partitions. As in Metadata, a gateway is the leader and only replica of a partition."""
    return await services.call_in_memory(partial(_describe_topic_partitions, services, request, client))


def _describe_topic_partitions(services: Services, request: Message, client: Client, held: int) -> Message | Needed:
    store = services.cluster.store
    names = {each.name for each in request.topics} or None
    may_describe = partial(client.access.allows, Operation.DESCRIBE, ResourceType.TOPIC)
    begin = None if request.cursor is None else (request.cursor.topic_name, request.cursor.partition_index)

    def read(connection: sa.Connection) -> _Facts | Needed:
        topics = find_topics(connection, names)
        if names is None:  # so that no page ends at a topic that the client may not describe
            topics = {name: topic for name, topic in topics.items() if may_describe(name)}
        counts = {**dict.fromkeys(names or (), 0), **{name: topic.partition_count for name, topic in topics.items()}}
        page = page_of(counts, begin, min(request.response_partition_limit, _PARTITIONS_MAX))
        ids = [topics[name].topic_id for name, _, _ in page.topics if name in topics]
        partitions = sum(topics[name].partition_count for name, _, _ in page.topics if name in topics)
        size = partitions * PARTITION_BYTES + len(page.topics) * TOPIC_BYTES
        if size > held:
            return Needed(size)
        return _Facts(read_live_gateways(store, connection), topics, page, leader_epochs(connection, ids))

    facts = store.read(read)
    if isinstance(facts, Needed):
        return facts
    gateways, topics, page, epochs = facts
    add_epochs_of_data_stores(services, [topics[name] for name, _, _ in page.topics if name in topics], epochs)
    zone = client.zone or services.settings.zone
    kind = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    described = []
    for name, first, last in page.topics:
        topic = topics.get(name)
        missing = _UNKNOWN_TOPIC_OR_PARTITION if is_legal(name) else _INVALID_TOPIC
        partitions = []
        for number in range(first, last) if topic is not None else ():
            assert topic is not None
            epoch = epochs[topic.topic_id][number]
            leader = None if epoch is None else choose_gateway(gateways, zone, topic.topic_id, number)
            fields = partition_fields(leader, number, epoch)
            partitions.append(
                kind.DescribeTopicPartitionsResponsePartition(**fields, eligible_leader_replicas=[], last_known_elr=[])
            )
        described.append(
            kind(
                error_code=missing if topic is None else NONE,
                name=name,
                topic_id=_NO_ID if topic is None else uuid.UUID(hex=topic.uuid),
                is_internal=is_internal(name),
                partitions=partitions,
                topic_authorized_operations=client.access.operation_bits(ResourceType.TOPIC, name),
            )
        )
    cursor = None
    if page.next is not None:
        cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=page.next[0], partition_index=page.next[1])
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=described, next_cursor=cursor)


def elect_leaders(services: Services, request: Message, _client: Client) -> Message:
    """Elect leaders among the brokers that hold replicas. Clients see these brokers only here and in reassignments."""
    everything = request.topic_partitions is None
    unclean = request.version > 0 and request.election_type == ElectionType.UNCLEAN

    def elections() -> dict[TopicPartition, SparkLogError | None]:
        if everything:
            topics = services.cluster.store.read(find_topics).values()
            wanted = [TopicPartition(topic.name, n) for topic in topics for n in range(topic.partition_count)]
        else:
            wanted = [TopicPartition(each.topic, n) for each in request.topic_partitions for n in each.partitions]
        return services.stores.of_partitions(wanted, partial(elect, unclean=unclean), CHANGE_S)

    outcome = outcome_of(elections)
    if outcome.code:
        return refusal(request, outcome.code)
    kind = ElectLeadersResponse.ReplicaElectionResult
    results: dict[str, list[Message]] = {}
    for tp, error in (outcome.result or {}).items():
        code = NONE if error is None else error_code(error)
        if everything and code == _ELECTION_NOT_NEEDED:
            continue
        message = None if error is None else client_message(error)
        one = kind.PartitionResult(partition_id=tp.partition, error_code=code, error_message=message)
        results.setdefault(tp.topic, []).append(one)
    return ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=NONE,
        replica_election_results=[kind(topic=name, partition_result=found) for name, found in results.items()],
    )


def alter_reassignments(services: Services, request: Message, _client: Client) -> Message:
    """Begin to move replicas to other brokers of the cluster, or cancel the move, for each partition on its own."""
    kind = AlterPartitionReassignmentsResponse.ReassignableTopicResponse

    def begun(tp: TopicPartition, replicas: Sequence[int] | None) -> Message:
        same = request.version > 0 and not request.allow_replication_factor_change
        begin = partial(begin_reassignments, brokers_by_partition={tp: replicas}, same_factor=same)
        outcome = outcome_of(lambda: services.stores.call(services.stores.of(tp.topic), begin, CHANGE_S))
        return kind.ReassignablePartitionResponse(
            partition_index=tp.partition, error_code=outcome.code, error_message=outcome.message
        )

    responses = [
        kind(
            name=topic.name,
            partitions=[
                begun(TopicPartition(topic.name, each.partition_index), each.replicas) for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        allow_replication_factor_change=request.version == 0 or request.allow_replication_factor_change,
        error_code=NONE,
        error_message=None,
        responses=responses,
    )


def list_running_reassignments(services: Services, request: Message, _client: Client) -> Message:
    requested = None
    if request.topics is not None:
        requested = {TopicPartition(each.name, number) for each in request.topics for number in each.partition_indexes}

    outcome = outcome_of(_running, services, requested)
    kind = ListPartitionReassignmentsResponse.OngoingTopicReassignment
    by_topic: dict[str, list[Message]] = {}
    for tp, status in (outcome.result or {}).items():
        if requested is None or tp in requested:
            by_topic.setdefault(tp.topic, []).append(_ongoing(kind, tp.partition, status))
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0,
        error_code=outcome.code,
        error_message=outcome.message,
        topics=[kind(name=name, partitions=partitions) for name, partitions in by_topic.items()],
    )


def _running(
    services: Services, requested: Collection[TopicPartition] | None
) -> dict[TopicPartition, ReassignmentStatus]:
    """Return the running reassignments of the stores of the requested topics, or of all stores. Raises the error of a
    store, because a tool takes a missing reassignment for one that has ended.
    """
    stores = services.stores
    running: dict[TopicPartition, ReassignmentStatus] = {}
    ids = stores.ids() if requested is None else {stores.of(name) for name in {tp.topic for tp in requested}}
    for outcome in stores.in_each(
        dict.fromkeys(ids), lambda cluster, _: list_reassignments(cluster.store), CHANGE_S
    ).values():
        if isinstance(outcome, SparkLogError):
            raise outcome
        running |= outcome
    return running


def _ongoing(kind: Message, number: int, status: ReassignmentStatus) -> Message:
    return kind.OngoingPartitionReassignment(
        partition_index=number,
        replicas=list(status.replicas),
        adding_replicas=list(status.adding),
        removing_replicas=list(status.removing),
    )


def offset_for_leader_epoch(services: Services, request: Message, _client: Client) -> Message:
    """Return the offset at which the records of a leader epoch end. A reader beyond it has read records that an
    election removed.
    """
    wanted = {TopicPartition(topic.topic, each.partition) for topic in request.topics for each in topic.partitions}
    legal = [tp for tp in wanted if is_legal(tp.topic)]

    here = services.stores.of_partitions(legal, _ends_of, CHANGE_S)
    kind = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult

    def end_of(name: str, asked: Message) -> Message:
        code, epoch, offset = _UNKNOWN_TOPIC_OR_PARTITION, -1, -1
        ends = here.get(TopicPartition(name, asked.partition))
        if isinstance(ends, SparkLogError):
            code = error_code(ends)
        elif ends is not None:
            positions, truncations = ends
            code, epoch, offset = epoch_end(
                asked.leader_epoch, asked.current_leader_epoch, positions.leader_epoch,
                positions.positions.high_watermark, truncations,
            )  # fmt: skip
        return kind.EpochEndOffset(error_code=code, partition=asked.partition, leader_epoch=epoch, end_offset=offset)

    topics = [
        kind(topic=topic.topic, partitions=[end_of(topic.topic, asked) for asked in topic.partitions])
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


def _ends_of(
    view: Cluster, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[PartitionSnapshot, list[Truncation]]]:
    def read(connection: sa.Connection) -> dict[TopicPartition, tuple[PartitionSnapshot, list[Truncation]]]:
        positions = find_positions(connection, partitions)
        truncations = read_truncations(connection, [(each.topic_id, tp.partition) for tp, each in positions.items()])
        return {tp: (each, truncations.get((each.topic_id, tp.partition), [])) for tp, each in positions.items()}

    return view.store.read(read)


def epoch_end(
    epoch: int, known_epoch: int, leader_epoch: int, high_watermark: int, truncations: Sequence[Truncation]
) -> tuple[int, int, int]:
    """Return an error code, `epoch` and its end offset. `known_epoch` is the leader epoch that the client knows, or -1.

    The end offset is the lowest offset from which a later election removed records, at most the high watermark. Epoch
    and offset are -1 for an epoch that has not begun.
    """
    if 0 <= known_epoch < leader_epoch:
        return _FENCED_LEADER_EPOCH, -1, -1
    if known_epoch > leader_epoch:
        return _UNKNOWN_LEADER_EPOCH, -1, -1
    if not 0 <= epoch <= leader_epoch:
        return NONE, -1, -1
    later = [each.start_offset for each in truncations if each.leader_epoch > epoch]
    return NONE, epoch, min([high_watermark, *later])


APIS = (
    Api(DescribeTopicPartitionsRequest, describe_topic_partitions, advertised=(0, 0), lane=Lane.METADATA,
        rights=(each_topic(Operation.DESCRIBE, empty_means_all=True), SHOWN_TOPICS)),
    Api(ElectLeadersRequest, blocking(elect_leaders), advertised=(0, 2), limits=TRANSACTIONS,
        rights=(on_cluster(Operation.ALTER),)),
    Api(AlterPartitionReassignmentsRequest, blocking(alter_reassignments), advertised=(0, 1), limits=TRANSACTIONS,
        rights=(on_cluster(Operation.ALTER),)),
    Api(ListPartitionReassignmentsRequest, blocking(list_running_reassignments), advertised=(0, 0),
        rights=(on_cluster(Operation.DESCRIBE),)),
    Api(OffsetForLeaderEpochRequest, blocking(offset_for_leader_epoch), advertised=(2, 4), lane=Lane.METADATA,
        rights=(each_topic(Operation.DESCRIBE, name="topic"),)),
)  # fmt: skip
