"""Decides by the compatibility level with which versions a new schema is compared, and in which direction. Pure."""

from collections.abc import Callable, Sequence

from spark_log.registry.schema_types import problems
from spark_log.registry.schemas import SchemaText

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
DEFAULT_LEVEL = "BACKWARD"


def incompatibilities(
    level: str,
    new: SchemaText,
    versions: Sequence[tuple[int, SchemaText]],
    compare: Callable[[SchemaText, SchemaText], list[str]] = problems,
) -> list[str]:
    """Return the reasons why `new` is not compatible with the versions of its subject. Empty if it is compatible.

    `versions` are pairs of version number and schema, in order.

    BACKWARD requires that the new schema can read records of the last version, FORWARD that the last version can read
    records of the new schema, and FULL both. With _TRANSITIVE the same holds for all versions.
    """
    direction, _, transitive = level.partition("_")
    faults: list[str] = []
    for version, old in versions if transitive else versions[-1:]:
        if direction in ("BACKWARD", "FULL"):
            faults += [f"version {version} cannot be read: {each}" for each in compare(new, old)]
        if direction in ("FORWARD", "FULL"):
            faults += [f"version {version} cannot read it: {each}" for each in compare(old, new)]
    return faults
