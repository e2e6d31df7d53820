"""Handles requests that commit and fetch the offsets of groups."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import sqlalchemy as sa
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.config import ClusterSettings
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.gateway.access.refusals import refusal
from spark_log.gateway.access.rights import SHOWN_TOPICS, Resource, Whole, each_named, each_topic, on_group
from spark_log.gateway.api import Api, Client
from spark_log.gateway.groups.member_requests import identity
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, coordinator_code, error_code
from spark_log.gateway.protocol.stored_names import with_storable_names
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.committed_offsets import (
    Commit,
    check_commits_of_clients,
    commit_offsets,
    read_commits,
    write_commits,
)
from spark_log.groups.committers import check_committer, check_offsets_epoch
from spark_log.groups.group_names import check_group_id
from spark_log.groups.pending_offsets import unstable_partitions
from spark_log.ids import TopicPartition

_UNSTABLE_OFFSET_COMMIT = 88
_UNKNOWN_TOPIC_OR_PARTITION = error_code(UnknownTopicOrPartitionError())


async def offset_commit(services: Services, request: Message, client: Client) -> Message:
    """Commit offsets for a member in its generation, or for a group without members (generation -1)."""
    kind = OffsetCommitResponse.OffsetCommitResponseTopic
    code, codes = await services.call(_commit, services, request, client)
    partition = kind.OffsetCommitResponsePartition
    topics = await services.compute(commit_outcomes, request, kind, partition, code, codes)
    return OffsetCommitResponse(throttle_time_ms=0, topics=topics)


def commits_of(
    request: Message, settings: ClusterSettings
) -> tuple[dict[TopicPartition, Commit], dict[TopicPartition, int]]:
    """Return the valid commits of a request, and the error codes of its other partitions. As in Kafka, too large
    metadata of one partition do not stop the commits of the others.
    """
    requested = {
        TopicPartition(topic.name, each.partition_index): Commit(
            each.committed_offset, each.committed_metadata or "", each.committed_leader_epoch
        )
        for topic in request.topics
        for each in topic.partitions
    }
    commits, errors = check_commits_of_clients(requested, settings)
    return commits, {partition: error_code(error) for partition, error in errors.items()}


def with_unknown(
    codes: Mapping[TopicPartition, int], unknown: Collection[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Return the error codes of partitions together with those of partitions that do not exist."""
    return {**codes, **dict.fromkeys(unknown, _UNKNOWN_TOPIC_OR_PARTITION)}


