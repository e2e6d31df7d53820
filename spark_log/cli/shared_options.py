"""Defines the options that several commands share, and parses their values.

An invalid value is a usage error (exit code 2) that names the option and the value.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log import text as text_module
from spark_log.cli import completion
from spark_log.spark.jobs.options.arguments import ClusterAddress, usage_error
from spark_log.spark.jobs.options.arguments import parse_pairs as parse_pairs

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster

Cluster_ = ClusterAddress
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
TopicName = Annotated[
    str,
    typer.Argument(metavar="TOPIC", help="Name of the topic.", show_default=False, autocompletion=completion.topics),
]
TopicNames = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topics.", show_default=False, autocompletion=completion.topics),
]


def open_cluster(address: str) -> "Cluster":
    """Open the cluster of a command. The import is local, so that `--help` does not wait for SQLAlchemy."""
    from spark_log.cluster.cluster import Cluster

    return Cluster.open(address)


def topics_option(help_: str) -> Any:
    """Return the option `--topic TOPIC`, which may be repeated."""
    return typer.Option("--topic", "-t", metavar="TOPIC", help=help_, autocompletion=completion.topics)


def setting_option(help_: str) -> Any:
    """Return the option `--setting NAME=VALUE` of a process that has a cluster setting of its own."""
    return typer.Option("--setting", metavar="NAME=VALUE", help=help_, autocompletion=completion.cluster_settings)


def set_option(help_: str, complete: Callable[[str], Any]) -> Any:
    """Return the option `--set NAME=VALUE` of a command that changes configs or settings."""
    return typer.Option("--set", metavar="NAME=VALUE", help=f"{help_}; repeatable.", autocompletion=complete)


def unset_option(what: str, complete: Callable[[str], Any]) -> Any:
    """Return the option `--unset NAME`, which complements `--set`."""
    return typer.Option(
        "--unset", metavar="NAME", help=f"Reset {what} to its default; repeatable.", autocompletion=complete
    )


def reset_target_option(present: str) -> Any:
    """Return the option `--to` of an offset reset. `present` names the offset from which +N and -N count."""
    return typer.Option(
        "--to",
        metavar="WHERE",
        help=f"earliest, latest, an offset, +N or -N (from {present}), a time (2026-01-31T12:00:00Z) or @milliseconds.",
    )


def partitions_option(default: str) -> Any:
    """Return the option `--topic` that chooses partitions of topics."""
    return typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:PARTITION,…]",
        help=f"Only these; repeatable. [default: {default}]",
        autocompletion=completion.topics,
    )


def parse_changes(set_: Iterable[str] | None, unset: Iterable[str] | None) -> dict[str, str | None]:
    """Parse the options `--set NAME=VALUE` and `--unset NAME` to changes. None resets a name to its default."""
    changes: dict[str, str | None] = {**parse_pairs(set_ or (), "--set")}
    for name in unset or ():
        if name in changes:
            raise usage_error("--unset", f"{name!r} is also given with --set")
        changes[name] = None
    return changes


def parse_headers(texts: Iterable[str], option: str) -> list[tuple[str, bytes]]:
    """Parse `name=text` texts to headers, in order. As in Kafka, names may repeat."""
    headers = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise usage_error(option, f"expected name=text, got {text!r}")
        headers.append((name, value.encode()))
    return headers


def parse_bytes(text: str, option: str) -> int:
    """Parse `1000`, `50MB` (millions) or `50MiB` (2^20 each) to a number of bytes >= 1."""
    try:
        return text_module.parse_bytes(text)
    except ValueError as error:
        raise usage_error(option, str(error)) from None


def parse_before(texts: Iterable[str], partitions: int, option: str) -> dict[int, int]:
    """Parse `OFFSET` (for every partition) or `PARTITION=OFFSET` texts to offsets by partition. -1 is the high
    watermark.
    """
    before: dict[int, int] = {}
    for text in texts:
        left, separator, right = text.partition("=")
        try:
            offset = int(right if separator else left)
            chosen = [int(left)] if separator else list(range(partitions))
        except ValueError:
            raise usage_error(option, f"expected OFFSET or PARTITION=OFFSET, got {text!r}") from None
        before.update(dict.fromkeys(chosen, offset))
    return before
