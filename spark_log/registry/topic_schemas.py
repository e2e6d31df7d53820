"""Topics whose key.schema or value.schema is a subject of a schema registry: their typed columns follow from the
subject's versions.

The texts of the schemas become part of the topic's definition, so that decoders need no registry. The cluster's own
registry changes the definitions in the transaction that registers a schema; an external one is asked (`external.py`).
"""

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from spark_log.cluster.topics import Topic, find_topics, set_typed_columns
from spark_log.config import SOURCES, PartConfigs, TopicConfig
from spark_log.errors import IncompatibleSchemaError, InvalidConfigurationError, InvalidSchemaError
from spark_log.metadata.columns import TOPIC
from spark_log.registry import rows
from spark_log.registry.schema_types import column_source
from spark_log.registry.schemas import FORMATS, RegisteredSchema, SchemaText

if TYPE_CHECKING:
    from spark_log.columns.definitions import SubjectSchemas  # not at run time: it imports pyarrow

TYPED_COLUMNS_CHARACTERS_MAX = 16 << 20
"""Of column topic.typed_columns, when a new version of a subject changes it: with framing confluent it has the texts of
all versions, and every process that uses the topic reads it.
"""

_PREFIX = "registry:"
_NAME = re.compile(r"registry:(?P<subject>.+?)(@(?P<version>[1-9][0-9]{0,9}))?(#(?P<message>[A-Za-z_][\w.]*))?")


class SubjectName(NamedTuple):
    """A schema `registry:SUBJECT[@VERSION][#MESSAGE]`. Without a version the topic follows the subject; the
    message is a full name in a Protobuf schema, empty for the first one of the file.
    """

    subject: str
    version: int | None
    message: str


def subject_name(part: PartConfigs) -> SubjectName | None:
    """None if the part has bytes, or its schema is the text of a schema. InvalidConfigurationError."""
    if part.format == "bytes" or not part.schema.startswith(_PREFIX):
        return None
    found = _NAME.fullmatch(part.schema)
    if found is None:
        raise InvalidConfigurationError(
            f"{part.source}.schema: expected registry:SUBJECT[@VERSION], got {part.schema!r}"
        )
    version = found["version"]
    return SubjectName(found["subject"], None if version is None else int(version), found["message"] or "")


def parts_changed_by(configs: Collection[str]) -> tuple[str, ...]:
    """The parts, key or value, whose typed columns follow from one of these configs."""
    both = "schema.registry.url" in configs
    return tuple(
        source
        for source in SOURCES
        if both or not {f"{source}.{name}" for name in ("columns", "format", "framing", "schema")}.isdisjoint(configs)
    )


def lock_subjects(connection: sa.Connection, config: TopicConfig) -> None:
    """Keep the subjects of a topic with these configs as they are. To be called before the topic is locked."""
    if any(subject_name(part) is not None for part in config.parts):
        rows.lock_registry(connection)


def asks_registry(config: TopicConfig, sources: Collection[str] = SOURCES) -> bool:
    """Whether these parts name subjects of an external registry, which has to be asked for their schemas."""
    return bool(config.schema_registry_url) and any(
        part.source in sources and subject_name(part) is not None for part in config.parts
    )


def external_subjects(config: TopicConfig, sources: Collection[str] = SOURCES) -> "dict[str, SubjectSchemas]":
    """The schemas of the subjects of these parts, if the configs name some of an external registry, which is asked for
    them.

    Raises SchemaRegistryUnavailableError, SchemaNotFoundError.
    """
    if not asks_registry(config, sources):
        return {}
    from spark_log.registry.external import find_subject

    found = {}
    for part in config.parts:
        if part.source in sources and (name := subject_name(part)) is not None:
            chosen, versions = find_subject(config.schema_registry_url, name.subject, name.version)
            found[part.source] = subject_schemas(part, name, chosen, versions)
    return found


