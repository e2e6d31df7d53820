"""The pure rule of Spark's writes: a batch is appended once to each topic."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spark_log.errors import CheckpointMismatchError

ENTRY = "o"
"""Begins the fingerprints of entries. Those of rows are hex digits."""
TRANSACTED = "*"
"""The target of a batch that transactions of foreachBatch write. No topic has this name."""


@dataclass(frozen=True)
class SparkBatch:
    """A write of Spark that must be appended exactly once.

    A batch of a stream is `strict`: an older version, or another batch with the same version, mean a copied or
    rolled-back checkpoint. A write with txnAppId/txnVersion is not: as in Delta, a version that is not newer is
    skipped.

    `fingerprint` is that of the rows. `entry` is that of the batch's entry in Spark's offset log (ENTRY and hex
    digits), or None if it cannot be read. The entry is the same when Spark repeats a batch, also if its rows are not:
    its source was compacted meanwhile, or they depend on the order of the tasks.
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
        """Whether this is the batch of the same version that was written before. `last` has its stored fingerprint."""
        if last.fingerprint.startswith(ENTRY):
            return self.entry in (None, last.fingerprint)
        return (self.record_count, self.fingerprint) == (last.record_count, last.fingerprint)


def check_other_outputs(new: SparkBatch, others: Iterable[SparkBatch]) -> None:
    """Raise CheckpointMismatchError if a query has written this strict batch, or a later one, to other outputs.

    `others` are the last batches that the application wrote to other targets: by the sink and not in transactions of
    foreachBatch, or the reverse, or to another topic.
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
    """Return those of these topics to which a Spark batch has not been appended.

    `last` has the last batch of the application in each topic of the store. A topic that was created or moved here
    later has none, or an older one. Raises CheckpointMismatchError if a strict batch is older than the newest one, or
    has other rows with the same version.
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
