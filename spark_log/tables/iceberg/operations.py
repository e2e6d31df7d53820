"""Splits a change of a table into Iceberg's operations, which readers treat differently. Pure.

    delete      files are removed: by retention, by truncation, or with a replica
    overwrite   files are replaced by files with fewer records (compaction, erasure), or return after they were removed
    replace     files are replaced by files with the same records (merge, new columns)
    append      files with records that the table has not had

A stream of a reader reads `append` and ignores `replace`. https://iceberg.apache.org/spec/#snapshots
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_log.tables.publication_state import ListedFile, PublishedFile


@dataclass(frozen=True)
class Operation:
    """The changes of one snapshot."""

    name: str
    add: Sequence[PublishedFile]
    remove: Sequence[ListedFile]


def operations(
    add: Sequence[PublishedFile], remove: Sequence[ListedFile], has_seen: Callable[[PublishedFile], bool]
) -> list[Operation]:
    """Return the operations that add and remove these files, in their order. `has_seen` returns whether the records of
    an added file have been in the table before.
    """
    left = {listed.path: listed for listed in remove}
    replaced: dict[str, tuple[list[PublishedFile], list[ListedFile]]] = {"overwrite": ([], []), "replace": ([], [])}
    new: list[PublishedFile] = []
    for file in add:
        if not has_seen(file):
            new.append(file)
            continue
        before = [listed for listed in left.values() if listed.partition == file.partition and _begins_in(listed, file)]
        for listed in before:
            del left[listed.path]
        name = "replace" if sum(listed.record_count for listed in before) == file.record_count else "overwrite"
        replaced[name][0].append(file)
        replaced[name][1].extend(before)
    parts = {"delete": ([], list(left.values())), **replaced, "append": (new, [])}
    return [Operation(name, *files) for name, files in parts.items() if any(files)]


def _begins_in(listed: ListedFile, file: PublishedFile) -> bool:
    """Whether the base offset of a listed file is one of the offsets of another file."""
    base_offset: int | None = listed.base_offset  # a file of another program may have none
    return base_offset is not None and file.base_offset <= base_offset < file.end_offset
