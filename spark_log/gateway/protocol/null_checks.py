"""Finds nulls that Kafka's schema does not allow. kafka-python's classes decode them, but a broker refuses them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_NEVER_NULL = ("bool", "int8", "int16", "uint16", "int32", "uint32", "int64", "float64", "uuid", "bitfield")
"""Types without an encoding of null."""


@dataclass(frozen=True)
class NullCheck:
    """Finds the nulls of a message, or of a struct inside it, in one version."""

    required: Sequence[str]
    """The names of the fields that must not be null."""
    inner: Sequence[tuple[str, bool, "NullCheck"]]
    """For each field with structs: its name, whether it is an array, and the check of its structs."""

    @classmethod
    def of(cls, struct: Any, version: int) -> "NullCheck":
        """Create the check of a kafka-python StructField."""
        required, inner = [], []
        for field in struct.untagged_fields(version):
            is_struct = field.is_struct_array() or field.is_struct()
            may_be_null = is_struct or field.is_array() or field.type_str not in _NEVER_NULL
            if may_be_null and not field.nullable_for_version_q(version):
                required.append(field.name)
            if is_struct:
                check = cls.of(field, version)
                if check.required or check.inner:
                    inner.append((field.name, bool(field.is_array()), check))
        return cls(tuple(required), tuple(inner))

    def find(self, message: Any) -> str | None:
        """Return the name of a field that is null and must not be, or None."""
        for name in self.required:
            if getattr(message, name) is None:
                return name
        for name, is_array, check in self.inner:
            value = getattr(message, name)
            if value is None:
                continue
            for each in value if is_array else (value,):
                found = check.find(each)
                if found is not None:
                    return f"{name}.{found}"
        return None
