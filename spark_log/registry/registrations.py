"""Registers schemas and deletes versions, inside a transaction that has locked the registry."""

from time import thread_time
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.errors import IncompatibleSchemaError, InvalidSchemaError, SchemaRegistryError
from spark_log.registry import rows
from spark_log.registry.compatibility import DEFAULT_LEVEL, incompatibilities
from spark_log.registry.schema_types import schema_hash
from spark_log.registry.schemas import RegisteredSchema, Schema, SchemaText
from spark_log.registry.topic_schemas import FollowingTopic, following_topics, update_following_topics

_NOT_PERMITTED, _REFERENCE_EXISTS, _OTHER_ID = 42205, 42206, 42207
"""Confluent's error codes."""
_COMPARED_CHARACTERS_MAX, _COMPARE_S_MAX = 16 << 20, 30.0
"""The limits of `problems_with`: the total length of the versions, with the imports of each, and the CPU time. One
comparison may take a second.
"""


class Accepted(NamedTuple):
    """A schema that may become the next version of a subject, as long as the subject has this `basis`."""

    text: SchemaText
    hash: str
    basis: tuple[str, list[tuple[int, int]]]
    """The compatibility level, and the versions that the schema was compared with: (number, schema id)."""


def register(connection: sa.Connection, subject: str, new: Schema, accepted: Accepted) -> RegisteredSchema | None:
    """Add the schema as the next version of the subject, unless a version has it already. Return the version.

    `accepted` is the result of an earlier `accept`, so that nothing is parsed or compared in this transaction, for
    which other writers wait. Return None if the subject or an import has changed since then. Raises InvalidSchemaError,
    IncompatibleSchemaError, SchemaNotFoundError (a reference) and SchemaRegistryError (the mode).
    """
    if accepted.text != rows.text_of(connection, new):
        return None
    registered = _find_hash(connection, subject, accepted.hash)
    if registered is not None:
        return registered
    _check_takes_new(connection, subject)
    if accepted.basis != _basis(connection, subject):
        return None
    schema = rows.find_hash(connection, accepted.hash) or rows.insert_schema(connection, new, accepted.hash)
    version = max((number for number, _ in rows.version_ids(connection, subject, deleted=True)), default=0) + 1
    rows.insert_version(connection, subject, version, schema.id)
    update_following_topics(connection, subject)
    return RegisteredSchema(subject, version, schema)


def topics_to_change(
    connection: sa.Connection, subject: str, new: Schema, accepted: Accepted
) -> list[FollowingTopic]:  # fmt: skip
    """Return the topics that use this subject, with the schemas that they would have if `new` were its next version.
    Raises the errors of `register`.
    """
    schema = rows.find_hash(connection, accepted.hash) or new._replace(id=rows.next_id(connection))
    return list(following_topics(connection, subject, (RegisteredSchema(subject, 0, schema), accepted.text)))


def accept(connection: sa.Connection, subject: str, new: Schema) -> Accepted:
    """Check that the schema can become the next version of the subject. The check may take long.

    Raises InvalidSchemaError, IncompatibleSchemaError, SchemaNotFoundError (a reference) and SchemaRegistryError (the
    mode).
    """
    _check_takes_new(connection, subject)
    text = rows.text_of(connection, new)
    hash_ = schema_hash(text, new.references)
    basis = _basis(connection, subject)
    refused = problems_with(connection, subject, text, basis[0], [number for number, _ in basis[1]])
    if refused:
        raise IncompatibleSchemaError(
            f"Schema being registered is incompatible with an earlier schema for subject {subject!r}:"
            f" {'; '.join(refused)}"
        )
    return Accepted(text, hash_, basis)


def import_schema(
    connection: sa.Connection, subject: str, new: Schema, version: int | None, hashed: tuple[SchemaText, str]
) -> RegisteredSchema:
    """Add a schema with the id that another registry gave it, without a check of its compatibility.

    `version` is its version number, or None for the next one. `hashed` are the schema with its imports and its hash,
    computed before the transaction. Raises SchemaRegistryError if the subject is not in mode IMPORT, or the id or the
    version belongs to another schema.
    """
    if mode_of(connection, subject) != "IMPORT":
        raise SchemaRegistryError(f"Subject {subject} is not in import mode", _NOT_PERMITTED)
    text = rows.text_of(connection, new)
    hash_ = hashed[1] if text == hashed[0] else schema_hash(text, new.references)
    known = rows.find_hash(connection, hash_)
    if (known is not None and known.id != new.id) or (known is None and rows.has_id(connection, new.id)):
        other = f"the schema has the id {known.id}" if known is not None else f"id {new.id} is of another schema"
        raise SchemaRegistryError(f"Overwrite new schema with id {new.id} is not permitted: {other}", _OTHER_ID)
    schema = known or rows.insert_schema(connection, new, hash_)
    every = dict(rows.version_ids(connection, subject, deleted=True))
    number = version or max(every, default=0) + 1
    if number not in every:
        rows.insert_version(connection, subject, number, schema.id)
        update_following_topics(connection, subject)
    elif every[number] != schema.id:
        raise SchemaRegistryError(f"Version {number} of subject {subject} is another schema", _NOT_PERMITTED)
    return RegisteredSchema(subject, number, schema)


