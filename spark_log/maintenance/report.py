"""What an maintenance task says of its work."""

from dataclasses import dataclass, field


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
    """For people: what it put off and why, what failed."""

    def __str__(self) -> str:
        where = f" {self.topic}" if self.topic else ""
        what = [f"{self.partitions:,} partitions"] if self.partitions else []
        if self.before or self.after:
            what += [
                f"{getattr(self.before, name):,} -> {getattr(self.after, name):,} {name}"
                for name in ("files", "bytes", "records")
            ]
        return f"{self.task}{where}: {'; '.join([', '.join(what), *self.notes] if what else self.notes)}"
