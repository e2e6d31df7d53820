"""The pure rule of Spark's writes: a batch with a version that is not newer is not appended again."""

from dataclasses import dataclass
from typing import Literal

from spark_log.errors import CheckpointMismatchError


@dataclass(frozen=True)
class SparkBatch:
    """A write of Spark that must be appended exactly once.

    A batch of a stream is `strict`: an older version, or other rows with the same version, mean a copied or rolled-back
    checkpoint. A write with txnAppId/txnVersion is not: as in Delta, a version that is not newer is skipped.
    """

    application: str
    target: str
    version: int
    record_count: int
    fingerprint: str
    strict: bool


def decide_spark_batch(
    last: SparkBatch | None, new: SparkBatch, *, recreated: bool = False
) -> Literal["append", "replay"]:
    """Decide whether a Spark batch is new or has been appended before.

    `recreated` is True if every topic that `new` writes to was created after `last` was appended.
    Raises CheckpointMismatchError if a strict batch is older than `last`, or has other rows with the same version.
    """
    if last is None or new.version > last.version:
        return "append"
    if recreated and (new.target or not new.strict):
        return "append"
    if not new.strict:
        return "replay"
    if new.version < last.version:
        raise CheckpointMismatchError(
            f"{new.application}: batch {new.version} comes after batch {last.version} was written. The checkpoint was"
            " rolled back or copied; start with a new checkpoint location"
        )
    if (new.record_count, new.fingerprint) != (last.record_count, last.fingerprint):
        raise CheckpointMismatchError(
            f"{new.application}: batch {new.version} was written with {last.record_count} rows and comes with other"
            f" rows now ({new.record_count}). The checkpoint was copied, or the query is not deterministic;"
            " start with a new checkpoint location"
        )
    return "append" if recreated else "replay"
