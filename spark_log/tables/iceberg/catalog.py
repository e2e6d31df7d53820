"""Opens a topic's Iceberg table in a catalog, and commits to it, through pyiceberg.

pyiceberg's own configuration (`.pyiceberg.yaml`, or variables PYICEBERG_CATALOG__*) has the catalog's address and
secrets. The catalog writes the metadata files; the manifests are those of `table`. The table's version is the sequence
number of its current snapshot.
"""

import json
import math
import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    SparkLogError,
    StorageUnavailableError,
    needing,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.process import begin
from spark_log.tables.iceberg import metadata_files
from spark_log.tables.iceberg.table import METADATA_FILES, IcebergTable, new_metadata

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

R = TypeVar("R")

ANSWER_S = 10.0
"""The time within which a catalog has to answer a call. pyiceberg itself waits without a limit."""
SILENCE_S = 60.0
"""The time for which a catalog that has not answered is not called again."""

_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(METADATA_FILES),
}


class CatalogName(NamedTuple):
    """The name of a catalog, and the namespace of its tables of this cluster."""

    name: str
    namespace: str

    def title(self, topic: str) -> str:
        """Return the name of a topic's table in messages."""
        return f"Iceberg table {self.namespace}.{topic} of catalog {self.name}"


@dataclass(frozen=True)
class CatalogTable:
    """A table as it was loaded from its catalog."""

    name: CatalogName
    title: str
    catalog: "Catalog"
    table: "Table"

    @property
    def metadata_files(self) -> set[str]:
        """Return the names of the metadata files that the table needs."""
        earlier = (each.metadata_file for each in self.table.metadata.metadata_log)
        return {path.rpartition("/")[2] for path in (self.table.metadata_location, *earlier)}

    def opened(self, log_dir: LogDir, folder: str, table_id: str) -> IcebergTable:
        metadata = json.loads(self.table.metadata.model_dump_json())
        snapshot = self.table.current_snapshot()
        version = 0 if snapshot is None else int(snapshot.sequence_number or 0)
        return IcebergTable(log_dir, folder, table_id, version, metadata)

    def commit(self, before: IcebergTable, metadata: Mapping[str, Any]) -> bool:
        """Commit these metadata. Returns False if another process has committed since the table was loaded. Raises
        StorageUnavailableError if the catalog fails; then the commit may take place later.
        """
        from pydantic import TypeAdapter
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table.update import TableRequirement, TableUpdate

        requirements, updates = changes(before.metadata or {}, metadata)
        snapshot_id = metadata["current-snapshot-id"]

        def commit() -> str | None:
            """Return the location of the new metadata file, None if another process was first."""
            try:
                return self.catalog.commit_table(
                    self.table,
                    TypeAdapter(tuple[TableRequirement, ...]).validate_python(requirements),
                    TypeAdapter(tuple[TableUpdate, ...]).validate_python(updates),
                ).metadata_location
            except CommitFailedException:
                return None
            except Exception:  # the answer may have been lost
                table = self.catalog.load_table(self.table.name())
                if table.snapshot_by_id(snapshot_id) is None:
                    raise
                return table.metadata_location

        location = _call(self.name, self.title, commit)
        if location is None:
            return False
        failpoint("iceberg.committed")
        force_metadata(before.log_dir, before.folder, location)
        return True