def typed_columns(
    connection: sa.Connection,
    config: TopicConfig,
    current: str | None,
    external: "Mapping[str, SubjectSchemas] | None" = None,
    sources: Collection[str] = SOURCES,
    *,
    reset: bool = False,
) -> str | None:
    """Column topic.typed_columns of a topic with these configs; `current` is the text so far. Only the columns of the
    parts `sources` change. `external`: the schemas of the subjects of an external registry. `reset`: see `define`.

    Raises InvalidConfigurationError for a schema that cannot be read, IncompatibleSchemaError for one that does not fit
    the columns that the topic has, SchemaNotFoundError. If a subject is named, the registry has to be locked.
    """
    if not sources or (current is None and all(part.format == "bytes" for part in config.parts)):
        return current
    from spark_log.columns.definitions import define
    from spark_log.columns.topic_columns import changed, from_text, to_text

    before = None if current is None else from_text(current)
    definitions = {}
    for part in config.parts:
        known = None if before is None else before.of(part.source)
        if part.source in sources:
            subject = (external or {}).get(part.source) or _own_subject(connection, part)
            known = define(part, known, subject, reset=reset)
        definitions[part.source] = known
    after = changed(before, **definitions)
    return None if after is None else to_text(after)


def update_following_topics(connection: sa.Connection, subject: str) -> None:
    """Change the typed columns of the topics with this subject, which has a new version.

    IncompatibleSchemaError names the topic and the field if a topic that follows the subject cannot have the columns,
    or if their text would be too long.
    """
    for topic in _topics_of_registry(connection):
        config = topic.config
        names = {} if config.schema_registry_url else {part.source: subject_name(part) for part in config.parts}
        following = [source for source, name in names.items() if name is not None and name.subject == subject]
        try:
            text = typed_columns(connection, config, topic.typed_columns, sources=following)
        except (IncompatibleSchemaError, InvalidSchemaError, InvalidConfigurationError) as error:
            raise IncompatibleSchemaError(f"topic {topic.name} follows the subject {subject!r}: {error}") from error
        if text is None or text == topic.typed_columns:
            continue
        if len(text) > max(TYPED_COLUMNS_CHARACTERS_MAX, len(topic.typed_columns or "")):
            raise IncompatibleSchemaError(
                f"topic {topic.name} follows the subject {subject!r}: its typed columns, with the texts of the"
                f" versions, would have more than {TYPED_COLUMNS_CHARACTERS_MAX:,} characters"
            )
        set_typed_columns(connection, topic.topic_id, text)


def subject_schemas(
    part: PartConfigs, name: SubjectName, chosen: RegisteredSchema, versions: list[tuple[int, SchemaText]]
) -> "SubjectSchemas":
    """`versions`: all versions of the subject, as pairs of schema id and text; among them is the chosen one."""
    if FORMATS[chosen.schema.type] != part.format:
        raise InvalidConfigurationError(
            f"{part.source}.format={part.format}: version {chosen.version} of subject {name.subject!r} has the type"
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
    from spark_log.columns.definitions import SubjectSchemas

    return SubjectSchemas(texts[chosen.id], texts, follows=name.version is None)


def _own_subject(connection: sa.Connection, part: PartConfigs) -> "SubjectSchemas | None":
    name = subject_name(part)
    if name is None:
        return None
    chosen = rows.find_version(connection, name.subject, name.version)
    versions = [
        (each.id, rows.text_of(connection, *each.schema[1:]))
        for each in rows.versions_of(connection, name.subject, deleted=True)
    ]
    return subject_schemas(part, name, chosen, versions)


def _topics_of_registry(connection: sa.Connection) -> list[Topic]:
    """The topics with a subject of a registry, locked."""
    query = sa.select(TOPIC.name).where(TOPIC.configs.contains(f': "{_PREFIX}', autoescape=True))
    names = list(connection.execute(query).scalars())
    return list(find_topics(connection, names, lock=True).values()) if names else []
