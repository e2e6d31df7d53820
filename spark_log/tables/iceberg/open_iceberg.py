"""The Iceberg format of publication."""

from collections.abc import Collection, Mapping, Sequence

from spark_log import clock
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.tables.iceberg.table import IcebergTable, commit
from spark_log.tables.publication_state import Cursor, ListedFile, PublishedFile
from spark_log.tables.table_changes import ConflictingCommitError, Difference, OpenTable, TopicTable, difference


class OpenIceberg(OpenTable):
    """See OpenTable."""

    def __init__(self, table: TopicTable, iceberg: IcebergTable) -> None:
        self._table, self._iceberg = table, iceberg

    @property
    def at(self) -> tuple[int, int]:
        return self._iceberg.transaction_version, self._iceberg.version

    def listed(self) -> Collection[ListedFile]:
        return self._iceberg.active_files().values()

    def compared(self, wanted: Sequence[PublishedFile]) -> Difference:
        return difference(wanted, self._iceberg.active_files())

    def incremental(self, wanted: Sequence[PublishedFile], gone: Sequence[str]) -> Difference:
        """The table is as we left it, so it lists no file that changed since then. A file that is gone may have come
        after that.
        """
        return Difference(wanted, [each.path for each in self._iceberg.find(gone)])

    def commit(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        columns: TopicColumns | None,
        transaction_version: int,
    ) -> int:
        """A commit has the schema of its files. No snapshot is kept for longer than the files that it lists."""
        config = self._table.topic.config
        done = commit(
            self._iceberg,
            what.add,
            self._iceberg.find(what.remove),
            before,
            columns,
            transaction_version,
            clock.wall_ms(),
            min(config.iceberg_snapshot_retention_ms, config.file_delete_delay_ms, config.file_delete_delay_fresh_ms),
        )
        if not done:
            raise ConflictingCommitError
        return self._iceberg.version + 1

    def committed_ms(self) -> int:
        return self._iceberg.updated_ms
