"""Defines the results of the doctor's checks."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The severity of a finding. A `note` is a choice or a state that may be intended. A `warning` becomes an error if
    it is not corrected, or costs time or space now. With an `error`, records cannot be written, read or kept safely.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    @property
    def needs_action(self) -> bool:
        return self in (Severity.WARNING, Severity.ERROR)


@dataclass(frozen=True)
class Finding:
    """The result of a check, with numbers. `remedy` says what to do, and is empty if there is nothing to do."""

    check: str
    severity: Severity
    seen: str
    remedy: str = ""


def ok(check: str, seen: str) -> Finding:
    return Finding(check, Severity.OK, seen)


def note(check: str, seen: str, remedy: str) -> Finding:
    return Finding(check, Severity.NOTE, seen, remedy)


def warning(check: str, seen: str, remedy: str) -> Finding:
    return Finding(check, Severity.WARNING, seen, remedy)


def error(check: str, seen: str, remedy: str) -> Finding:
    return Finding(check, Severity.ERROR, seen, remedy)


def or_ok(findings: Iterable[Finding], check: str, seen: str) -> list[Finding]:
    """Return the findings, or an ok finding if there are none."""
    return list(findings) or [ok(check, seen)]
