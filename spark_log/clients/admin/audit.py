"""Records changes in the audit log: topic `__audit`, which only the cluster writes and clients read like any other.

    record_change(cluster, who="anna", action="/topics/{topic}/configs", target="topic events",
                  parameters={"retention.ms": "1000"}, outcome="succeeded", source="console")
    read_changes(cluster, target="topic events", limit=50)    # newest first

Records are kept for a year (retention.ms of the topic). Secrets are never recorded: parameters whose names contain a
word such as password or token, and passwords in addresses.
"""

import getpass
import hashlib
import json
import logging
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spark_log.cluster.cluster import Cluster
from spark_log.errors import redact
from spark_log.facts.metrics.recorded_reads import read_newest
from spark_log.facts.metrics.recorded_topics import AUDIT, Recorded
from spark_log.maintenance.recorded_appends import append_records

logger = logging.getLogger(__name__)

_SECRET = re.compile(
    r"passw|passphrase|passwd|secret|token|credential|authorization|cookie|csrf|session.?id|api.?key|private.?key"
    r"|access.?key|jaas",
    re.IGNORECASE,
)
_HIDDEN = "***"
_TEXT_MAX = 1_000
_PARAMETERS_MAX = 100
_TIMEOUT_MS = 2_000
"""Maximum time that the caller waits for a store that does not answer."""

_last_failure: str | None = None


@dataclass(frozen=True)
class RecordedChange:
    """A recorded change. `time_ms` counts from 1970 by the store's clock; `parameters` are JSON values."""

    time_ms: int
    who: str
    action: str
    target: str
    parameters: Mapping[str, Any]
    outcome: str
    error: str | None
    source: str


def record_change(
    cluster: Cluster,
    who: str,
    action: str,
    target: str,
    parameters: Mapping[str, Any],
    outcome: str,
    source: str,
    error: str | None = None,
) -> bool:
    """Record that user `who` did, or tried to do, `action` on `target`; return whether it was recorded.

    `outcome` is succeeded, failed or refused; `error` is its reason; `source` is the program, such as console. If the
    record cannot be appended, no error is raised, because the change itself has been made: the failure is logged,
    unless it equals the previous one.
    """
    fields = {
        "who": _text(who),
        "action": _text(action),
        "target": _text(target),
        "parameters": json.dumps(hide_secrets(parameters)),
        "outcome": _text(outcome),
        "error": None if error is None else _text(error),
        "source": _text(source),
    }
    try:
        append_records(cluster, AUDIT, [Recorded(0, _text(who), fields)], timeout_ms=_TIMEOUT_MS)
    except Exception as failure:
        _log_once(f"{type(failure).__name__}: {redact(str(failure))}")
        return False
    _log_once(None)
    return True


@contextmanager
def recorded(
    cluster: Cluster, who: str, action: str, target: str, parameters: Mapping[str, Any], source: str
) -> Iterator[None]:
    """Record the change that the `with` body makes, with its outcome. Errors are raised again."""
    try:
        yield
    except Exception as error:
        text = redact(str(error)) or type(error).__name__
        record_change(cluster, who, action, target, parameters, "failed", source, text)
        raise
    record_change(cluster, who, action, target, parameters, "succeeded", source)


def local_user() -> str:
    """Return `user@host` of this process: the audit's name for a user who opens the store directly."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return f"{os.getuid()}@{socket.gethostname()}"


def read_changes(
    cluster: Cluster,
    *,
    who: str | None = None,
    action: str | None = None,
    target: str | None = None,
    outcome: str | None = None,
    from_ms: int | None = None,
    to_ms: int | None = None,
    limit: int = 100,
) -> list[RecordedChange]:
    """Return the newest `limit` changes in [from_ms, to_ms) with all given values, newest first."""
    given: dict[str, str | None] = {"who": who, "action": action, "target": target, "outcome": outcome}
    filters = {name: value for name, value in given.items() if value is not None}
    names = ["who", "action", "target", "parameters", "outcome", "error", "source"]
    return [
        RecordedChange(**{**row, "parameters": json.loads(row["parameters"] or "{}")})
        for row in read_newest(cluster, AUDIT, 0, names, filters, from_ms, to_ms, limit)
    ]


def hide_secrets(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as they may be recorded: secrets are hidden, long texts and lists are cut. Pure."""
    return {_text(str(name)): _shown(str(name), value) for name, value in list(parameters.items())[:_PARAMETERS_MAX]}


def _shown(name: str, value: Any) -> Any:
    if _SECRET.search(name):
        return _HIDDEN
    if isinstance(value, Mapping):
        return hide_secrets(value)
    if isinstance(value, list | tuple):
        return [_shown(name, each) for each in value[:_PARAMETERS_MAX]]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _text(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))


def _text(text: str) -> str:
    """Return the text as valid UTF-8 of bounded length, without the passwords in addresses."""
    valid = redact(text).encode("utf-8", "replace").decode()
    if len(valid) <= _TEXT_MAX:
        return valid
    digest = hashlib.sha256(valid.encode()).hexdigest()
    return f"{valid[:_TEXT_MAX]}… ({len(valid)} characters, SHA-256 {digest})"


def _log_once(failure: str | None) -> None:
    global _last_failure
    known, _last_failure = _last_failure == failure, failure
    if failure is not None and not known:
        logger.warning("changes are not recorded in __audit: %s", failure)
