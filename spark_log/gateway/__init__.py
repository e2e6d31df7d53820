"""Serves Kafka's wire protocol, so that any Kafka client works on a spark-log cluster.

A gateway keeps no state of its own. Any number of processes serve one cluster, and clients see them as its brokers.

>>> from spark_log.gateway import serve          # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_log.gateway.child_process import serve as serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    if name != "serve":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_log.gateway.child_process import serve

    return serve
