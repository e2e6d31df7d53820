"""Tasks of the coordinator of which one item fails."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_log.errors import NotCoordinatorError
from spark_log.maintenance.coordinator import periodic_tasks


@pytest.mark.parametrize(("error", "after"), [(KeyError, ["2", "3"]), (NotCoordinatorError, [])])
def test_a_group_with_damaged_rows_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], after: list[str]
) -> None:
    """But the end of the term does."""
    done: list[str] = []

    def reconcile(_store: object, group_id: str, *_: object) -> None:
        if group_id == "1":
            raise error
        done.append(group_id)

    monkeypatch.setattr(periodic_tasks, "reconcile_group", reconcile)
    context = cast(Any, SimpleNamespace(cluster=SimpleNamespace(store=None), fence=None))
    with pytest.raises(error):
        periodic_tasks._reconcile(context, ["1", "2", "3"])
    assert done == after
