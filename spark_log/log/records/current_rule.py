"""Says which record of a key is its current one, and which records delete their key. Pure.

    table.current.order   the current record of a key
    offset                the last one
    sequence              the event with the largest sequence, and of several of them the last one; an event without a
                          sequence replaces all earlier ones

An event of Debezium with op d deletes its key, like a record whose value is null. With `sequence` a record that is no
event changes nothing: it cannot be decoded, or its value is null. Debezium writes such a null after the event of a
deletion, for compaction.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.config import TopicConfig
from spark_log.log.columns.envelope import OP, SEQUENCE, has_op
from spark_log.log.columns.key_and_value import VALUE
from spark_log.log.columns.topic_columns import TopicColumns, decoded, slices
from spark_log.log.records.arrow_numpy import is_null
from spark_log.log.records.winners import Mask, short_keys


class Candidates(NamedTuple):
    """The values that decide which records are current, in the order of offsets. `keys` (large_binary, `short_keys`) is
    null for records that are never current. `sequences` (int64) is None if the rule does not use them. `deletions`
    marks records that delete their key.
    """

    keys: pa.Array
    sequences: pa.Array | None
    deletions: Mask


@dataclass(frozen=True)
class CurrentRule:
    """The rule of a topic."""

    by_op: bool = False
    by_sequence: bool = False
    version: int = 0
    """The version of the typed columns if the rule uses them: other columns may find other ops and sequences."""

    @classmethod
    def of(cls, config: TopicConfig, columns: TopicColumns | None) -> "CurrentRule":
        """Return the rule of a topic with these typed columns. Only events that are decoded have an op and a
        sequence.
        """
        if columns is None or not has_op(columns.value):
            return cls()
        return cls(True, config.table_current_order == "sequence", columns.version)

    def column_names(self) -> list[str]:
        """Return the names of the columns that `candidates` needs."""
        return ["key", "value", *([VALUE.record] if self.by_op else [])]

    def candidates(self, batch: pa.RecordBatch, events: pa.StructArray | None = None) -> Candidates:
        """Return the candidates of a batch. Its events are in the typed column, unless `events` has them."""
        tombstones = is_null(batch.column("value"))
        keys = short_keys(batch.column("key").cast(pa.large_binary()))
        if not self.by_op:
            return Candidates(keys, None, tombstones)
        if events is None:
            events = batch.column(VALUE.record)
        ops = pc.struct_field(events, OP)
        deletions = tombstones | np.asarray(pc.fill_null(pc.equal(ops, "d"), False))
        if not self.by_sequence:
            return Candidates(keys, None, deletions)
        keys = pc.if_else(ops.is_valid(), keys, pa.scalar(None, keys.type))
        return Candidates(keys, pc.struct_field(events, SEQUENCE), deletions)


LAST = CurrentRule()
"""The rule of topics without events."""


def decoded_events(batch: pa.RecordBatch, columns: TopicColumns, fields: Collection[str]) -> pa.StructArray:
    """Decode these fields of the events of a batch."""
    kinds = [VALUE.record]
    parts = [decoded(part, columns, kinds)[VALUE.record] for part in slices(batch, columns, kinds)]
    arrays = {
        name: pa.concat_arrays([pc.struct_field(part, name) for part in parts] or [pa.array([], _KINDS[name])])
        for name in fields
    }
    return pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))


_KINDS = {OP: pa.string(), SEQUENCE: pa.int64()}