def commit_outcomes(
    request: Message, of_topic: type, of_partition: type, code: int, codes: Mapping[TopicPartition, int]
) -> list[Message]:
    """Make the topics of a response on committed offsets from its classes `of_topic` and `of_partition`. Each partition
    has the error `code`, or if that is NONE, its own error of `codes`.
    """
    return [
        of_topic(
            name=topic.name,
            partitions=[
                of_partition(
                    partition_index=each.partition_index,
                    error_code=code or codes.get(TopicPartition(topic.name, each.partition_index), NONE),
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]


def _commit(services: Services, request: Message, client: Client) -> tuple[int, Mapping[TopicPartition, int]]:
    """Commit offsets. Return an error code for all partitions, and those of single partitions."""
    store = services.cluster.store
    me, generation = identity(request, client), request.generation_id_or_member_epoch
    try:
        check_group_id(request.group_id)
        commits, codes = commits_of(request, store.settings)
        if generation < 0 and not request.member_id:
            return NONE, with_unknown(codes, commit_offsets(store, request.group_id, commits))

        def body(connection: sa.Connection) -> list[TopicPartition]:
            now = check_committer(store, connection, me, generation, commits)
            return write_commits(connection, now, me.group_id, commits)

        return NONE, with_unknown(codes, store.transact(body))
    except SparkLogError as error:
        return coordinator_code(error), {}


async def offset_fetch(services: Services, request: Message, _client: Client) -> Message:
    """Return the committed offsets of one group, or from v8 on of several groups. A missing offset is -1."""
    stable = bool(request.require_stable)
    if request.version < 8:
        kind = OffsetFetchResponse.OffsetFetchResponseTopic

        def one(group_id: str) -> Message:
            code, topics = _fetched(services, kind, kind.OffsetFetchResponsePartition, group_id, request.topics, stable)
            if code != NONE and request.version < 2:  # without topics, v1 would mean "no offset is committed"
                return refusal(request, code)
            return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=code)

        [response] = await services.in_portions(one, [request.group_id])
        return response
    group_kind = OffsetFetchResponse.OffsetFetchResponseGroup
    topic_kind = group_kind.OffsetFetchResponseTopics
    groups = {each.group_id: each for each in request.groups}

    def group(group_id: str) -> Message:
        asked = groups[group_id]
        code, topics = _fetched(
            services, topic_kind, topic_kind.OffsetFetchResponsePartitions, group_id, asked.topics, stable,
            asked.member_id, asked.member_epoch,
        )  # fmt: skip
        return group_kind(group_id=group_id, topics=topics, error_code=code)

    return OffsetFetchResponse(throttle_time_ms=0, groups=await services.in_portions(group, groups))


def _fetched(
    services: Services, of_topic: type, of_partition: type, group_id: str, topics: Collection[Message] | None,
    stable: bool, member_id: str | None = None, epoch: int = -1,
) -> tuple[int, list[Message]]:  # fmt: skip
    """Return the error code of `_committed`, and its offsets as topics of the response."""
    code, offsets, unstable = _committed(services, group_id, topics, stable, member_id, epoch)
    return code, [
        of_topic(
            name=name,
            partitions=[of_partition(**_fields(each, (name, each[0]) in unstable)) for each in commits.items()],
        )
        for name, commits in offsets.items()
    ]


def _committed(
    services: Services, group_id: str, topics: Collection[Message] | None, stable: bool,
    member_id: str | None = None, epoch: int = -1,
) -> tuple[int, dict[str, dict[int, Commit | None]], Collection[TopicPartition]]:  # fmt: skip
    """Return an error code, and the offsets of the requested partitions, or of all with a commit if `topics` is None.
    With `stable` (KIP-447), also return the partitions whose offset may change when an open transaction ends.

    A member of the consumer protocol gives its id and epoch.
    """
    store = services.cluster.store

    def read(connection: sa.Connection) -> tuple[Mapping[TopicPartition, Commit], Collection[TopicPartition]]:
        if member_id is not None:
            check_offsets_epoch(connection, group_id, member_id, epoch, store.clock(connection))
        unstable = unstable_partitions(connection, group_id) if stable else ()
        return read_commits(connection, group_id), unstable

    try:
        check_group_id(group_id)
        commits, unstable = store.read(read)
    except SparkLogError as error:
        return coordinator_code(error), {}, ()
    offsets: dict[str, dict[int, Commit | None]] = {}
    if topics is None:
        for (name, number), commit in sorted(commits.items()):
            offsets.setdefault(name, {})[number] = commit
        return NONE, offsets, unstable
    for topic in topics:
        offsets[topic.name] = {
            number: commits.get(TopicPartition(topic.name, number)) for number in topic.partition_indexes
        }
    return NONE, offsets, unstable


def _fields(entry: tuple[int, Commit | None], unstable: bool) -> Mapping[str, object]:
    number, commit = entry
    known = Commit(-1, "", -1) if commit is None or unstable else commit
    return {
        "partition_index": number,
        "committed_offset": known.offset,
        "committed_leader_epoch": known.leader_epoch,
        "metadata": known.metadata,
        "error_code": _UNSTABLE_OFFSET_COMMIT if unstable else NONE,
    }


def _group_before_v8(request: Message) -> Resource | None:
    return (ResourceType.GROUP, request.group_id) if request.version < 8 else None


APIS = (
    Api(
        OffsetCommitRequest,
        with_storable_names(OffsetCommitRequest, offset_commit),
        advertised=(2, 9),
        rights=(on_group(Operation.READ), each_topic(Operation.READ)),
        lane=Lane.GROUP,
    ),
    Api(
        OffsetFetchRequest,
        offset_fetch,
        advertised=(1, 9),
        rights=(
            Whole(Operation.DESCRIBE, _group_before_v8),
            each_named(Operation.DESCRIBE, ResourceType.GROUP, "groups", "groups", "group_id"),
            each_topic(Operation.DESCRIBE),
            each_topic(Operation.DESCRIBE, within="groups"),
            SHOWN_TOPICS,
            replace(SHOWN_TOPICS, within="groups"),
        ),
        lane=Lane.GROUP,
    ),
)
