"""Derives the definition of the typed columns of keys or values from the topic's configs. Pure."""

from dataclasses import dataclass, replace

import pyarrow as pa

from spark_log.config import PartConfigs
from spark_log.errors import IncompatibleSchemaError, InvalidConfigurationError, InvalidSchemaError
from spark_log.log.columns.column_limits import count_of
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.decoding import schema_fields
from spark_log.log.columns.envelope import DEBEZIUM, OP, SEQUENCE, row_fields, sequence_path, with_event
from spark_log.log.columns.field_paths import has_path, part_on_paths
from spark_log.log.columns.resets import columns_after
from spark_log.remembered import Remembered


@dataclass(frozen=True)
class SubjectSchemas:
    """The schemas of a subject of a schema registry, as source texts.

    `schema`: the version that the topic uses. `by_id`: all versions of the subject, as pairs of schema id and text.
    `follows`: whether the fields of all versions become columns, or only those of `schema`.
    """

    schema: str
    by_id: tuple[tuple[int, str], ...]
    follows: bool


def define(
    configs: PartConfigs,
    before: ColumnsDefinition | None,
    subject: SubjectSchemas | None = None,
    *,
    reset: bool = False,
) -> ColumnsDefinition | None:
    """Return the definition of a part (key or value) with these configs, or None if it has no columns and never had
    any.

    `before` is the definition so far. `subject` has the schemas of a registry's subject, if the config `schema` names
    one. A column is never removed and never changes its type, except that nested structs gain fields; with `reset`, a
    field that does not fit its column gets another column. Versions of the subject that do not fit the columns are left
    out. Raises InvalidConfigurationError, InvalidSchemaError and IncompatibleSchemaError.
    """
    source, format_, framing = configs.source, configs.format, configs.framing
    if subject is None and format_ in ("avro", "protobuf") and framing == "confluent":
        raise InvalidConfigurationError(
            f"{source}.framing=confluent: each {source} has the id of its schema, so {source}.schema has to name the"
            f" subject of a schema registry: registry:SUBJECT; {source}.framing=none takes {source}s of one schema"
        )
    if format_ == "bytes":
        return before and replace(before, format="bytes", schemas_by_id={})
    schema = configs.schema if subject is None else subject.schema
    if not schema:
        raise InvalidConfigurationError(f"{source}.format={format_} needs {source}.schema")
    fields = _selected(_version_fields(format_, schema, configs.envelope), configs)
    after = ColumnsDefinition(format_, framing, schema, fields, envelope=configs.envelope)
    if configs.envelope != "none":
        sequence = sequence_path(configs.envelope_sequence, format_, schema_fields(format_, schema))
        fields = with_event(fields)
        after = replace(after, fields=fields, sequence=sequence)
    if before is not None and before.envelope != configs.envelope:
        _check_change_of_envelope(before, reset=reset)
    if before is not None:
        columns = columns_after(before, fields, reset=reset)
        previous = before if columns.replaced != before.replaced else before.previous
        after = replace(
            after, fields=columns.fields, renamed=columns.renamed, replaced=columns.replaced, previous=previous
        )
    known: dict[int, str] = {}
    if subject is not None:  # the ids that were known stay: the topic has records with them
        known = {**(before.schemas_by_id if before and before.format == format_ else {}), **dict(subject.by_id)}
    by_id: dict[int, str] = {}
    for number, text in sorted(known.items(), reverse=True):
        try:
            own = _version_fields(format_, text, configs.envelope)
            both = after.fields if _has_all(after, own) else columns_after(after, own).fields
        except (IncompatibleSchemaError, InvalidSchemaError):
            continue
        by_id[number] = text
        if subject is not None and subject.follows and configs.columns == "all":
            after = replace(after, fields=both)
    return replace(after, schemas_by_id=by_id if framing == "confluent" else {})


def _without_envelope(format: str, schema: str, envelope: str) -> pa.StructType:
    """Return the columns of a schema, without those of the envelope."""
    fields = schema_fields(format, schema)
    return row_fields(format, fields) if envelope == DEBEZIUM else fields


_version_fields = Remembered(
    _without_envelope, lambda fields, _format, schema, _envelope: len(schema) + 300 * count_of(fields), 64 << 20
)
"""Remembered, because each new version of a subject needs the fields of all earlier versions."""


def _check_change_of_envelope(before: ColumnsDefinition, *, reset: bool) -> None:
    """Refuse a change if earlier schemas decode what the envelope refuses, or a column has one of its names."""
    names = {field.name for field in before.fields}
    if reset or before.previous is not None or (before.envelope == "none" and names & {OP, SEQUENCE}):
        raise InvalidConfigurationError(
            f"value.envelope: the topic has columns that were reset, or of the names {OP} and {SEQUENCE}: take another"
            " topic"
        )


def _has_all(definition: ColumnsDefinition, fields: pa.StructType) -> bool:
    """Return whether each field is a column already. This is the fast path for the hundreds of versions that a subject
    may have, most of which add no field.
    """
    if definition.renamed or definition.replaced:
        return False
    kinds = {field.name: field.type for field in definition.fields}
    return all(kinds.get(field.name) == field.type for field in fields)


def _selected(fields: pa.StructType, configs: PartConfigs) -> pa.StructType:
    """Return the fields that the config names, by their dotted paths, in the order of the schema."""
    if configs.columns == "all":
        return fields
    paths = [tuple(path.strip().split(".")) for path in configs.columns.split(",")]
    for path in paths:
        if not has_path(fields, path):
            raise InvalidConfigurationError(
                f"{configs.source}.columns: {configs.source}.schema has no field {'.'.join(path)!r}"
            )
    return part_on_paths(fields, paths)
