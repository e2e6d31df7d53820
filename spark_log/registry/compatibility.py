"""Decides by the compatibility level in which direction a new schema is compared with a version. Pure."""

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


def incompatibilities(level: str, new: SchemaText, version: int, old: SchemaText) -> list[str]:
    """Return the reasons why `new` is not compatible with a version of its subject. Empty if it is compatible.

    BACKWARD requires that the new schema can read records of the version, FORWARD that the version can read records of
    the new schema, and FULL both.
    """
    direction = level.removesuffix("_TRANSITIVE")
    faults: list[str] = []
    if direction in ("BACKWARD", "FULL"):
        faults += [f"version {version} cannot be read: {each}" for each in problems(new, old)]
    if direction in ("FORWARD", "FULL"):
        faults += [f"version {version} cannot read it: {each}" for each in problems(old, new)]
    return faults
