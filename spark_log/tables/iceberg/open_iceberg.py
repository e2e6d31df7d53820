"""The Iceberg format of publication."""

from collections.abc import Collection, Mapping, Sequence

from spark_log import clock
from spark_log.errors import InvalidConfigurationError
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.tables.iceberg import catalog, metadata_files
from spark_log.tables.iceberg.catalog import CatalogTable
from spark_log.tables.iceberg.table import IcebergTable, next_metadata
from spark_log.tables.publication_state import Cursor, ListedFile, PublishedFile
from spark_log.tables.table_changes import ConflictingCommitError, Difference, OpenTable, TopicTable, difference


class OpenIceberg(OpenTable):
    """See OpenTable."""

    def __init__(self, table: TopicTable, iceberg: IcebergTable, in_catalog: CatalogTable | None = None) -> None:
        self._table, self.iceberg, self._in_catalog = table, iceberg, in_catalog

    @classmethod
    def open(cls, table: TopicTable, *, create: bool, was_published: bool = False) -> "OpenIceberg | None":
        """Open the table. If there is none, it is created with `create`, else the result is None. A table that was in a
        catalog and is not there any more is not created again: someone has dropped it. Raises
        InvalidConfigurationError.
        """
        log_dir, folder, name = table.log_dir, table.topic.folder, table.catalog
        if name is None:
            if create:
                metadata_files.point_readers(log_dir, folder)  # a publisher may have died before it did so
            iceberg = metadata_files.open_table(log_dir, folder, table.application)
            return cls(table, iceberg) if create or iceberg.version else None
        in_catalog = catalog.open_table(name, table.topic.name, log_dir, folder)
        if in_catalog is None and create:
            if was_published and not metadata_files.newest_version(log_dir, folder):
                raise InvalidConfigurationError(
                    f"{table.title} is not in catalog {name.name}, namespace {name.namespace}, any more: if it was not"
                    f" dropped on purpose, `spark-log table rebuild {table.topic.name} --target iceberg` makes it again"
                )
            catalog.create_table(name, table.topic.name, log_dir, folder, table.topic.all_columns)
            in_catalog = catalog.open_table(name, table.topic.name, log_dir, folder)
        if in_catalog is None:
            return None
        return cls(table, in_catalog.opened(log_dir, folder, table.application), in_catalog)

    @property
    def at(self) -> tuple[int, int]:
        return self.iceberg.transaction_version, self.iceberg.version

    def listed(self) -> Collection[ListedFile]:
        return self.iceberg.active_files().values()

    def compared(self, wanted: Sequence[PublishedFile]) -> Difference:
        return difference(wanted, self.iceberg.active_files())

    def incremental(self, wanted: Sequence[PublishedFile], gone: Sequence[str]) -> Difference:
        """The table is as we left it, so it lists no file that changed since then. A file that is gone may have come
        after that.
        """
        return Difference(wanted, [each.path for each in self.iceberg.find(gone)])

    def has_foreign_schema(self, columns: TopicColumns | None) -> bool:
        return not self.iceberg.has_schema(columns)

    def commit(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        columns: TopicColumns | None,
        transaction_version: int,
    ) -> int:
        """A commit has the schema of its files. No snapshot is kept for longer than the files that it lists."""
        config = self._table.topic.config
        metadata = next_metadata(
            self.iceberg,
            what.add,
            self.iceberg.find(what.remove),
            before,
            columns,
            transaction_version,
            clock.wall_ms(),
            min(config.iceberg_snapshot_retention_ms, config.file_delete_delay_ms, config.file_delete_delay_fresh_ms),
        )
        if self._in_catalog is None:
            if not metadata_files.commit(self.iceberg, metadata):
                raise ConflictingCommitError
            return self.iceberg.version + 1
        if not self._in_catalog.commit(self.iceberg, metadata):
            raise ConflictingCommitError
        return int(metadata["last-sequence-number"])

    def committed_ms(self) -> int:
        return self.iceberg.updated_ms
