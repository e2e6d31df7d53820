"""Compiled SQL statements, which all engines of a process share.

SQLAlchemy takes a millisecond or more to compile a statement. It caches the result for each engine. A process that
opens several clusters, or one cluster several times, would compile the same statements again for each.
"""

from typing import Any

from sqlalchemy.util import LRUCache

_Key = tuple[Any, ...]


class _CompiledStatements(LRUCache[_Key, Any]):
    """SQLAlchemy's `compiled_cache`, whose keys begin with the engine's dialect.

    Each engine has a dialect object of its own. Statements depend only on its class and on the server's version.
    """

    def get(self, key: _Key, default: Any = None) -> Any:
        return super().get(_shared(key), default)

    def __setitem__(self, key: _Key, value: Any) -> None:
        super().__setitem__(_shared(key), value)


def _shared(key: _Key) -> _Key:
    dialect, *statement = key
    return type(dialect), dialect.server_version_info, *statement


COMPILED_STATEMENTS = _CompiledStatements(1000)
"""Those used last. Pass it to an engine as its execution option `compiled_cache`."""
