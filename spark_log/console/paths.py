"""Encodes and decodes names in the paths of the console's pages. Pure.

A name may contain any text, for example a group id may be `a/b`, `..` or markup. A segment of a path may not, because
browsers resolve dots and proxies decode `%2F`. In a segment, each byte that is not a letter, a digit, or one of `_`,
`-` and `.` is written as `~` and two hexadecimal digits. All characters of the names `.` and `..` are encoded, and the
empty name is `~`. A topic name is a segment without any encoding.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

_NAME = re.compile(r"\{(\w+)\}")
_ESCAPED = re.compile(rb"~([0-9A-Fa-f]{2})")


def encode_segment(name: str) -> str:
    """Return a name as one segment of a path."""
    if name in (".", ".."):
        return "~2E" * len(name)
    return quote(name, safe="", errors="replace").replace("~", "%7E").replace("%", "~") or "~"


def decode_segment(segment: str) -> str:
    """Return the name in a segment of a path. A `~` without two hexadecimal digits stays, so names can be typed."""
    if segment == "~":
        return ""
    raw = segment.encode(errors="replace")
    return _ESCAPED.sub(lambda escaped: bytes([int(escaped[1], 16)]), raw).decode(errors="replace")


def url(template: str, query: Mapping[str, object] | None = None, **names: object) -> str:
    """Return the path of a page, for example `url("/topics/{topic}", topic="t")`. Values of `query` that are None are
    omitted.
    """
    path = _NAME.sub(lambda found: encode_segment(str(names[found[1]])), template)
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path