def force_metadata(log_dir: LogDir, folder: str, location: str) -> None:
    """Force a table's metadata file in this folder, and the folders above it, to disk, which pyiceberg does not do. A
    metadata file that the catalog has elsewhere is left as it is.
    """
    ours = f"{log_dir.location(folder)}/"
    if log_dir.local and location.startswith(ours):
        path = f"{folder}/{location.removeprefix(ours)}"
        if log_dir.sizes([path]) != [None]:
            log_dir.sync(path, ancestors=True)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the requirements and the updates of a commit from the metadata `before` to `after`, as in Iceberg's REST
    protocol. Snapshots are removed one at a time, because some servers need this.
    """
    schemas = {schema["schema-id"] for schema in before["schemas"]}
    snapshots = {snapshot["snapshot-id"] for snapshot in before["snapshots"]}
    kept = {snapshot["snapshot-id"] for snapshot in after["snapshots"]}
    properties = {name: value for name, value in after["properties"].items() if before["properties"].get(name) != value}
    main = after["refs"]["main"]["snapshot-id"]
    added = [
        *(
            {"action": "add-schema", "schema": schema}
            for schema in after["schemas"]
            if schema["schema-id"] not in schemas
        ),
        {"action": "set-current-schema", "schema-id": after["current-schema-id"]},
        {"action": "set-properties", "updates": properties},
        *(
            {"action": "add-snapshot", "snapshot": snapshot}
            for snapshot in after["snapshots"]
            if snapshot["snapshot-id"] not in snapshots
        ),
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": main},
    ]
    others = [{"action": "remove-snapshot-ref", "ref-name": name} for name in before["refs"] if name != "main"]
    expired = [
        {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]} for snapshot_id in sorted(snapshots - kept)
    ]
    parent = before["refs"].get("main", {}).get("snapshot-id")
    requirements = [
        {"type": "assert-table-uuid", "uuid": before["table-uuid"]},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
    ]
    return requirements, [*added, *others, *expired]


def open_table(
    name: CatalogName, topic: str, log_dir: LogDir, folder: str, others: Collection[str]
) -> CatalogTable | None:
    """Load the table of a topic whose folder in the log dir is `folder`; None if the catalog has none in this folder.
    `others` are the locations of the topic's folders in all log dirs. Raises InvalidConfigurationError if the table of
    this name is not the topic's, CorruptRecordError if a power loss has torn its metadata file in the log dir.
    """
    title = name.title(topic)
    loaded = _call(name, title, lambda: _load(name, topic, log_dir))
    if loaded is None:
        return None
    catalog, table = loaded
    location, ours = table.location(), log_dir.location(folder)
    if location == ours:
        return CatalogTable(name, title, catalog, table)
    if _is_former(location, topic, log_dir, others):
        return None
    raise InvalidConfigurationError(
        f"{title}: its location is {redact(location)}, not a folder of the topic such as {redact(ours)}. It is somebody"
        " else's: drop or rename it, or choose another iceberg.namespace"
    )


class _TornTableError(CorruptRecordError):
    """A catalog has a table at `location`, whose metadata file is missing or torn."""

    def __init__(self, message: str, location: str) -> None:
        super().__init__(message)
        self.location = location


def _load(name: CatalogName, topic: str, log_dir: LogDir) -> "tuple[Catalog, Table] | None":
    catalog = load_catalog(name.name)
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    identifier = _identifier(name, topic)
    try:
        return catalog, catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except Exception as error:
        file = _metadata_location(catalog, identifier)
        if file is not None and _is_torn(log_dir, file):
            reason = f"{name.title(topic)}: its metadata file {file} is missing or torn"
            raise _TornTableError(reason, file.rpartition("/metadata/")[0]) from error
        raise


def _metadata_location(catalog: "Catalog", identifier: tuple[str, ...]) -> str | None:
    """Return the location of a table's metadata file, without reading it; None if the catalog is no SQL catalog."""
    from pyiceberg.catalog.sql import IcebergTables, SqlCatalog

    if not isinstance(catalog, SqlCatalog):
        return None
    query = sa.select(IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == catalog.namespace_to_string(identifier[:-1]),
        IcebergTables.table_name == identifier[-1],
    )
    with catalog.engine.connect() as connection:
        return connection.execute(query).scalar()


def _is_torn(log_dir: LogDir, location: str) -> bool:
    """Whether a metadata file in a local log dir is missing or was torn by a power loss. Raises StorageUnavailableError
    if it cannot be read: then it may be whole.
    """
    ours = log_dir.location("")
    if not log_dir.local or not location.startswith(ours) or location.endswith(".gz.metadata.json"):
        return False
    try:
        json.loads(log_dir.read(location.removeprefix(ours)))
    except (CorruptRecordError, ValueError):
        return True
    return False


def _is_former(location: str, topic: str, log_dir: LogDir, others: Collection[str]) -> bool:
    """Whether a location is that of the topic in another log dir, or that of a deleted topic of this name. A copy of
    the cluster, from a backup, has folders of the same names elsewhere, which do not count.
    """
    if location in others:
        return True
    return re.fullmatch(re.escape(log_dir.location(topic)) + "-[0-9a-f]{8}", location) is not None


