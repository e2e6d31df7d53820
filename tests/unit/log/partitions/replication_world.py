"""Model of the data that the replication rules refer to: segment rows, blobs, and the files in log dirs.

A file or a blob is a name that is never used again, and the ids of its records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A segment row: the records of `name` have the offsets [base, end). A blob is in the store."""

    base: int
    end: int
    name: str
    inline: bool


class World:
    """`rows` by offset; `files`: names of the complete files in each log dir; `content`: the records of each name."""

    def __init__(self, log_dirs: Iterable[int]) -> None:
        self.rows: list[Row] = []
        self.files: dict[int, set[str]] = {log_dir: set() for log_dir in log_dirs}
        self.content: dict[str, tuple[int, ...]] = {}

    def write(self, records: tuple[int, ...], log_dirs: Iterable[int]) -> str:
        """A new file in these log dirs, none for a blob; its name."""
        name = f"s{len(self.content)}"
        self.content[name] = records
        for log_dir in log_dirs:
            self.files[log_dir].add(name)
        return name

    def between(self, start: int, end: int) -> list[Row]:
        """The rows that overlap [start, end)."""
        return [row for row in self.rows if row.base < end and row.end > start]

    def records(self, start: int, end: int) -> list[int]:
        """The records at these offsets, according to the rows."""
        found = {row.base + i: record for row in self.rows for i, record in enumerate(self.content[row.name])}
        return [found[offset] for offset in range(start, end) if offset in found]

    def files_from(self, start: int) -> list[Row]:
        """Rows of files that begin at `start` or above."""
        return [row for row in self.rows if row.base >= start and not row.inline]

    def copy(self, row: Row, sources: Iterable[int], log_dir: int) -> bool:
        """Copy the row's file from the first source that has it, whole; False: none has."""
        found = any(row.name in self.files[source] for source in [log_dir, *sources])
        if found:
            self.files[log_dir].add(row.name)
        return found

    def swap(self, run: Sequence[Row], name: str) -> None:
        """One file in the place of a run of rows; theirs are deleted, as clean-up will."""
        at = self.rows.index(run[0])
        self.rows[at : at + len(run)] = [Row(run[0].base, run[-1].end, name, inline=False)]
        self._delete(run)

    def truncate(self, start: int) -> None:
        """Rows that end above `start` are deleted, as by `truncate_log`."""
        self._delete([row for row in self.rows if row.end > start])
        self.rows = [row for row in self.rows if row.end <= start]

    def delete_below(self, log_start: int) -> None:
        self._delete([row for row in self.rows if row.end <= log_start])
        self.rows = [row for row in self.rows if row.end > log_start]

    def _delete(self, rows: Iterable[Row]) -> None:
        for names in self.files.values():
            names.difference_update(row.name for row in rows)
