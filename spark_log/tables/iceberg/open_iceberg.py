"""Implements the Iceberg format of publication."""

from collections.abc import Collection, Mapping, Sequence

from spark_log import clock
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.tables.iceberg import catalog, metadata_files
from spark_log.tables.iceberg.catalog import CatalogTable
from spark_log.tables.iceberg.clean_up import clean_up
from spark_log.tables.iceberg.table import IcebergTable, next_metadata
from spark_log.tables.publication_state import ICEBERG, Cursor, ListedFile, PublishedFile
from spark_log.tables.table_changes import ConflictingCommitError, Difference, OpenTable, TopicTable, difference


class OpenIceberg(OpenTable):
    """See OpenTable."""

    def __init__(self, table: TopicTable, iceberg: IcebergTable, in_catalog: CatalogTable | None = None) -> None:
        self._table, self._iceberg, self._in_catalog = table, iceberg, in_catalog

    @classmethod
    def open(cls, table: TopicTable, *, create: bool) -> "OpenIceberg | None":
        """Open the table. If there is none, it is created with `create`, else the result is None.

        A catalog has the table of one log dir; for other log dirs the result is None. With a catalog, metadata files in
        the topic's folder would get old, and are deleted.
        """
        log_dir, folder, name = table.log_dir, table.topic.folder, table.catalog
        if name is None:
            if create:
                metadata_files.point_readers(log_dir, folder)  # a publisher may have died before it did so
            iceberg = metadata_files.open_table(log_dir, folder, table.table_id)
            return cls(table, iceberg) if create or iceberg.version else None
        if not table.listing and ICEBERG in table.topic.config.table_formats:
            metadata_files.delete_versions(log_dir, folder)
            return None
        in_catalog = catalog.open_table(name, table.topic.name, log_dir, folder, table.locations)
        if in_catalog is None and create:
            catalog.create_table(name, table.topic.name, log_dir, folder, table.locations, table.topic.all_columns)
            in_catalog = catalog.open_table(name, table.topic.name, log_dir, folder, table.locations)
        if in_catalog is None:
            return None
        if create:
            metadata_files.delete_versions(log_dir, folder)
        return cls(table, in_catalog.opened(log_dir, folder, table.table_id), in_catalog)

    def clean_up(self, now_ms: int) -> int:
        """Delete the files that are not needed any more. Returns their number."""
        return clean_up(self._iceberg, set() if self._in_catalog is None else self._in_catalog.metadata_files, now_ms)

    @property
    def at(self) -> tuple[int, int]:
        return self._iceberg.transaction_version, self._iceberg.version

    def listed(self) -> Collection[ListedFile]:
        return self._iceberg.active_files().values()

    def compared(self, wanted: Sequence[PublishedFile]) -> Difference:
        return difference(wanted, self._iceberg.active_files())

    def incremental(self, wanted: Sequence[PublishedFile], gone: Sequence[str]) -> Difference:
        """Return a difference that adds all `wanted` files: they have changed since the last publication, which left
        the table as it is. Files of `gone` that the table never listed are left out.
        """
        return Difference(wanted, [each.path for each in self._iceberg.find(gone)])

    def has_foreign_schema(self, columns: TopicColumns | None) -> bool:
        return not self._iceberg.has_schema(columns)

    def commit(
        self,
        what: Difference,
        before: Mapping[int, Cursor],
        columns: TopicColumns | None,
        transaction_version: int,
    ) -> int:
        """Commit the difference as new snapshots, with the schema of its files, and return the new version of the
        table. Snapshots expire before the files that they list are deleted. Raises ConflictingCommitError.
        """
        config = self._table.topic.config
        metadata = next_metadata(
            self._iceberg,
            what.add,
            self._iceberg.find(what.remove),
            before,
            columns,
            transaction_version,
            clock.wall_ms(),
            min(config.iceberg_snapshot_retention_ms, config.file_delete_delay_ms, config.file_delete_delay_fresh_ms),
        )
        if self._in_catalog is None:
            if not metadata_files.commit(self._iceberg, metadata):
                raise ConflictingCommitError
            return self._iceberg.version + 1
        if not self._in_catalog.commit(self._iceberg, metadata):
            raise ConflictingCommitError
        return int(metadata["last-sequence-number"])

    def force(self, after: int) -> None:
        log_dir, folder = self._table.log_dir, self._table.topic.folder
        if self._in_catalog is None:
            metadata_files.force_versions(log_dir, folder, after)
        else:
            catalog.force_metadata(log_dir, folder, self._in_catalog.table.metadata_location)
