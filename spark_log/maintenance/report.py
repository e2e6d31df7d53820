"""Defines the report of a maintenance task."""

from dataclasses import dataclass, field

from spark_log.text import count_of


@dataclass(frozen=True)
class Amount:
    """A number of files (of one replica) or blobs, with their stored bytes and records."""

    files: int = 0
    bytes: int = 0
    records: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.files + other.files, self.bytes + other.bytes, self.records + other.records)

    def __bool__(self) -> bool:
        return self != Amount()


@dataclass(frozen=True)
class Report:
    """The effect of a task on one topic (None: on the cluster): the amount of the changed data before and after."""

    task: str
    topic: str | None = None
    partitions: int = 0
    """Number of changed partitions."""
    before: Amount = field(default_factory=Amount)
    after: Amount = field(default_factory=Amount)
    notes: tuple[str, ...] = ()
    """Messages for users: reasons, failures, and postponed work with its reason."""
    dry_run: bool = False
    """Nothing was changed: the report describes the changes that the task would make."""
    seconds: float = field(default=0.0, compare=False)
    """Time that the work took, in all its threads; 0 where it is not measured."""

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
