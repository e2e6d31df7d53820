"""Reads and alters the cluster settings in the store. Clients apply `Store.settings`."""

import json
from collections.abc import Mapping

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import lock_active_store
from spark_log.config import ClusterSettings
from spark_log.errors import InvalidConfigurationError, StoreNotFoundError
from spark_log.ids import HOME_NAME
from spark_log.metadata.connections import server_identity
from spark_log.metadata.sql_columns import CLUSTER
from spark_log.metadata.store_schema import read_overrides, write_overrides

_ACCEPT = "store.promotion.accept"
_DEFAULT_STORE = "topic.default.store"


def read_settings(cluster: Cluster) -> dict[str, str]:
    """Return the settings that differ from their defaults, as text by dotted name."""
    return cluster.store.read(read_overrides)


def alter_settings(
    cluster: Cluster, changes: Mapping[str, str | None], *, validate_only: bool = False, replace_all: bool = False
) -> dict[str, str]:
    """Set cluster settings by dotted name. None resets a setting to its default; `replace_all` resets all others too.
    Returns the settings that then differ from their defaults.

    This process applies them at once, other clients within seconds. Raises InvalidConfigurationError, which names the
    unknown setting or the invalid value, such as a default store that takes no new topics; then nothing is changed.
    With `validate_only` nothing is changed either.
    """
    defaults = ClusterSettings().as_text()
    changes = {name.replace("_", "."): value for name, value in changes.items()}
    texts = ClusterSettings.parse(
        {name: defaults.get(name, "1") if value is None else value for name, value in changes.items()}
    ).as_text()
    changes = {
        name: None if value is None else texts[name]
        for name, value in changes.items()
        if value is None or name in defaults
    }

    def alter(connection: sa.Connection) -> dict[str, str]:
        query = sa.select(CLUSTER.settings).with_for_update()
        before = json.loads(connection.execute(query).scalar_one())
        merged = {**({} if replace_all else before), **changes}
        overrides = {name: value for name, value in merged.items() if value is not None}
        ClusterSettings.from_stored(overrides)
        if overrides.get(_DEFAULT_STORE) != before.get(_DEFAULT_STORE):
            _check_default_store(connection, overrides.get(_DEFAULT_STORE, HOME_NAME))
        if not validate_only:
            if (
                "synchronous" == before.get(_ACCEPT) != overrides.get(_ACCEPT)
            ):  # nor is a promotion accepted after the change back
                server_identity.void_beat(connection)
            write_overrides(connection, overrides)
        return overrides

    altered = cluster.store.transact(alter, announce=True)
    cluster.store.forget_settings()
    return altered


def _check_default_store(connection: sa.Connection, name: str) -> None:
    """Raise InvalidConfigurationError unless the store of this name takes new topics."""
    try:
        if name != HOME_NAME:
            lock_active_store(connection, name)
    except (StoreNotFoundError, InvalidConfigurationError) as error:
        raise InvalidConfigurationError(f"{_DEFAULT_STORE}: {error}") from None


def with_settings(cluster: Cluster, pairs: Mapping[str, str]) -> ClusterSettings:
    """Return the cluster's settings, with those in `pairs` (text by dotted name) replaced, for one process.

    Raises InvalidConfigurationError for an unknown setting or an invalid value.
    """
    return ClusterSettings.parse({**cluster.store.settings.as_text(), **pairs})
