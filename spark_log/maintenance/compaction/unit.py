"""Compacts a *unit*: segments of a partition that one file is to replace. It needs log dirs, not the metadata store."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.cluster.log_dir import LogDir, LogDirInfo
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import LogDirs
from spark_log.maintenance.compaction.rules import has_expired, is_last
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting
from spark_log.maintenance.rewrite.segment_rewrite import Written, write

Offsets = npt.NDArray[np.int64]

_VALUES = read_schema(columns=["value"])


@dataclass(frozen=True)
class Unit:
    """The work of a pass on a run of segments; sent to executors. The rewriting's slices begin at the log start
    offset.
    """

    rewriting: Rewriting
    horizon: int
    """Tombstones below this offset may be dropped."""
    tombstones_expired: bool
    """Whether there may be tombstones below the horizon: then the unit is read even if no record has a later one."""
    dirty: bool
    """Whether no pass has covered all of the unit, so that its number of tombstones is unknown."""

    @property
    def record_count(self) -> int:
        return sum(each.record_count for each in self.rewriting.inputs)


@dataclass(frozen=True)
class Compacted:
    """The result for a unit: the file to swap in, or None if no record is dropped."""

    written: Written | None
    tombstones_left: int
    """Number of tombstones that were read and stay."""
    tombstones_dropped: int = 0


def compact_unit(
    unit: Unit, last_offsets: Offsets, name: str, log_dirs: LogDirs, open_: Callable[[LogDirInfo], LogDir]
) -> Compacted:
    """Write the unit's file under the unused name `name` if a record of the unit is dropped.

    `last_offsets` has, in ascending order, the offsets of its records that are the last of their keys. Raises the
    errors of `segment_rewrite.write`.
    """
    if len(last_offsets) == unit.record_count and not unit.tombstones_expired:
        return Compacted(None, _tombstones(unit, log_dirs) if unit.dirty else 0)
    left = dropped = 0

    def keep(offsets: pa.Int64Array, records: pa.Table) -> pa.BooleanArray:
        nonlocal left, dropped
        at = offsets.to_numpy()
        tombstones = records.column("value").is_null().to_numpy()
        last, expired = is_last(at, last_offsets), has_expired(at, tombstones, unit.horizon)
        left += int((tombstones & last & ~expired).sum())
        dropped += int((last & expired).sum())
        return pa.array(last & ~expired)

    written = write(unit.rewriting, name, log_dirs, open_, keep)
    return Compacted(written, left, dropped)


def _tombstones(unit: Unit, log_dirs: LogDirs) -> int:
    return sum(batch.column("value").null_count for batch in Fetcher(log_dirs).read(unit.rewriting.slices, _VALUES))
