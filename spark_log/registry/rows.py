"""Reads and writes the rows of the schema registry."""

import json
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from spark_log.config.values import can_be_stored
from spark_log.errors import SchemaNotFoundError
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.sql_columns import SCHEMA, SUBJECT_CONFIG, SUBJECT_VERSION
from spark_log.registry.references import with_references
from spark_log.registry.schemas import Reference, RegisteredSchema, Schema, SchemaText

ALL_SUBJECTS = ""
"""The value of subject_config.subject in the row that applies to subjects without their own row."""

SUBJECT_NOT_FOUND, VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
"""Error codes of Confluent's registry."""

_ID_MAX = 2**31 - 1

_SCHEMA_COLUMNS = (SCHEMA.schema_id, SCHEMA.type, SCHEMA.text, SCHEMA.imports)


def lock_registry(connection: sa.Connection) -> None:
    """Lock the registry against other writers, and against changes of topics that follow a subject. Call it before a
    topic is locked.
    """
    insert_if_missing(connection, t.subject_config, {"subject": ALL_SUBJECTS, "compatibility": None, "mode": None})
    query = sa.select(SUBJECT_CONFIG.subject).where(SUBJECT_CONFIG.subject == ALL_SUBJECTS)
    connection.execute(query.with_for_update()).one()


def find_schema(connection: sa.Connection, schema_id: int) -> Schema | None:
    """Return the schema with this id if a subject has it, or had it before a soft deletion; otherwise None."""
    if not 0 < schema_id <= _ID_MAX:
        return None
    used = sa.exists().where(SUBJECT_VERSION.schema_id == SCHEMA.schema_id)
    row = connection.execute(sa.select(*_SCHEMA_COLUMNS).where(SCHEMA.schema_id == schema_id, used)).first()
    return None if row is None else _schema(*row)


def find_hash(connection: sa.Connection, hash_: str) -> Schema | None:
    """Return the schema with this hash, even if no subject has the schema any more, or None."""
    row = connection.execute(sa.select(*_SCHEMA_COLUMNS).where(SCHEMA.hash == hash_)).first()
    return None if row is None else _schema(*row)


def has_id(connection: sa.Connection, schema_id: int) -> bool:
    """Whether a schema has, or had, the id."""
    return connection.execute(sa.select(SCHEMA.schema_id).where(SCHEMA.schema_id == schema_id)).first() is not None


def insert_schema(connection: sa.Connection, new: Schema, hash_: str) -> Schema:
    """Insert a new schema. Its id must be free. A schema without an id gets `next_id`."""
    id_ = new.id or next_id(connection)
    row = {"schema_id": id_, "type": new.type, "text": new.text, "imports": json.dumps(new.references), "hash": hash_}
    connection.execute(t.schema.insert(), row)
    return new._replace(id=id_)


def next_id(connection: sa.Connection) -> int:
    """Return the id that a new schema gets: one more than the largest id whose successor is free.

    An import may have taken the last id, _ID_MAX. Then the largest id of all has no successor.
    """
    follower = t.schema.alias()
    taken = sa.exists().where(follower.c.schema_id == sa.cast(SCHEMA.schema_id, sa.BigInteger) + 1)
    query = sa.select(SCHEMA.schema_id).where(SCHEMA.schema_id < _ID_MAX, ~taken)
    last = connection.execute(query.order_by(SCHEMA.schema_id.desc()).limit(1)).scalar()
    return int(last or 0) + 1


def insert_version(connection: sa.Connection, subject: str, version: int, schema_id: int) -> None:
    row = {"subject": subject, "version": version, "schema_id": schema_id, "deleted": False}
    connection.execute(t.subject_version.insert(), row)


def subject_names(connection: sa.Connection, prefix: str = "", *, deleted: bool = False) -> list[str]:
    """Return the names of the subjects with this prefix, in order. With `deleted`, include softly deleted subjects."""
    if not can_be_stored(prefix):
        return []
    query = sa.select(SUBJECT_VERSION.subject).distinct().order_by(SUBJECT_VERSION.subject)
    query = query.where(SUBJECT_VERSION.subject.startswith(prefix, autoescape=True))
    return list(connection.execute(query if deleted else query.where(~SUBJECT_VERSION.deleted)).scalars())


def version_ids(connection: sa.Connection, subject: str, *, deleted: bool = False) -> list[tuple[int, int]]:
    """Return the numbers of the versions of a subject, in order, with their schema ids. With `deleted`, include softly
    deleted versions.
    """
    if not can_be_stored(subject):
        return []
    query = sa.select(SUBJECT_VERSION.version, SUBJECT_VERSION.schema_id).where(SUBJECT_VERSION.subject == subject)
    query = query.order_by(SUBJECT_VERSION.version)
    rows = connection.execute(query if deleted else query.where(~SUBJECT_VERSION.deleted))
    return [(row.version, row.schema_id) for row in rows]


