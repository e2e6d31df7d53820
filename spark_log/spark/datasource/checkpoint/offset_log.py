"""Parses Spark's offset log, which has the end of each micro-batch in each source. Spark writes
`<checkpoint>/offsets/<batch id>` before it runs the batch, and reads the same file when it repeats the batch.

    v1                                       the version of the format
    {"batchWatermarkMs":0,…}                 other data of the batch
    {"t":{"0":5},"@cluster":"…",…}           one line per source; `-` for a source without an offset
    a:{"t":{"0":5},"@cluster":"…",…}         in v2 with the name of the source
"""

import hashlib
import json
from collections.abc import Mapping
from typing import NamedTuple

from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicId, TopicPartition
from spark_log.spark.datasource.checkpoint.stream_offsets import StreamOffset

_VERSIONS = ("v1", "v2")


class End(NamedTuple):
    """The next offset, and the leader epoch when it was decided. The epoch is -1 in checkpoints of older versions."""

    offset: int
    leader_epoch: int


def ends_of_batch(
    entry: str, cluster_id: str, topic_ids: Mapping[str, TopicId], group_id: str
) -> dict[TopicPartition, End]:
    """Return the batch's end in each partition that a source of this cluster reads, or the lowest end if several
    sources read the partition.

    Leaves out topics that were deleted or recreated since: `topic_ids` are the ids of the existing topics. Raises
    InvalidOptionError if no source of the query reads from this cluster.
    """
    version, _, *sources = entry.splitlines()
    if version not in _VERSIONS:
        raise InvalidOptionError(f"checkpoint: offset log of version {version!r}, expected one of {_VERSIONS}")
    our_sources = [ours for line in sources if (ours := _ours(line, cluster_id)) is not None]
    if not our_sources:
        raise InvalidOptionError(
            f"group.id {group_id!r}: no spark_log source of the query reads from this cluster (or its checkpoint was"
            " begun by a version of spark-log that did not record the cluster)"
        )
    ends: dict[TopicPartition, End] = {}
    for positions in (ours.positions for ours in our_sources):
        for partition, offset in positions.offsets.items():
            if positions.topic_ids.get(partition.topic) == topic_ids.get(partition.topic, -1):
                end = End(offset, positions.epochs.get(partition, -1))
                ends[partition] = min(end, ends.get(partition, end))
    return ends


def fingerprint_of_batch(entry: str) -> str:
    """Return 16 hex digits. A batch that Spark repeats has the same digits, and one that it plans again has others."""
    return hashlib.blake2b(entry.encode(), digest_size=8).hexdigest()


def _ours(line: str, cluster_id: str) -> StreamOffset | None:
    """Return the offset if the line is that of a spark_log source of this cluster, otherwise None."""
    if "{" not in line:
        return None
    try:
        shown = json.loads(line[line.index("{") :])
    except ValueError:
        return None  # the offset of another source
    if not isinstance(shown, dict) or "@cluster" not in shown:
        return None
    offset = StreamOffset.from_json(shown)
    return offset if offset.cluster_id == cluster_id else None
