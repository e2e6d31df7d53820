"""Parses resets of committed offsets, and commits exactly the resets that a user was shown."""

import re
from collections.abc import Mapping

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_legal
from spark_log.errors import IllegalArgumentError
from spark_log.groups.committed_offsets import Commit, of_their_topics, read_commits, refuse_unknown, write_commits
from spark_log.groups.consumer import rows
from spark_log.groups.group_names import check_group_id
from spark_log.groups.group_operations import (
    AtTime,
    Earliest,
    Exactly,
    Latest,
    OffsetReset,
    ResetTo,
    ShiftBy,
    positions_of,
    refuse_live,
)
from spark_log.groups.share.group_ids import make_consumer_group
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Attempt
from spark_log.text import parse_time_ms

EXPECTED = "earliest, latest, an offset, +N, -N, a time such as 2026-01-31T12:00:00Z, or @milliseconds"

_SHIFT = re.compile(r"[+-][0-9]{1,18}")
_OFFSET = re.compile(r"[0-9]{1,19}")
_MILLISECONDS = re.compile(r"@[0-9]{1,15}")


def parse_reset(text: str) -> ResetTo:
    """Parse the reset that a user names, in one of the forms of EXPECTED. A time without a zone is UTC. Raises
    ValueError for other texts.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() == "latest":
        return Latest()
    if _SHIFT.fullmatch(word):
        return ShiftBy(int(word))
    if _OFFSET.fullmatch(word):
        return Exactly(int(word))
    if _MILLISECONDS.fullmatch(word):
        return AtTime(int(word[1:]))
    try:
        return AtTime(parse_time_ms(word))
    except ValueError:
        raise ValueError(f"expected {EXPECTED}; got {text!r}") from None


def apply_resets(cluster: Cluster, group_id: str, resets: Mapping[TopicPartition, OffsetReset]) -> None:
    """Commit the new offsets, if the committed offsets are still the `current` ones, and the new ones are within
    [log start offset, high watermark].

    Raises InvalidGroupIdError, GroupIdNotFoundError if it is a share group, NonEmptyGroupError if the group has live
    members, UnknownTopicOrPartitionError, or
    IllegalArgumentError if these conditions do not hold any more; then nothing is committed.
    """
    check_group_id(group_id)
    found = positions_of(cluster, {partition for partition in resets if is_legal(partition.topic)})
    refuse_unknown(resets.keys() - found.keys())

    def apply(connection: sa.Connection, _attempt: Attempt) -> None:
        now = cluster.store.clock(connection)
        make_consumer_group(connection, group_id, rows.lock_or_make_group(connection, group_id, now))
        refuse_live(cluster.store, connection, group_id)
        before = read_commits(connection, group_id, resets.keys())
        for partition, reset in sorted(resets.items()):
            committed = before[partition].offset if partition in before else None
            if committed != reset.current:
                raise IllegalArgumentError(
                    f"{partition}: the committed offset is {committed} now, it was {reset.current}: look again"
                )
            limits = found[partition].positions
            if not limits.log_start_offset <= reset.new <= limits.high_watermark:
                raise IllegalArgumentError(
                    f"{partition}: offset {reset.new} is outside the log, which is now"
                    f" [{limits.log_start_offset}, {limits.high_watermark}): look again"
                )
        new = {p: Commit(r.new, "", found[p].leader_epoch, found[p].topic_id) for p, r in resets.items()}
        refuse_unknown(new.keys() - of_their_topics(connection, new).keys())
        write_commits(connection, now, group_id, new)

    cluster.store.transact(apply)
