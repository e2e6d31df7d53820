"""Decides to which topics a Spark batch must be appended, so that each topic gets it once. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spark_log.errors import CheckpointMismatchError

ENTRY = "o"
"""The prefix of fingerprints of entries. Fingerprints of rows are hex digits."""
TRANSACTED = "*"
"""The target of a batch that transactions of foreachBatch write. No topic has this name."""


@dataclass(frozen=True)
class SparkBatch:
    """A write of Spark that must be appended exactly once.

    A batch of a stream is `strict`: an older version, or another batch with the same version, means that the checkpoint
    was copied or rolled back. A write with txnAppId/txnVersion is not strict: as in Delta, a version that is not newer
    is skipped.

    `fingerprint` is the fingerprint of the rows. `entry` is the fingerprint of the batch's entry in Spark's offset log
    (ENTRY and hex digits), or None if the entry cannot be read. When Spark repeats a batch, the entry is the same, but
    the rows may differ: the source was compacted meanwhile, or the rows depend on the order of the tasks.
    """

    application: str
    target: str
    version: int
    record_count: int
    fingerprint: str
    strict: bool
    entry: str | None = None

    @property
    def stored(self) -> str:
        """The fingerprint to remember."""
        return self.entry or self.fingerprint

    def repeats(self, last: "SparkBatch") -> bool:
        """Whether this batch is `last`, which has the same version and its stored fingerprint."""
        if last.fingerprint.startswith(ENTRY):
            return self.entry in (None, last.fingerprint)
        return (self.record_count, self.fingerprint) == (last.record_count, last.fingerprint)


def check_other_outputs(new: SparkBatch, others: Iterable[SparkBatch]) -> None:
    """Raise CheckpointMismatchError if a query has written this strict batch, or a later one, to other outputs.

    `others` are the last batches that the application wrote to other targets: to another topic, or with the sink
    instead of transactions of foreachBatch, or the reverse.
    """
    newest = max(others, key=lambda batch: batch.version, default=None)
    if new.strict and newest is not None and newest.version >= new.version:
        rolled_back = ", or its checkpoint was rolled back or copied" if newest.version > new.version else ""
        where = {"": "", TRANSACTED: " (transactions of foreachBatch)"}.get(
            newest.target, f" (topic {newest.target!r})"
        )
        raise CheckpointMismatchError(
            f"{new.application}: the outputs of the query have changed{rolled_back}, and batch {newest.version} was"
            f" written to the former outputs{where}: batch {new.version} would be written twice."
            " Run the query with its former outputs until it has ended this batch, and change them then; or start with"
            " a new checkpoint location"
        )


def topics_without(new: SparkBatch, last: Mapping[int, SparkBatch], topic_ids: Collection[int]) -> set[int]:
    """Return the topics to which the Spark batch `new` has not been appended.

    `last` has the last batch of the application in each topic of the store. A topic that was created or moved here
    later has no batch, or an older one. Raises CheckpointMismatchError if a strict batch is older than the newest one,
    or has other rows with the same version.
    """
    if new.strict and last:
        newest = max(last.values(), key=lambda batch: batch.version)
        if new.version < newest.version:
            raise CheckpointMismatchError(
                f"{new.application}: batch {new.version} comes after batch {newest.version} was written. The checkpoint"
                " was rolled back or copied; start with a new checkpoint location"
            )
        if new.version == newest.version and not new.repeats(newest):
            raise CheckpointMismatchError(
                f"{new.application}: batch {new.version} was written with {newest.record_count} rows and comes with"
                f" other rows now ({new.record_count}). The checkpoint was copied, or the query is not deterministic;"
                " start with a new checkpoint location"
            )
    return {topic_id for topic_id in topic_ids if topic_id not in last or last[topic_id].version < new.version}
