"""Derives the typed columns of topics whose key.schema or value.schema is a subject of a schema registry.

The texts of the schemas become part of the topic's definition, so that decoders need no registry. The cluster's own
registry changes the definitions in the transaction that registers a schema. An external registry is read over HTTP
(`external.py`).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from spark_log.cluster.topics import Topic, find_topics, set_typed_columns
from spark_log.config import SOURCES, PartConfigs, TopicConfig
from spark_log.errors import (
    IncompatibleSchemaError,
    InvalidConfigurationError,
    InvalidSchemaError,
    SchemaNotFoundError,
    redact,
)
from spark_log.metadata.sql_columns import TOPIC
from spark_log.registry import rows
from spark_log.registry.schema_types import column_source
from spark_log.registry.schemas import FORMATS, RegisteredSchema, SchemaText
from spark_log.remembered import Remembered

if TYPE_CHECKING:
    from spark_log.log.columns.definitions import SubjectSchemas  # not at run time: it imports pyarrow

TYPED_COLUMNS_CHARACTERS_MAX = 16 << 20
"""The maximum length of column topic.typed_columns after a change. Every process that uses the topic reads the column,
which has the paths of all fields, and with framing confluent the texts of all versions of a subject.
"""

_PREFIX = "registry:"
_NAME = re.compile(r"registry:(?P<subject>.+?)(@(?P<version>[1-9][0-9]{0,9}))?(#(?P<message>[A-Za-z_][\w.]*))?")


class SubjectName(NamedTuple):
    """The parts of `registry:SUBJECT[@VERSION][#MESSAGE]`. Without a version the topic follows the subject. The message
    is a full name in a Protobuf schema, or empty for the first one of the file.
    """

    subject: str
    version: int | None
    message: str


def subject_name(part: PartConfigs) -> SubjectName | None:
    """Return the subject of a part, or None if its format is bytes, or its schema is not `registry:…`.

    Raises InvalidConfigurationError if the name is not valid.
    """
    if part.format == "bytes" or not part.schema.startswith(_PREFIX):
        return None
    match = _NAME.fullmatch(part.schema)
    if match is None:
        raise InvalidConfigurationError(
            f"{part.source}.schema: expected registry:SUBJECT[@VERSION], got {part.schema!r}"
        )
    version = match["version"]
    return SubjectName(match["subject"], None if version is None else int(version), match["message"] or "")


def parts_changed_by(configs: Collection[str]) -> tuple[str, ...]:
    """Return the parts ("key", "value") whose typed columns depend on one of these configs."""
    both = "schema.registry.url" in configs
    names = ("columns", "envelope", "envelope.sequence", "format", "framing", "schema")
    return tuple(source for source in SOURCES if both or not {f"{source}.{name}" for name in names}.isdisjoint(configs))


def lock_subjects(connection: sa.Connection, config: TopicConfig) -> None:
    """Lock the registry if a topic with these configs has a subject. The registry must be locked before the topic."""
    if any(subject_name(part) is not None for part in config.parts):
        rows.lock_registry(connection)


def asks_registry(config: TopicConfig, sources: Collection[str] = SOURCES) -> bool:
    """Whether one of these parts names a subject of an external registry, from which its schemas must be read."""
    return bool(config.schema_registry_url) and any(
        part.source in sources and subject_name(part) is not None for part in config.parts
    )


def check_registry_url(config: TopicConfig, allowed: str) -> None:
    """Raise InvalidConfigurationError if schema.registry.url names an address that is not among `allowed`, the setting
    schema.registry.urls.allowed.
    """
    if allowed.strip() == "*" or not config.schema_registry_url:
        return
    urls = {url.strip().rstrip("/") for url in allowed.split(",")}
    for url in config.schema_registry_url.split(","):
        if url.strip().rstrip("/") not in urls:
            raise InvalidConfigurationError(
                f"schema.registry.url: {redact(url.strip())!r} is not among schema.registry.urls.allowed of the cluster"
            )


def external_subjects(config: TopicConfig, sources: Collection[str] = SOURCES) -> "dict[str, SubjectSchemas]":
    """Read the schemas of the subjects of these parts from their external registry, if the configs name one.

    Returns them by part ("key", "value"). Raises the errors of `external.find_subject` and of `subject_schemas`.
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
    """Return the new value of column topic.typed_columns of a topic with these configs. `current` is the old value.

    Only the columns of the parts `sources` change. `external` has the schemas of the subjects of an external registry.
    `reset` is passed to `define`. If a part names a subject of the cluster's registry, the registry must be locked.

    Raises InvalidConfigurationError and InvalidSchemaError for a schema that cannot be read or is too large,
    IncompatibleSchemaError for one that does not fit the columns of the topic, and SchemaNotFoundError.
    """
    if sources and config.value_envelope != "none" and config.value_format not in ("json", "avro"):
        raise InvalidConfigurationError(f"value.envelope={config.value_envelope} needs value.format=json or avro")
    if not sources or (current is None and all(part.format == "bytes" for part in config.parts)):
        return current
    subjects = [
        (part.source, (external or {}).get(part.source) or _own_subject(connection, part))
        for part in config.parts
        if part.source in sources
    ]
    return _limited(_columns_text(config.parts, current, tuple(subjects), reset), current)


def _limited(text: str | None, current: str | None) -> str | None:
    """Return the text. Raise InvalidSchemaError if it is too long, and longer than the current one."""
    if text is not None and len(text) > max(TYPED_COLUMNS_CHARACTERS_MAX, len(current or "")):
        raise InvalidSchemaError(
            "schema: the typed columns, with the paths of the fields and the texts of the versions, would have more"
            f" than {TYPED_COLUMNS_CHARACTERS_MAX:,} characters: use fewer fields, shorter names or framing none"
        )
    return text


