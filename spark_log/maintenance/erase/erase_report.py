"""Defines the report of an erase, for people and for scripts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark_log.maintenance.erase.purge import Purged
from spark_log.maintenance.report import Amount
from spark_log.text import count_of


@dataclass(frozen=True)
class Erased:
    """The result of an erase. Keys are personal data: the report has only their number."""

    topic: str
    keys: int
    ends: Mapping[int, int]
    """The offset below which records were checked, by partition."""
    records: int
    partitions: int
    """Number of partitions with such records."""
    segments_scanned: int
    before: Amount
    """The segments that were replaced."""
    after: Amount
    purged: Purged | None
    """The result of the purge, if there was one."""
    notes: tuple[str, ...]
    """Lines for the user: the data that was not erased, and how to erase it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        shown = [
            f"Erased {count_of(self.records, 'record')} of {count_of(self.keys, 'key')} from {self.topic}: replaced"
            f" {self.before.files:,} of {count_of(self.segments_scanned, 'segment')} in"
            f" {count_of(self.partitions, 'partition')} ({self.before.bytes:,} -> {self.after.bytes:,} bytes)."
        ]
        if self.purged is not None:
            replicas = count_of(self.purged.replicas, "replica")
            moved = f", and {replicas} that had moved away" if self.purged.replicas else ""
            shown.append(f"Purged {count_of(self.purged.files, 'old file')} ({self.purged.bytes:,} bytes){moved}.")
        elif self.before:
            shown.append(
                "The replaced files stay for file.delete.delay.ms, where older Delta versions still show the"
                " records; with --purge they go at once."
            )
        shown.append("Records appended since it began were not looked at.")
        return [*shown, *(f"Note: {note}" for note in self.notes)]