def versions_of(
    connection: sa.Connection, subject: str, *, deleted: bool = False, only: int | None = None
) -> list[RegisteredSchema]:
    """Return the versions of a subject, in order, with their texts. With `deleted`, include softly deleted versions. If
    `only` is given, return this version only.
    """
    if not can_be_stored(subject):
        return []
    query = (
        sa.select(SUBJECT_VERSION.version, *_SCHEMA_COLUMNS)
        .join(t.schema, SCHEMA.schema_id == SUBJECT_VERSION.schema_id)
        .where(SUBJECT_VERSION.subject == subject)
        .order_by(SUBJECT_VERSION.version)
    )
    if only is not None:
        query = query.where(SUBJECT_VERSION.version == only)
    rows = connection.execute(query if deleted else query.where(~SUBJECT_VERSION.deleted))
    return [RegisteredSchema(subject, version, _schema(*row)) for version, *row in rows]


def find_version(
    connection: sa.Connection, subject: str, version: int | None, *, deleted: bool = False
) -> RegisteredSchema:
    """Return the version, or the latest one for None. Raises SchemaNotFoundError."""
    numbers = [number for number, _ in version_ids(connection, subject, deleted=deleted)]
    if not numbers:
        raise subject_not_found(subject)
    wanted = numbers[-1] if version is None else version
    if wanted not in numbers:
        raise SchemaNotFoundError(f"Version {version} not found.", VERSION_NOT_FOUND)
    [found] = versions_of(connection, subject, deleted=deleted, only=wanted)
    return found


def subjects_of(connection: sa.Connection, schema_id: int, *, deleted: bool = False) -> list[tuple[str, int]]:
    """Return the subjects and versions that have the schema. With `deleted`, include softly deleted versions."""
    query = sa.select(SUBJECT_VERSION.subject, SUBJECT_VERSION.version).where(SUBJECT_VERSION.schema_id == schema_id)
    query = query.order_by(SUBJECT_VERSION.subject, SUBJECT_VERSION.version)
    rows = connection.execute(query if deleted else query.where(~SUBJECT_VERSION.deleted))
    return [(row.subject, row.version) for row in rows]


def referring_ids(
    connection: sa.Connection,
    subject: str,
    versions: Iterable[int],
    *,
    deleted: bool = False,
    other_subjects: bool = False,
) -> list[int]:
    """Return the ids of the schemas that refer to one of the versions of `subject`.

    A schema counts only if a subject has it in a live version, with `deleted` also in a softly deleted one. With
    `other_subjects`, a version of `subject` itself does not count.
    """
    referenced = {(subject, version) for version in versions}
    used = sa.exists().where(SUBJECT_VERSION.schema_id == SCHEMA.schema_id)
    if not deleted:
        used = used.where(~SUBJECT_VERSION.deleted)
    if other_subjects:
        used = used.where(SUBJECT_VERSION.subject != subject)
    rows = connection.execute(sa.select(SCHEMA.schema_id, SCHEMA.imports).where(SCHEMA.imports != "[]", used))
    return sorted(
        row.schema_id for row in rows if any((of, version) in referenced for _, of, version in json.loads(row.imports))
    )


def set_deleted(connection: sa.Connection, subject: str, versions: Sequence[int]) -> None:
    where = (SUBJECT_VERSION.subject == subject) & SUBJECT_VERSION.version.in_(versions)
    connection.execute(t.subject_version.update().where(where).values(deleted=True))


def delete_versions(connection: sa.Connection, subject: str, versions: Sequence[int]) -> None:
    """Delete the rows of the versions. The schemas remain, so that their ids are never used for others."""
    where = (SUBJECT_VERSION.subject == subject) & SUBJECT_VERSION.version.in_(versions)
    connection.execute(t.subject_version.delete().where(where))


def config_of(connection: sa.Connection, subject: str) -> tuple[str | None, str | None]:
    """Return the compatibility level and the mode that are set for the subject itself. None means not set."""
    if not can_be_stored(subject):
        return None, None
    query = sa.select(SUBJECT_CONFIG.compatibility, SUBJECT_CONFIG.mode).where(SUBJECT_CONFIG.subject == subject)
    row = connection.execute(query).first()
    return (None, None) if row is None else (row.compatibility, row.mode)


def set_config(connection: sa.Connection, subject: str, **values: str | None) -> None:
    """Set `compatibility` or `mode` of a subject. With None, the value of all subjects applies."""
    insert_if_missing(connection, t.subject_config, {"subject": subject, "compatibility": None, "mode": None})
    connection.execute(t.subject_config.update().where(SUBJECT_CONFIG.subject == subject).values(**values))


def text_of(connection: sa.Connection, schema: Schema) -> SchemaText:
    """Return the schema with the texts of all schemas that it refers to, directly or not.

    Raises SchemaNotFoundError for an unknown reference, InvalidSchemaError for too many or too long schemas.
    """

    def find(reference: Reference) -> Schema:
        return find_version(connection, reference.subject, reference.version, deleted=True).schema

    return with_references(schema, find)


def subject_not_found(subject: str) -> SchemaNotFoundError:
    return SchemaNotFoundError(f"Subject '{subject}' not found.", SUBJECT_NOT_FOUND)


def _schema(schema_id: int, type_: str, text: str, imports: str) -> Schema:
    return Schema(schema_id, type_, text, tuple(Reference(*each) for each in json.loads(imports)))
