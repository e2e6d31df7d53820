"""Topics whose value.schema is a subject of a schema registry: their typed columns follow from the subject's versions.

The texts of the schemas become part of the topic's definition, so that decoders need no registry. The cluster's own
registry changes the definitions in the transaction that registers a schema; an external one is asked (`external.py`).
"""

import re
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from spark_log.cluster.topics import Topic, find_topics, set_value_columns
from spark_log.config import TopicConfig
from spark_log.errors import IncompatibleSchemaError, InvalidConfigurationError, InvalidSchemaError
from spark_log.metadata.columns import TOPIC
from spark_log.registry import rows
from spark_log.registry.schemas import FORMATS, RegisteredSchema, SchemaText, column_source

if TYPE_CHECKING:
    from spark_log.columns.topic_columns import SubjectSchemas  # not at run time: it imports pyarrow

_PREFIX = "registry:"
_NAME = re.compile(r"registry:(?P<subject>.+?)(@(?P<version>[1-9][0-9]{0,9}))?(#(?P<message>[A-Za-z_][\w.]*))?")


class SubjectName(NamedTuple):
    """A value.schema `registry:SUBJECT[@VERSION][#MESSAGE]`. Without a version the topic follows the subject; the
    message is a full name in a Protobuf schema, empty for the first one of the file.
    """

    subject: str
    version: int | None
    message: str


def subject_name(value_schema: str) -> SubjectName | None:
    """None if value.schema is the text of a schema. InvalidConfigurationError."""
    if not value_schema.startswith(_PREFIX):
        return None
    found = _NAME.fullmatch(value_schema)
    if found is None:
        raise InvalidConfigurationError(f"value.schema: expected registry:SUBJECT[@VERSION], got {value_schema!r}")
    version = found["version"]
    return SubjectName(found["subject"], None if version is None else int(version), found["message"] or "")


def lock_subjects(connection: sa.Connection, config: TopicConfig) -> None:
    """Keep the subject of a topic with these configs as it is. To be called before the topic is locked."""
    if subject_name(config.value_schema) is not None:
        rows.lock_registry(connection)


def external_subject(config: TopicConfig) -> "SubjectSchemas | None":
    """The subject's schemas, if the configs name one of an external registry, which is asked for them.

    Raises SchemaRegistryUnavailableError, SchemaNotFoundError.
    """
    name = subject_name(config.value_schema)
    if name is None or not config.schema_registry_url or config.value_format == "bytes":
        return None
    from spark_log.registry.external import find_subject

    chosen, versions = find_subject(config.schema_registry_url, name.subject, name.version)
    return subject_schemas(config, name, chosen, versions)


def value_columns(
    connection: sa.Connection,
    config: TopicConfig,
    current: str | None,
    external: "SubjectSchemas | None" = None,
    *,
    reset: bool = False,
) -> str | None:
    """Column topic.value_columns of a topic with these configs; `current` is the text so far. `external`: the schemas
    of the subject of an external registry. `reset`: see `define`.

    Raises InvalidConfigurationError for a schema that cannot be read, IncompatibleSchemaError for one that does not fit
    the columns that the topic has, SchemaNotFoundError. If a subject is named, the registry has to be locked.
    """
    if config.value_format == "bytes" and current is None:
        return None
    name = subject_name(config.value_schema)
    subject = external
    if name is not None and external is None and config.value_format != "bytes":
        subject = _own_subject(connection, config, name)
    from spark_log.columns.topic_columns import define

    return define(
        config.value_format,
        config.value_schema,
        config.value_framing,
        config.value_columns,
        current,
        subject,
        reset=reset,
    )


def update_following_topics(connection: sa.Connection, subject: str) -> None:
    """Change the typed columns of the topics with this subject, which has a new version.

    IncompatibleSchemaError names the topic and the field if a topic that follows the subject cannot have the columns.
    """
    for topic in _topics_of_registry(connection):
        config = topic.config
        name = subject_name(config.value_schema)
        if name is None or name.subject != subject or config.schema_registry_url or config.value_format == "bytes":
            continue
        try:
            text = value_columns(connection, config, topic.value_columns)
        except (IncompatibleSchemaError, InvalidSchemaError, InvalidConfigurationError) as error:
            raise IncompatibleSchemaError(f"topic {topic.name} follows the subject {subject!r}: {error}") from error
        if text is not None and text != topic.value_columns:
            set_value_columns(connection, topic.topic_id, text)


def subject_schemas(
    config: TopicConfig, name: SubjectName, chosen: RegisteredSchema, versions: list[tuple[int, SchemaText]]
) -> "SubjectSchemas":
    """`versions`: all versions of the subject, as pairs of schema id and text; among them is the chosen one."""
    if FORMATS[chosen.schema.type] != config.value_format:
        raise InvalidConfigurationError(
            f"value.format={config.value_format}: version {chosen.version} of subject {name.subject!r} has the type"
            f" {chosen.schema.type}"
        )
    texts = {}
    for number, text in versions:
        try:
            texts[number] = column_source(text, name.message)
        except InvalidSchemaError:
            if number == chosen.id:
                raise
    texts = {number: texts[number] for number, text in versions if number in texts and text.type == chosen.schema.type}
    from spark_log.columns.topic_columns import SubjectSchemas

    return SubjectSchemas(texts[chosen.id], texts, follows=name.version is None)


def _own_subject(connection: sa.Connection, config: TopicConfig, name: SubjectName) -> "SubjectSchemas":
    chosen = rows.find_version(connection, name.subject, name.version)
    versions = [
        (each.id, rows.text_of(connection, *each.schema[1:]))
        for each in rows.versions_of(connection, name.subject, deleted=True)
    ]
    return subject_schemas(config, name, chosen, versions)


def _topics_of_registry(connection: sa.Connection) -> list[Topic]:
    """The topics with a subject of a registry, locked."""
    query = sa.select(TOPIC.name).where(TOPIC.configs.contains(f': "{_PREFIX}', autoescape=True))
    names = list(connection.execute(query).scalars())
    return list(find_topics(connection, names, lock=True).values()) if names else []
