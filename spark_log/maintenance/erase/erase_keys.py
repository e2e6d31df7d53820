"""Reads the keys of an erase from text and files. They are personal data: an error gives the position, never the
key.
"""

import base64
import binascii
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from spark_log.errors import InvalidOptionError

STDIN = "-"


def keys_of(texts: Sequence[str], file: str | None, *, encoded: bool) -> pa.Array:
    """Return the keys that are given one by one, and those of a file with one key per line ("-": stdin), without empty
    lines.

    They are UTF-8 text, or base64 of the keys' bytes if `encoded`. Raises InvalidOptionError for other input.
    """
    try:
        keys = [text.encode() for text in texts]
    except UnicodeEncodeError:
        raise InvalidOptionError("key: not UTF-8; give it as base64") from None
    lines = _lines(file) if file is not None else []
    if encoded:
        keys, lines = _decoded(keys, "key"), _decoded(lines, "keys file: line")
    else:
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                raise InvalidOptionError(f"keys file: line {number} is not UTF-8; give the keys as base64") from None
    return pa.array([*keys, *(line for line in lines if line)], pa.binary())


def _lines(file: str) -> list[bytes]:
    try:
        content = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as error:
        raise InvalidOptionError(f"keys file {file!r}: {error.strerror}") from error
    return [line.removesuffix(b"\r") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")]


def _decoded(texts: Iterable[bytes], what: str) -> list[bytes]:
    decoded: list[bytes] = []
    for number, text in enumerate(texts, 1):
        try:
            decoded.append(base64.b64decode(text.strip(), validate=True))
        except binascii.Error:
            raise InvalidOptionError(f"{what} {number} is not base64") from None
    return decoded
