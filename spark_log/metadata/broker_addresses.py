"""Recognises addresses of Kafka brokers where the address of a spark-log cluster is expected."""

import os
import re

_BROKER = r"(?:[A-Za-z_]+://)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_BROKERS = re.compile(rf"{_BROKER}(?:\s*,\s*{_BROKER})*,?")
"""A comma-separated list of `host:port` or `PROTOCOL://host:port`."""


def broker_refusal(cluster: str) -> str | None:
    """Return an error message if `cluster` is an address of Kafka brokers, and no folder has this name; else None."""
    if not _BROKERS.fullmatch(cluster) or os.path.isdir(cluster):
        return None
    return (
        f"cluster: {cluster!r} is the address of a Kafka broker. spark-log has no brokers to connect to: give the"
        " folder or the postgresql+psycopg:// URL of a spark-log cluster"
    )
