"""Acknowledgements of a share group that a producer's transaction commits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_log.groups.share.rules import Acknowledgement
from spark_log.log.partitions.partition_rows import Key


@dataclass(frozen=True)
class ShareGroupMetadata:
    """The identity of a member of a share group."""

    group_id: str
    member_id: str


@dataclass(frozen=True)
class ShareAcknowledgements:
    """Acknowledgements that a share consumer has given up, so that a producer's transaction commits them."""

    group_id: str
    by_partition: Mapping[Key, Sequence[Acknowledgement]]