def _derived(
    parts: tuple[PartConfigs, ...],
    current: str | None,
    subjects: "tuple[tuple[str, SubjectSchemas | None], ...]",
    reset: bool,
) -> str | None:
    """Return the value for `typed_columns`. `subjects` has a pair for each part that changes."""
    from spark_log.log.columns.definitions import define
    from spark_log.log.columns.topic_columns import changed, from_text, to_text

    before = None if current is None else from_text(current)
    definitions = {}
    for part in parts:
        known = None if before is None else before.of(part.source)
        for source, subject in subjects:
            if source == part.source:
                known = define(part, known, subject, reset=reset)
        definitions[part.source] = known
    after = changed(before, **definitions)
    return None if after is None else to_text(after)


def _characters(
    text: str | None,
    parts: tuple[PartConfigs, ...],
    current: str | None,
    subjects: "tuple[tuple[str, SubjectSchemas | None], ...]",
    _reset: bool,
) -> int:
    by_id = [pair for _, subject in subjects if subject is not None for pair in subject.by_id]
    texts = [text or "", current or "", *(part.schema for part in parts), *(each for _, each in by_id)]
    return 200 + sum(map(len, texts))


_columns_text = Remembered(_derived, _characters, 128 << 20)
"""Remembered, because the columns of large schemas may take long, and a transaction must not wait for that."""


class FollowingTopic(NamedTuple):
    """A topic that uses a subject, and the schemas of the parts that use it."""

    topic: Topic
    subject: str
    subjects: "tuple[tuple[str, SubjectSchemas | None], ...]"

    def typed_columns(self) -> str | None:
        """Return the new value of column topic.typed_columns.

        Raises IncompatibleSchemaError, which names the topic and the field, if the topic cannot have the columns, or
        their text would be too long.
        """
        current = self.topic.typed_columns
        with _errors_of(self.topic, self.subject):
            return _limited(_columns_text(self.topic.config.parts, current, self.subjects, False), current)


def following_topics(
    connection: sa.Connection,
    subject: str,
    new: tuple[RegisteredSchema, SchemaText] | None = None,
    *,
    lock: bool = False,
) -> Iterator[FollowingTopic]:
    """Yield the topics of the cluster's registry that use this subject. `lock` locks the rows of topics for update.

    `new` is the next version of the subject, which is not stored yet. Raises IncompatibleSchemaError, which names the
    topic, if a topic cannot use the schemas, or the version that it names was deleted.
    """
    by_key: dict[tuple[str, ...], SubjectSchemas | None] = {}  # texts of many MiB may be used by hundreds of topics

    def subject_of(part: PartConfigs) -> "SubjectSchemas | None":
        key = (part.source, part.format, part.schema)
        if key not in by_key:
            by_key[key] = _own_subject(connection, part, new)
        return by_key[key]

    for topic in _topics_of_registry(connection, lock):
        with _errors_of(topic, subject):
            names = {} if topic.config.schema_registry_url else {p: subject_name(p) for p in topic.config.parts}
            found = [part for part, name in names.items() if name is not None and name.subject == subject]
            subjects = tuple((part.source, subject_of(part)) for part in found)
        if subjects:
            yield FollowingTopic(topic, subject, subjects)


def update_following_topics(connection: sa.Connection, subject: str) -> None:
    """Change the typed columns of the topics that use this subject, which has a new version.

    Raises the errors of `following_topics` and of `FollowingTopic.typed_columns`.
    """
    for each in following_topics(connection, subject, lock=True):
        text = each.typed_columns()
        if text is not None and text != each.topic.typed_columns:
            set_typed_columns(connection, each.topic.topic_id, text)


@contextmanager
def _errors_of(topic: Topic, subject: str) -> Iterator[None]:
    try:
        yield
    except (IncompatibleSchemaError, InvalidSchemaError, InvalidConfigurationError, SchemaNotFoundError) as error:
        raise IncompatibleSchemaError(f"topic {topic.name} follows the subject {subject!r}: {error}") from error


def subject_schemas(
    part: PartConfigs, name: SubjectName, chosen: RegisteredSchema, versions: list[tuple[int, SchemaText]]
) -> "SubjectSchemas":
    """Return the schemas of a part with this subject.

    `versions` are all versions of the subject, including `chosen`, as pairs of schema id and text. Versions that have
    another type, or from which no columns can be made, are left out. Raises InvalidConfigurationError if the type of
    `chosen` is not that of the part's format, and InvalidSchemaError if no columns can be made from it.
    """
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
    from spark_log.log.columns.definitions import SubjectSchemas

    return SubjectSchemas(texts[chosen.id], tuple(texts.items()), follows=name.version is None)


def _own_subject(
    connection: sa.Connection, part: PartConfigs, new: tuple[RegisteredSchema, SchemaText] | None = None
) -> "SubjectSchemas | None":
    name = subject_name(part)
    if name is None:
        return None
    chosen = (
        new[0]
        if new is not None and name.version is None
        else rows.find_version(connection, name.subject, name.version, deleted=name.version is not None)
    )
    versions = [
        (each.id, rows.text_of(connection, each.schema))
        for each in rows.versions_of(connection, name.subject, deleted=True)
    ]
    if new is not None:
        versions.append((new[0].id, new[1]))
    return subject_schemas(part, name, chosen, versions)


def _topics_of_registry(connection: sa.Connection, lock: bool) -> list[Topic]:
    """Return the topics that use a subject of any registry."""
    query = sa.select(TOPIC.name).where(TOPIC.configs.contains(f': "{_PREFIX}', autoescape=True))
    names = list(connection.execute(query).scalars())
    return list(find_topics(connection, names, lock=lock).values()) if names else []