def find(
    connection: sa.Connection, subject: str, schema: Schema, *, deleted: bool = False
) -> RegisteredSchema | None:  # fmt: skip
    """Return the latest version of the subject that has the schema, or None."""
    hash_ = schema_hash(rows.text_of(connection, schema), schema.references)
    return _find_hash(connection, subject, hash_, deleted=deleted)


def _find_hash(
    connection: sa.Connection, subject: str, hash_: str, *, deleted: bool = False
) -> RegisteredSchema | None:  # fmt: skip
    schema = rows.find_hash(connection, hash_)
    if schema is None:
        return None
    numbers = [number for number, id_ in rows.version_ids(connection, subject, deleted=deleted) if id_ == schema.id]
    return RegisteredSchema(subject, numbers[-1], schema) if numbers else None


def problems_with(
    connection: sa.Connection, subject: str, new: SchemaText, level: str, versions: list[int]
) -> list[str]:  # fmt: skip
    """Return the reasons why the schema is not compatible with these versions.

    The texts of the versions are read one after the other, because all together may be many MiB. Raises
    InvalidSchemaError if the versions are so many, or so large, that the comparison takes too long.
    """
    reasons: list[str] = []
    characters, end_s = 0, thread_time() + _COMPARE_S_MAX
    for number in versions:
        old = rows.text_of(connection, rows.find_version(connection, subject, number).schema)
        characters += len(old.text) + sum(len(text) for _, text in old.imports)
        if characters > _COMPARED_CHARACTERS_MAX or thread_time() > end_s:
            raise InvalidSchemaError(
                f"the versions of subject {subject!r} are too many, or too large, to be compared with all of them: set"
                f" a compatibility level that is not transitive"
            )
        reasons += incompatibilities(level, new, number, old)
    return reasons


def _basis(connection: sa.Connection, subject: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the compatibility level of the subject, and the versions with which it compares a new schema, as pairs of
    number and schema id.
    """
    level, versions = level_of(connection, subject), rows.version_ids(connection, subject)
    return level, versions if level.endswith("_TRANSITIVE") else versions[-1:]


def versions_to_compare(connection: sa.Connection, subject: str) -> list[int]:
    """Return the numbers of the versions with which the level of the subject compares a new schema."""
    return [number for number, _ in _basis(connection, subject)[1]]


def level_of(connection: sa.Connection, subject: str) -> str:
    """Return the compatibility level that applies to the subject."""
    level = rows.config_of(connection, subject)[0] or rows.config_of(connection, rows.ALL_SUBJECTS)[0]
    return level or DEFAULT_LEVEL


def delete(
    connection: sa.Connection, subject: str, versions: list[int], permanent: bool, *, whole_subject: bool = False
) -> None:
    """Delete the versions, softly unless `permanent`. Raises SchemaRegistryError if other schemas refer to them.

    A softly deleted schema prevents a permanent deletion of its imports, as it can still be read. In the deletion of a
    whole subject, its own schemas do not count.
    """
    referring = rows.referring_ids(connection, subject, versions, deleted=permanent, other_subjects=whole_subject)
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


def _check_takes_new(connection: sa.Connection, subject: str) -> None:
    """Raise SchemaRegistryError if the subject accepts no new schemas (READONLY), or only those with an id (IMPORT)."""
    check_writable(connection, subject)
    if mode_of(connection, subject) == "IMPORT":
        raise SchemaRegistryError(f"Subject {subject} is in import mode: the schema needs an id", _NOT_PERMITTED)


def check_writable(connection: sa.Connection, subject: str) -> None:
    """Raise SchemaRegistryError if the subject is in mode READONLY."""
    if mode_of(connection, subject) == "READONLY":
        raise SchemaRegistryError(f"Subject {subject} is in read-only mode", _NOT_PERMITTED)
