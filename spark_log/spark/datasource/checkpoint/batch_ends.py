"""Reads the end offsets of a micro-batch, which a sink commits to its group, from Spark's offset log. Driver."""

import json
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.errors import InvalidOptionError, redact
from spark_log.groups.committed_offsets import Commit
from spark_log.ids import TopicPartition
from spark_log.spark.datasource.checkpoint.offset_log import ends_of_batch

_OF_HADOOP = re.compile("^s3[an]://")
"""Hadoop's URI schemes of S3. pyarrow has only `s3://`."""


@dataclass(frozen=True)
class BatchEnds:
    """The end offsets of a batch, to be committed to a group. `entry` is the batch's entry in the offset log."""

    group_id: str
    entry: str

    def commits(self, cluster: Cluster) -> dict[TopicPartition, Commit]:
        """Return the commits of the group, for the topics that exist. Raises InvalidOptionError if the query does not
        read from this cluster.
        """
        topics = cluster.store.read(find_topics)
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        ends = ends_of_batch(self.entry, cluster.cluster_id, topic_ids, self.group_id)
        return {
            partition: Commit(end.offset, "", end.leader_epoch, topic_ids[partition.topic])
            for partition, end in ends.items()
        }


def read_entry(checkpoint: str, query_id: str | None, batch_id: int) -> str:
    """Read the batch's entry in the offset log without Spark, because the processes that commit for a sink have no JVM.

    Raises CheckpointUnreadable if the entry cannot be read, or the checkpoint belongs to another query. Spark resolves
    a path without a scheme in its default file system; this function resolves it in the local one.
    """
    try:
        uri = checkpoint if ":" in checkpoint.split("/")[0] else Path(checkpoint).absolute().as_uri()
        files, root = fs.FileSystem.from_uri(_OF_HADOOP.sub("s3://", uri))
        entry = _text(files, posixpath.join(root, "offsets", str(batch_id)))
        its_query = json.loads(_text(files, posixpath.join(root, "metadata")))["id"]
    except (OSError, ValueError, LookupError, TypeError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise CheckpointUnreadable(str(error)) from error
    if its_query != query_id:
        raise CheckpointUnreadable(f"it is that of query {its_query}, and this is {query_id}")
    return entry


class CheckpointUnreadable(Exception):
    """The offset log of a query cannot be read here."""


def _text(files: fs.FileSystem, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return bytes(stream.read()).decode()


def unreadable_error(group_id: str, checkpoint: str, why: Exception) -> InvalidOptionError:
    """Return the error of a sink with `group.id` that cannot read the end offsets of a batch."""
    return InvalidOptionError(
        f"group.id {group_id!r}: the checkpoint cannot be read at {redact(checkpoint)!r}: {redact(str(why))}."
        " Give checkpointLocation as a URI that pyarrow opens, or use spark_log.spark.streams.batch_transaction in"
        " foreachBatch"
    )
