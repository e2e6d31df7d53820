"""The report of a maintenance task."""

from dataclasses import dataclass, field

from spark_log.quantities import count_of


@dataclass(frozen=True)
class Amount:
    """So many files (of one replica) or blobs, with so many stored bytes and records."""

    files: int = 0
    bytes: int = 0
    records: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.files + other.files, self.bytes + other.bytes, self.records + other.records)

    def __bool__(self) -> bool:
        return self != Amount()


@dataclass(frozen=True)
class Report:
    """What a task did to one topic (None: to the cluster): what it found of what it touched, and what it left."""

    task: str
    topic: str | None = None
    partitions: int = 0
    """Partitions that it changed."""
    before: Amount = field(default_factory=Amount)
    after: Amount = field(default_factory=Amount)
    notes: tuple[str, ...] = ()
    """For people: why it did so, what it put off and why, what failed."""
    dry_run: bool = False
    """Nothing was changed: the report says what the task would do."""

    def __str__(self) -> str:
        where = f" {self.topic}" if self.topic else ""
        what = [count_of(self.partitions, "partition")] if self.partitions else []
        if self.before or self.after:
            what += [
                f"{getattr(self.before, name):,} -> {getattr(self.after, name):,} {name}"
                for name in ("files", "bytes", "records")
            ]
        dry = " (dry run)" if self.dry_run else ""
        return f"{self.task}{dry}{where}: {'; '.join([', '.join(what), *self.notes] if what else self.notes)}"
