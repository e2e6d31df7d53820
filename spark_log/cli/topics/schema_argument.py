"""Parses a schema argument: a text, `@FILE` for a file, or `@FILE#MESSAGE` for a Protobuf descriptor set."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from spark_log.errors import needing
from spark_log.spark.jobs.options.arguments import parse_pairs, usage_error


class SchemaArgument(NamedTuple):
    """A schema. `format` is the format that the argument implies, if any."""

    text: str
    format: str | None = None


def parse_schema(argument: str, option: str) -> SchemaArgument:
    """Return the schema of an argument.

    Raises a usage error for a file that cannot be read, and InvalidConfigurationError if the Protobuf package is
    missing.
    """
    if not argument.startswith("@"):
        return SchemaArgument(argument)
    file, separator, message = argument[1:].rpartition("#")
    try:
        if not separator or Path(argument[1:]).is_file():
            return SchemaArgument(Path(argument[1:]).read_text().strip())
        descriptor_set = Path(file).read_bytes()
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(option, f"{argument!r} cannot be read: {error}") from None
    with needing("a descriptor set", "protobuf"):
        from spark_log.log.columns.protobuf.schema import protobuf_schema
    return SchemaArgument(protobuf_schema(message, descriptor_set), "protobuf")


def parse_configs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse `name=value` texts to topic configs. key.schema and value.schema may be `@FILE` or `@FILE#MESSAGE`."""
    configs = parse_pairs(texts, option)
    for name in {"key.schema", "value.schema"} & configs.keys():
        configs[name] = parse_schema(configs[name], option).text
    return configs
