"""Opens a topic's Iceberg table in a catalog, and commits to it, through pyiceberg.

The catalog is one of pyiceberg's own configuration (`.pyiceberg.yaml`, or variables PYICEBERG_CATALOG__…), which has
its address and its secrets. The metadata files are its own; the manifests are those of `table`. The table's version is
the sequence number of its current snapshot.
"""

import contextlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_log import clock
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import (
    InvalidConfigurationError,
    SparkLogError,
    StorageUnavailableError,
    install_extra,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.tables.iceberg import metadata_files
from spark_log.tables.iceberg.table import METADATA_FILES, IcebergTable, new_metadata

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(METADATA_FILES),
}


class CatalogName(NamedTuple):
    """The name of a catalog, and the namespace of its tables of this cluster."""

    name: str
    namespace: str


@dataclass(frozen=True)
class CatalogTable:
    """A table as it was loaded from its catalog."""

    catalog: "Catalog"
    table: "Table"
    title: str

    def opened(self, log_dir: LogDir, folder: str, application: str) -> IcebergTable:
        metadata = json.loads(self.table.metadata.model_dump_json())
        snapshot = self.table.current_snapshot()
        version = 0 if snapshot is None else int(snapshot.sequence_number or 0)
        return IcebergTable(log_dir, folder, application, version, metadata)

    def commit(self, before: IcebergTable, metadata: Mapping[str, Any]) -> bool:
        """Make these metadata those of the table. Returns False if another process has committed since it was loaded.
        Raises StorageUnavailableError if the catalog fails; then the commit may take place later.
        """
        from pydantic import TypeAdapter
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import TableRequirement, TableUpdate

        requirements, updates = changes(before.metadata or {}, metadata)
        try:
            self.catalog.commit_table(
                self.table,
                TypeAdapter(tuple[TableRequirement, ...]).validate_python(requirements),
                TypeAdapter(tuple[TableUpdate, ...]).validate_python(updates),
            )
        except CommitFailedException:
            return False
        except Exception as error:
            if not self._has(metadata["current-snapshot-id"]):
                raise StorageUnavailableError(f"{self.title}: {_text(error)}") from error
        failpoint("iceberg.committed")
        return True

    def _has(self, snapshot_id: int) -> bool:
        """Whether the table has this snapshot now: an answer may have been lost."""
        with _errors(self.title):
            now = self.catalog.load_table(self.table.name())
            return now.snapshot_by_id(snapshot_id) is not None


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the requirements and the updates of a commit that makes the metadata `before` those of `after`, as in
    Iceberg's REST protocol.
    """
    schemas = {each["schema-id"] for each in before["schemas"]}
    snapshots = {each["snapshot-id"] for each in before["snapshots"]}
    kept = {each["snapshot-id"] for each in after["snapshots"]}
    properties = {name: value for name, value in after["properties"].items() if before["properties"].get(name) != value}
    main = after["refs"]["main"]["snapshot-id"]
    added = [
        *({"action": "add-schema", "schema": each} for each in after["schemas"] if each["schema-id"] not in schemas),
        {"action": "set-current-schema", "schema-id": after["current-schema-id"]},
        {"action": "set-properties", "updates": properties},
        *(
            {"action": "add-snapshot", "snapshot": each}
            for each in after["snapshots"]
            if each["snapshot-id"] not in snapshots
        ),
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": main},
    ]
    others = [{"action": "remove-snapshot-ref", "ref-name": name} for name in before["refs"] if name != "main"]
    expired = [{"action": "remove-snapshots", "snapshot-ids": sorted(snapshots - kept)}] if snapshots - kept else []
    parent = before["refs"].get("main", {}).get("snapshot-id")
    requirements = [
        {"type": "assert-table-uuid", "uuid": before["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
    ]
    return requirements, [*added, *others, *expired]


def open_table(name: CatalogName, topic: str, log_dir: LogDir, folder: str) -> CatalogTable | None:
    """Load the table of a topic whose folder in the log dir is `folder`; None if the catalog has none of this name, or
    that of a deleted topic, which leaves it. Raises InvalidConfigurationError if the table of this name is another one.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    identifier = f"{name.namespace}.{topic}"
    title = f"Iceberg table {identifier} of catalog {name.name}"
    with _errors(title):
        catalog = load_catalog(name.name)
        try:
            table = catalog.load_table(_identifier(name, topic))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
    location, ours = table.location(), log_dir.location(folder)
    if location == ours:
        return CatalogTable(catalog, table, title)
    if re.fullmatch(re.escape(log_dir.location(topic)) + "-[0-9a-f]{8}", location):  # a topic of this name was deleted
        drop_table(name, topic)
        return None
    raise InvalidConfigurationError(
        f"{title}: its location is {redact(location)}, not the topic's folder {redact(ours)}. `spark-log table rebuild"
        f" {topic} --target iceberg` replaces it, without deleting a file of it"
    )


