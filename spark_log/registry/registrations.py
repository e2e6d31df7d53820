"""Registers schemas and deletes versions, inside a transaction that has locked the registry."""

import sqlalchemy as sa

from spark_log.errors import IncompatibleSchemaError, SchemaRegistryError
from spark_log.registry import rows
from spark_log.registry.compatibility import DEFAULT_LEVEL, incompatibilities
from spark_log.registry.schema_types import schema_hash
from spark_log.registry.schemas import Reference, RegisteredSchema, Schema, SchemaText
from spark_log.registry.topic_schemas import FollowingTopic, following_topics, update_following_topics

_NOT_PERMITTED, _REFERENCE_EXISTS, _OTHER_ID = 42205, 42206, 42207
"""Error codes of Confluent's registry."""


def register(
    connection: sa.Connection, subject: str, type_: str, text: str, references: tuple[Reference, ...]
) -> RegisteredSchema:
    """Add the schema as the next version of the subject, unless the subject has it. Return the version that has it."""
    known = find(connection, subject, type_, text, references)
    if known is not None:
        return known
    _, hash_ = _accepted(connection, subject, type_, text, references)
    schema = rows.find_hash(connection, hash_) or rows.insert_schema(connection, type_, text, references, hash_)
    version = max((number for number, _ in rows.version_ids(connection, subject, deleted=True)), default=0) + 1
    rows.insert_version(connection, subject, version, schema.id)
    update_following_topics(connection, subject)
    return RegisteredSchema(subject, version, schema)


def topics_to_change(
    connection: sa.Connection, subject: str, type_: str, text: str, references: tuple[Reference, ...]
) -> list[FollowingTopic]:
    """Return the topics that would follow the schema as the next version. Raises the errors of `register`."""
    new, hash_ = _accepted(connection, subject, type_, text, references)
    schema = rows.find_hash(connection, hash_) or Schema(rows.next_id(connection), type_, text, references)
    return list(following_topics(connection, subject, (RegisteredSchema(subject, 0, schema), new)))


def _accepted(
    connection: sa.Connection, subject: str, type_: str, text: str, references: tuple[Reference, ...]
) -> tuple[SchemaText, str]:
    """Return the schema and its hash. Raises an error if it may not become the next version of the subject."""
    check_writable(connection, subject)
    if mode_of(connection, subject) == "IMPORT":
        raise SchemaRegistryError(f"Subject {subject} is in import mode: the schema needs an id", _NOT_PERMITTED)
    new = rows.text_of(connection, type_, text, references)
    hash_ = schema_hash(new, references)
    refused = problems_with(connection, subject, new, versions_to_compare(connection, subject))
    if refused:
        raise IncompatibleSchemaError(
            f"Schema being registered is incompatible with an earlier schema for subject {subject!r}:"
            f" {'; '.join(refused)}"
        )
    return new, hash_


def import_schema(
    connection: sa.Connection,
    subject: str,
    type_: str,
    text: str,
    references: tuple[Reference, ...],
    schema_id: int,
    version: int | None,
) -> RegisteredSchema:
    """Add a schema with the id that it has in another registry, without a check of compatibility."""
    if mode_of(connection, subject) != "IMPORT":
        raise SchemaRegistryError(f"Subject {subject} is not in import mode", _NOT_PERMITTED)
    hash_ = schema_hash(rows.text_of(connection, type_, text, references), references)
    known = rows.find_hash(connection, hash_)
    if (known is not None and known.id != schema_id) or (known is None and rows.has_id(connection, schema_id)):
        other = f"the schema has the id {known.id}" if known is not None else f"id {schema_id} is of another schema"
        raise SchemaRegistryError(f"Overwrite new schema with id {schema_id} is not permitted: {other}", _OTHER_ID)
    schema = known or rows.insert_schema(connection, type_, text, references, hash_, schema_id)
    every = dict(rows.version_ids(connection, subject, deleted=True))
    number = version or max(every, default=0) + 1
    if number not in every:
        rows.insert_version(connection, subject, number, schema.id)
        update_following_topics(connection, subject)
    elif every[number] != schema.id:
        raise SchemaRegistryError(f"Version {number} of subject {subject} is another schema", _NOT_PERMITTED)
    return RegisteredSchema(subject, number, schema)


def find(
    connection: sa.Connection,
    subject: str,
    type_: str,
    text: str,
    references: tuple[Reference, ...],
    *,
    deleted: bool = False,
) -> RegisteredSchema | None:
    """Return the latest version of the subject that has the schema, or None."""
    hash_ = schema_hash(rows.text_of(connection, type_, text, references), references)
    schema = rows.find_hash(connection, hash_)
    if schema is None:
        return None
    numbers = [number for number, id_ in rows.version_ids(connection, subject, deleted=deleted) if id_ == schema.id]
    return RegisteredSchema(subject, numbers[-1], schema) if numbers else None


def problems_with(
    connection: sa.Connection, subject: str, new: SchemaText, versions: list[RegisteredSchema]
) -> list[str]:
    """Return why the schema is not compatible with these versions, by the compatibility level of the subject."""
    return incompatibilities(*compared(connection, subject, new, versions))


def compared(
    connection: sa.Connection, subject: str, new: SchemaText, versions: list[RegisteredSchema]
) -> tuple[str, SchemaText, list[tuple[int, SchemaText]]]:
    """Return the arguments of `incompatibilities` for the schema and these versions."""
    texts = [(each.version, rows.text_of(connection, *each.schema[1:])) for each in versions]
    return _level_of(connection, subject), new, texts


def versions_to_compare(connection: sa.Connection, subject: str) -> list[RegisteredSchema]:
    """Return the versions with which the subject's level compares a new schema. Others, maybe large, are not read."""
    if _level_of(connection, subject).endswith("_TRANSITIVE"):
        return rows.versions_of(connection, subject)
    versions = rows.version_ids(connection, subject)
    return [rows.find_version(connection, subject, versions[-1][0])] if versions else []


def _level_of(connection: sa.Connection, subject: str) -> str:
    level = rows.config_of(connection, subject)[0] or rows.config_of(connection, rows.ALL_SUBJECTS)[0]
    return level or DEFAULT_LEVEL


def delete(connection: sa.Connection, subject: str, versions: list[int], permanent: bool) -> None:
    """Delete the versions. Raises SchemaRegistryError if other schemas refer to them."""
    referring = rows.referring_ids(connection, subject, versions)
    if referring:
        raise SchemaRegistryError(
            f"One or more references exist to subject {subject!r}: from schema {', '.join(map(str, referring))}",
            _REFERENCE_EXISTS,
        )
    if permanent:
        rows.delete_versions(connection, subject, versions)
    else:
        rows.set_deleted(connection, subject, versions)


def mode_of(connection: sa.Connection, subject: str) -> str | None:
    """Return the mode that applies to the subject. None means READWRITE."""
    return rows.config_of(connection, subject)[1] or rows.config_of(connection, rows.ALL_SUBJECTS)[1]


def check_writable(connection: sa.Connection, subject: str) -> None:
    if mode_of(connection, subject) == "READONLY":
        raise SchemaRegistryError(f"Subject {subject} is in read-only mode", _NOT_PERMITTED)
