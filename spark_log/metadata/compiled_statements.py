"""Keeps a cache of compiled SQL statements that all engines of a process share.

SQLAlchemy takes a millisecond or more to compile a statement, and by default has one cache for each engine. A process
that opens several clusters, or one cluster several times, would compile the same statements again for each engine.
"""

from typing import Any

from sqlalchemy.util import LRUCache

_Key = tuple[Any, ...]


class _CompiledStatements(LRUCache[_Key, Any]):
    """A `compiled_cache` of SQLAlchemy that serves several engines.

    SQLAlchemy's keys begin with the engine's own dialect object. A compiled statement depends only on the dialect's
    class and on the server's version, which replace the object here.
    """

    def get(self, key: _Key, default: Any = None) -> Any:
        return super().get(_shared(key), default)

    def __setitem__(self, key: _Key, value: Any) -> None:
        super().__setitem__(_shared(key), value)


def _shared(key: _Key) -> _Key:
    dialect, *statement = key
    return type(dialect), dialect.server_version_info, *statement


COMPILED_STATEMENTS = _CompiledStatements(1000)
"""The statements that were used last. Pass it to an engine as the execution option `compiled_cache`."""
