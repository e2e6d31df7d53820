"""Recognises the address of Kafka's brokers where the address of a spark-log cluster is expected."""

import os
import re

_BROKER = r"(?:[A-Za-z_]+://)?(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_BROKERS = re.compile(rf"{_BROKER}(?:\s*,\s*{_BROKER})*,?")
"""`host:port`, a comma-separated list of them, each with a listener's protocol before it or not."""


def broker_refusal(cluster: str) -> str | None:
    """The text of an error if `cluster` is such an address, and no folder has this name."""
    if not _BROKERS.fullmatch(cluster) or os.path.isdir(cluster):
        return None
    return (
        f"cluster: {cluster!r} is the address of a Kafka broker. spark-log has no brokers to connect to: give the"
        " folder or the postgresql+psycopg:// URL of a spark-log cluster"
    )
