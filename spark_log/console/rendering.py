"""Renders results as pages and as JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from spark_log import __version__
from spark_log.console.paths import url
from spark_log.text import bytes_of, count_of, duration_of, is_unlimited, time_of


def environment() -> jinja2.Environment:
    """Return Jinja's environment, which escapes every value, and raises an error for an unknown name."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("spark_log.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["url"] = url
    made.globals["version"] = __version__
    made.filters.update(
        number=number, config=config, bytes=bytes_of, counted=count_of, duration=duration_of, seconds=seconds, time=time
    )
    return made


def config(value: str, unit: str = "") -> str:
    """Return the value of a topic config with its unit: `3600000 ms`, `unlimited`, or `(empty)` for empty text."""
    if is_unlimited(value):
        return "unlimited"
    return f"{value} {unit}".strip() if value else "(empty)"


def number(value: float | None, digits: int = 0) -> str:
    """Return a number such as `1,234` or `0.25`, or an empty text for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def time(wall_ms: int) -> Markup:
    """Return a time in ISO format and UTC that stays on one line."""
    return Markup("<time>{}</time>").format(time_of(wall_ms))


def seconds(value: float | None) -> str:
    """Return a number of seconds as a duration, or an empty text for None."""
    return "" if value is None else duration_of(int(value * 1000))


def to_json(facts: object) -> bytes:
    """Return JSON with dataclasses as objects, bytes in base64, sets and tuples as arrays, and times in ISO format."""
    return msgspec.json.encode(facts, enc_hook=_encode_other)


def _encode_other(value: object) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Sequence):
        return list(value)
    return str(value)
