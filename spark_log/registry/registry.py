"""Implements the schema registry of a cluster, with the rules of Confluent's Schema Registry."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, TypeVar

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidSchemaError, RetriableError, SchemaNotFoundError, SchemaRegistryError
from spark_log.registry import registrations, rows
from spark_log.registry.compatibility import DEFAULT_LEVEL, LEVELS
from spark_log.registry.schema_types import schema_hash
from spark_log.registry.schemas import Reference, RegisteredSchema, Schema, SchemaText, check_type

T = TypeVar("T")

Version = int | Literal["latest"]

MODES = ("READWRITE", "READONLY", "IMPORT")
DEFAULT_MODE = "READWRITE"

_TRIES = 20
"""The number of tries of a registration while the subject changes. Several clients may register in it at once."""
_SUBJECT_LENGTH_MAX = 512
_INVALID_VERSION, _INVALID_LEVEL, _INVALID_MODE = 42202, 42203, 42204
_INVALID_SUBJECT = 42208
_SUBJECT_DELETED, _SUBJECT_NOT_DELETED, _VERSION_DELETED, _VERSION_NOT_DELETED = 40404, 40405, 40406, 40407


class Registry:
    """Keeps the schemas of a cluster in its metadata store. Safe to share between threads.

    >>> registry = Registry(cluster)                                         # doctest: +SKIP
    >>> registry.register("orders-value", schema_text, "AVRO").id            # doctest: +SKIP
    1

    Subjects, versions, ids and compatibility levels work like those of Confluent's Schema Registry. `spark-log
    registry` serves them over HTTP. A reference is a tuple (name, subject, version).
    """

    def __init__(self, cluster: Cluster) -> None:
        self._store = cluster.store

    def register(
        self,
        subject: str,
        schema: str,
        type: str = "AVRO",
        references: Iterable[tuple[str, str, int]] = (),
        *,
        id: int | None = None,
        version: int | None = None,
    ) -> RegisteredSchema:
        """Add a schema as the next version of the subject, or return the version that has it already.

        The same schema has one id under all subjects. Topics that follow the subject get its new columns in the same
        transaction. Give `id`, and optionally `version`, in the mode IMPORT, to copy the schemas of another registry.
        Raises InvalidSchemaError, IncompatibleSchemaError (which names the field), SchemaNotFoundError (a reference),
        SchemaRegistryError (the subject's name or mode, the id or the version) and RetriableError (the subject kept
        changing).
        """
        _check_subject(subject)
        new = _unregistered(type, schema, references)
        if id is not None:
            imported, number = new._replace(id=_number(id)), None if version is None else _number(version)
            text = self._store.read(lambda connection: rows.text_of(connection, imported))
            hashed = text, schema_hash(text, imported.references)
            return self._write(lambda c: registrations.import_schema(c, subject, imported, number, hashed))
        known = self._store.read(lambda connection: registrations.find(connection, subject, new))
        if known is not None:
            return known
        for _ in range(_TRIES):
            # This may take long, so it is done before the transaction, for which other writers wait.
            accepted = self._store.read(lambda connection: registrations.accept(connection, subject, new))
            change = partial(registrations.topics_to_change, subject=subject, new=new, accepted=accepted)
            for each in self._store.read(change):
                each.typed_columns()
            registered = self._write(partial(registrations.register, subject=subject, new=new, accepted=accepted))
            if registered is not None:
                return registered
        raise RetriableError(
            f"subject {subject!r}: it changed during each of {_TRIES} attempts to register the schema; repeat the call"
        )

    def lookup(
        self,
        subject: str,
        schema: str,
        type: str = "AVRO",
        references: Iterable[tuple[str, str, int]] = (),
        *,
        deleted: bool = False,
    ) -> RegisteredSchema:
        """Return the latest version of the subject that has this schema. With `deleted`, include softly deleted ones.

        Raises SchemaNotFoundError if there is none, and InvalidSchemaError.
        """
        looked_up = _unregistered(type, schema, references)

        def find(connection: sa.Connection) -> RegisteredSchema:
            if not rows.version_ids(connection, subject, deleted=deleted):
                raise rows.subject_not_found(subject)
            found = registrations.find(connection, subject, looked_up, deleted=deleted)
            if found is None:
                raise SchemaNotFoundError("Schema not found", rows.SCHEMA_NOT_FOUND)
            return found

        return self._store.read(find)

    def schema(self, schema_id: int) -> Schema:
        """Return the schema with this id. Raises SchemaNotFoundError."""
        found = self._store.read(lambda connection: rows.find_schema(connection, schema_id))
        if found is None:
            raise SchemaNotFoundError(f"Schema {schema_id} not found", rows.SCHEMA_NOT_FOUND)
        return found

    def with_imports(self, schema: Schema) -> SchemaText:
        """Return the schema with the texts of all schemas that it refers to, directly or not.

        Raises SchemaNotFoundError and InvalidSchemaError.
        """
        return self._store.read(lambda connection: rows.text_of(connection, schema))

    def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """Return the names of the subjects. With `deleted`, include those that have only softly deleted versions."""
        return self._store.read(lambda connection: rows.subject_names(connection, prefix, deleted=deleted))

    def subjects_of(self, schema_id: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """Return the subjects and versions that have the schema. Raises SchemaNotFoundError for an unknown id."""
        self.schema(schema_id)
        return self._store.read(lambda connection: rows.subjects_of(connection, schema_id, deleted=deleted))

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the version numbers of the subject. Raises SchemaNotFoundError if it has none."""
        found = self._store.read(lambda connection: rows.version_ids(connection, subject, deleted=deleted))
        if not found:
            raise rows.subject_not_found(subject)
        return [version for version, _ in found]

    def version(self, subject: str, version: Version = "latest", *, deleted: bool = False) -> RegisteredSchema:
        """Return a version of the subject. Raises SchemaNotFoundError."""
        number = _version(version)
        return self._store.read(lambda connection: rows.find_version(connection, subject, number, deleted=deleted))

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of the subject. Raises SchemaNotFoundError."""
        return self.version(subject)

    def referring_ids(self, subject: str, version: Version) -> list[int]:
        """Return the ids of the schemas that refer to the version. Raises SchemaNotFoundError if it does not exist."""
        found = self.version(subject, version, deleted=True)
        return self._store.read(lambda connection: rows.referring_ids(connection, subject, [found.version]))

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of the subject, and its compatibility level and mode. Return the version numbers.

        A soft deletion keeps the versions for lookups with `deleted`. A permanent deletion must follow a soft one. An
        id is never used again for another schema. Raises SchemaNotFoundError if there is no such subject, or it is not
        in the state that the deletion needs, and SchemaRegistryError if a schema of another subject refers to a version
        (for a permanent deletion, also a softly deleted schema), or the subject is read-only.
        """

        def delete(connection: sa.Connection) -> list[int]:
            registrations.check_writable(connection, subject)
            every = [version for version, _ in rows.version_ids(connection, subject, deleted=True)]
            live = [version for version, _ in rows.version_ids(connection, subject)]
            if not every:
                raise rows.subject_not_found(subject)
            if permanent and live:
                raise SchemaNotFoundError(
                    f"Subject '{subject}' was not deleted first before being permanently deleted", _SUBJECT_NOT_DELETED
                )
            if not permanent and not live:
                raise SchemaNotFoundError(
                    f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently", _SUBJECT_DELETED
                )
            versions = every if permanent else live
            registrations.delete(connection, subject, versions, permanent, whole_subject=True)
            rows.set_config(connection, subject, compatibility=None, mode=None)
            return versions

        return self._write(delete)

    def delete_version(self, subject: str, version: Version, *, permanent: bool = False) -> int:
        """Delete one version, softly or permanently as in `delete_subject`. Return its number.

        Raises the errors of `delete_subject`, also if a schema of the same subject refers to the version.
        """
        number = _version(version)

        def delete(connection: sa.Connection) -> int:
            registrations.check_writable(connection, subject)
            row = rows.find_version(connection, subject, number, deleted=permanent or number is not None)
            is_live = any(version == row.version for version, _ in rows.version_ids(connection, subject))
            if permanent and is_live:
                raise SchemaNotFoundError(
                    f"Subject '{subject}' Version {row.version} was not deleted first before being permanently deleted",
                    _VERSION_NOT_DELETED,
                )
            if not permanent and not is_live:
                raise SchemaNotFoundError(
                    f"Subject '{subject}' Version {row.version} was soft deleted. Set permanent=true to delete"
                    " permanently",
                    _VERSION_DELETED,
                )
            registrations.delete(connection, subject, [row.version], permanent)
            return row.version

        return self._write(delete)

    def compatibility(self, subject: str | None = None) -> str | None:
        """Return the level that is set for the subject, or None; without a subject, the level of all subjects."""
        level, _ = self._store.read(lambda connection: rows.config_of(connection, subject or rows.ALL_SUBJECTS))
        return level or (None if subject else DEFAULT_LEVEL)

    def set_compatibility(self, level: str | None, subject: str | None = None) -> None:
        """Set the compatibility level of the subject, or of all subjects. None resets it to the default.

        Raises SchemaRegistryError if the level or the subject's name is not valid.
        """
        if level is not None and level not in LEVELS:
            raise SchemaRegistryError(
                f"Invalid compatibility level {level!r}. Valid values are {', '.join(LEVELS)}", _INVALID_LEVEL
            )
        self._set(subject, compatibility=level)

    def test_compatibility(
        self,
        subject: str,
        schema: str,
        type: str = "AVRO",
        references: Iterable[tuple[str, str, int]] = (),
        version: Version | None = None,
    ) -> list[str]:
        """Return the reasons why the schema cannot become the next version of the subject. Empty if it can.

        If `version` is given, the schema is compared only with this version, by the subject's compatibility level.
        Raises InvalidSchemaError, and SchemaNotFoundError for a reference or a version that does not exist.
        """
        new = _unregistered(type, schema, references)
        number = None if version is None else _version(version)

        def test(connection: sa.Connection) -> list[str]:
            text = rows.text_of(connection, new)
            schema_hash(text, new.references)  # InvalidSchemaError
            versions = (
                registrations.versions_to_compare(connection, subject)
                if version is None
                else [rows.find_version(connection, subject, number).version]
            )
            level = registrations.level_of(connection, subject)
            return registrations.problems_with(connection, subject, text, level, versions)

        return self._store.read(test)

    def mode(self, subject: str | None = None) -> str | None:
        """Return READWRITE, READONLY or IMPORT, as set for the subject, or None; without a subject, as set for all."""
        _, mode = self._store.read(lambda connection: rows.config_of(connection, subject or rows.ALL_SUBJECTS))
        return mode or (None if subject else DEFAULT_MODE)

    def set_mode(self, mode: str | None, subject: str | None = None) -> None:
        """Set the mode of the subject, or of all subjects. None resets it to the default.

        Raises SchemaRegistryError if the mode or the subject's name is not valid.
        """
        if mode is not None and mode not in MODES:
            raise SchemaRegistryError(f"Invalid mode {mode!r}. Valid values are {', '.join(MODES)}", _INVALID_MODE)
        self._set(subject, mode=mode)

    def _set(self, subject: str | None, **values: str | None) -> None:
        if subject is not None:
            _check_subject(subject)
        self._write(lambda connection: rows.set_config(connection, subject or rows.ALL_SUBJECTS, **values))

    def _write(self, body: Callable[[sa.Connection], T]) -> T:
        def write(connection: sa.Connection) -> T:
            rows.lock_registry(connection)
            return body(connection)

        return self._store.transact(write)


def _check_subject(subject: str) -> None:
    if not subject or len(subject) > _SUBJECT_LENGTH_MAX or not subject.isprintable():
        raise SchemaRegistryError(
            f"The specified subject {subject[:100]!r} is not a valid subject: 1 to {_SUBJECT_LENGTH_MAX} printable"
            " characters are allowed",
            _INVALID_SUBJECT,
        )


def _version(version: Version) -> int | None:
    """Return the number of a version, or None for the latest one."""
    return None if version == "latest" or version == -1 else _number(version)


def _number(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**31:
        raise SchemaRegistryError(
            f"The specified version '{version}' is not a valid version id. Allowed values are between [1, 2^31-1] and"
            ' the string "latest"',
            _INVALID_VERSION,
        )
    return version


def _unregistered(type_: str, text: str, references: Iterable[tuple[str, str, int]]) -> Schema:
    schema = Schema(0, check_type(type_), text, tuple(Reference(*each) for each in references))
    for name, subject, version in schema.references:
        if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
            raise InvalidSchemaError("references: expected (name, subject, version), the version as a number")
    return schema
