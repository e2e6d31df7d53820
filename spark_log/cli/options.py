"""Options that several commands share, and the text forms of their values.

Text becomes types here; what is wrong is a usage error (exit code 2) that names the option and the value.
"""

import re
from collections.abc import Iterable
from typing import Annotated

import typer

CLUSTER_ENVIRONMENT_VARIABLE = "SPARK_LOG_CLUSTER"

Cluster_ = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar=CLUSTER_ENVIRONMENT_VARIABLE,
        metavar="FOLDER-OR-URL",
        help="The cluster: its folder, or a postgresql+psycopg:// URL.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False)]


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`name=value` texts as a dict; the first `=` separates. Usage error without one, or for a name given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"expected name=value, got {text!r}", param_hint=option)
        if name.strip() in pairs:
            raise typer.BadParameter(f"{name.strip()!r} is given twice", param_hint=option)
        pairs[name.strip()] = value
    return pairs


def parse_headers(texts: Iterable[str], option: str) -> list[tuple[str, bytes]]:
    """`name=text` texts as headers, in order; a name may come again, as in Kafka."""
    headers = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"expected name=text, got {text!r}", param_hint=option)
        headers.append((name, value.encode()))
    return headers


_BYTES = re.compile(r"([0-9]{1,15})\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)


def parse_bytes(text: str, option: str) -> int:
    """`1000`, `50MB` (millions) or `50MiB` (2^20 each) in bytes, at least 1."""
    match = _BYTES.fullmatch(text.strip())
    size = 0
    if match is not None:
        unit = 1024 if match[3] else 1000
        size = int(match[1]) * unit ** (" KMGT".index((match[2] or " ").upper()))
    if size < 1:
        raise typer.BadParameter(f"expected bytes such as 50MB or 64MiB, got {text!r}", param_hint=option)
    return size


def parse_before(texts: Iterable[str], partitions: int, option: str) -> dict[int, int]:
    """Offsets by partition from `OFFSET` (every partition) or `PARTITION=OFFSET` texts; -1 is the high watermark."""
    before: dict[int, int] = {}
    for text in texts:
        left, separator, right = text.partition("=")
        try:
            offset = int(right if separator else left)
            chosen = [int(left)] if separator else list(range(partitions))
        except ValueError:
            raise typer.BadParameter(f"expected OFFSET or PARTITION=OFFSET, got {text!r}", param_hint=option) from None
        before.update(dict.fromkeys(chosen, offset))
    return before