def create_table(
    name: CatalogName,
    topic: str,
    log_dir: LogDir,
    folder: str,
    others: Collection[str],
    columns: TopicColumns | None,
    *,
    anew: bool = False,
) -> None:
    """Register the table of a topic in the catalog, in place of its table in another folder. If the topic's folder has
    a table, the new one gets its snapshots, unless it is made `anew`. Another process may do the same.
    """
    drop_table(name, topic, log_dir, folder, others, here=anew)
    in_folder = metadata_files.open_table(log_dir, folder, "")
    metadata = None if anew else in_folder.metadata
    metadata = dict(metadata or new_metadata(in_folder.location, columns, clock.wall_ms()))
    metadata |= {"metadata-log": [], "properties": {**metadata["properties"], **_PROPERTIES}}
    # always the same name: a catalog that refuses the table leaves only one file
    path = f"metadata/00000-{folder.rpartition('-')[2]}.metadata.json"
    log_dir.make_folder(f"{folder}/metadata")
    log_dir.put(f"{folder}/{path}", json.dumps(metadata).encode())

    def register() -> None:
        catalog = load_catalog(name.name)
        from pyiceberg.exceptions import TableAlreadyExistsError

        levels = name.namespace.split(".")
        for level in range(1, len(levels) + 1):
            catalog.create_namespace_if_not_exists(tuple(levels[:level]))
        try:
            catalog.register_table(_identifier(name, topic), f"{in_folder.location}/{path}")
        except TableAlreadyExistsError:  # another process was first
            return

    _call(name, name.title(topic), register)
    failpoint("iceberg.registered")


def drop_table(
    name: CatalogName, topic: str, log_dir: LogDir, folder: str, others: Collection[str], *, here: bool = True
) -> None:
    """Remove the topic's table from the catalog, if it has one; without `here` only if the table is in another folder.
    No file is deleted. A table that is not the topic's stays.
    """

    def drop() -> None:
        try:
            loaded = _load(name, topic, log_dir)
        except _TornTableError as error:
            location = error.location
        else:
            if loaded is None:
                return
            location = loaded[1].location()
        is_here = location == log_dir.location(folder)
        if here if is_here else _is_former(location, topic, log_dir, others):
            load_catalog(name.name).drop_table(_identifier(name, topic))

    _call(name, name.title(topic), drop)


@cache
def load_catalog(name: str) -> "Catalog":
    """Return the catalog of this name in pyiceberg's configuration."""
    with needing("iceberg.catalog", "iceberg"):
        from pyiceberg.catalog import load_catalog
    try:
        return load_catalog(name)
    except ValueError as error:  # it is not configured
        raise InvalidConfigurationError(
            f"iceberg.catalog {name!r}: pyiceberg's configuration on this machine has no such catalog, or it is wrong:"
            f" {_text(error)}"
        ) from error


def _identifier(name: CatalogName, topic: str) -> tuple[str, ...]:
    return (*name.namespace.split("."), topic)  # the topic's name may have dots


_silent_until_s: dict[str, float] = {}
_began_s: dict[str, float] = {}
"""The time when the last call of each catalog began."""
_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""A call that has not been answered holds the lock of its catalog."""
os.register_at_fork(after_in_child=_locks.clear)  # the calls of the parent are not answered in a child


def _call(name: CatalogName, title: str, work: Callable[[], R]) -> R:
    """Return the result of `work`, which calls a catalog. Raises StorageUnavailableError for the errors of its many
    libraries, and if it does not answer in time; then the calls may take place later.
    """
    lock = _locks[name.name]
    silent = StorageUnavailableError(f"{title}: the catalog has not answered for {ANSWER_S:.0f} s")
    if clock.monotonic_s() < _silent_until_s.get(name.name, 0):
        raise silent
    if not lock.acquire(timeout=ANSWER_S):
        overdue_s = clock.monotonic_s() - ANSWER_S
        if _began_s.get(name.name, math.inf) <= overdue_s:  # it has not answered an earlier call either
            _silent_until_s[name.name] = clock.monotonic_s() + SILENCE_S
        raise silent
    _began_s[name.name] = clock.monotonic_s()
    answer = begin(work, "spark-log-catalog")
    answer.add_done_callback(lambda _: lock.release())
    if not wait([answer], ANSWER_S).done:
        _silent_until_s[name.name] = clock.monotonic_s() + SILENCE_S
        raise silent
    error = answer.exception()
    if error is None or isinstance(error, SparkLogError):
        return answer.result()
    raise StorageUnavailableError(f"{title}: {_text(error)}") from error


def _text(error: BaseException) -> str:
    return redact(" ".join(f"{type(error).__name__}: {error}".split()))[:500]