def create_table(name: CatalogName, topic: str, log_dir: LogDir, folder: str, columns: TopicColumns | None) -> None:
    """Register the table of a topic. If its folder has a table already, it gets that one's snapshots, and is the only
    one from then on. Another process may do the same.
    """
    from pyiceberg.exceptions import TableAlreadyExistsError

    in_folder = metadata_files.open_table(log_dir, folder, "")
    metadata = in_folder.metadata or new_metadata(in_folder.location, columns, clock.wall_ms())
    metadata = {**metadata, "metadata-log": [], "properties": {**metadata["properties"], **_PROPERTIES}}
    log_dir.make_folder(f"{folder}/metadata")
    path = f"metadata/00000-{uuid.uuid4()}.metadata.json"
    file = log_dir.create(f"{folder}/{path}")
    file.write(json.dumps(metadata).encode())
    file.commit()
    with _errors(f"Iceberg table {name.namespace}.{topic} of catalog {name.name}"):
        catalog = load_catalog(name.name)
        levels = name.namespace.split(".")
        for level in range(1, len(levels) + 1):
            catalog.create_namespace_if_not_exists(tuple(levels[:level]))
        try:
            catalog.register_table(_identifier(name, topic), f"{in_folder.location}/{path}")
        except TableAlreadyExistsError:  # another process has registered it
            log_dir.delete(f"{folder}/{path}")
            return
    failpoint("iceberg.registered")
    metadata_files.delete_versions(log_dir, folder)


def drop_table(name: CatalogName, topic: str) -> None:
    """Remove the table of a topic from the catalog, if it is there. No file is deleted."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    title = f"Iceberg table {name.namespace}.{topic} of catalog {name.name}"
    with _errors(title), contextlib.suppress(NoSuchTableError, NoSuchNamespaceError):
        load_catalog(name.name).drop_table(_identifier(name, topic))


@cache
def load_catalog(name: str) -> "Catalog":
    """Return the catalog of this name in pyiceberg's configuration."""
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise InvalidConfigurationError(f"iceberg.catalog needs a package: {install_extra('iceberg')}") from error
    try:
        return load_catalog(name)
    except ValueError as error:  # it is not configured
        raise InvalidConfigurationError(
            f"iceberg.catalog {name!r}: pyiceberg's configuration on this machine has no such catalog, or it is wrong:"
            f" {_text(error)}"
        ) from error


def _identifier(name: CatalogName, topic: str) -> tuple[str, ...]:
    return (*name.namespace.split("."), topic)  # the topic's name may have dots


@contextlib.contextmanager
def _errors(title: str) -> Iterator[None]:
    """Catalogs raise errors of many libraries."""
    try:
        yield
    except SparkLogError:
        raise
    except Exception as error:
        raise StorageUnavailableError(f"{title}: {_text(error)}") from error


def _text(error: Exception) -> str:
    return redact(" ".join(f"{type(error).__name__}: {error}".split()))[:500]
