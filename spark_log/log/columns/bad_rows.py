"""Collects the rows whose value cannot be stored in the columns, with the reasons."""

from spark_log.log.columns.expansion import MAX_VALUES


class Bad:
    """The bad rows, each with its first reason.

    `counting` is True if a row may have more than MAX_VALUES values in structs within arrays and maps. They are then
    counted.
    """

    def __init__(self, counting: bool = False) -> None:
        self.reasons: dict[int, str] = {}
        self.counting = counting
        self._values: dict[int, int] = {}

    def has_room(self, row: int, values: int, path: str) -> bool:
        """Add `values` to the row's count and return True. If the count would exceed MAX_VALUES, make the row bad,
        leave its count and return False.
        """
        if not self.counting:
            return True
        count = self._values.get(row, 0) + values
        if count > MAX_VALUES:
            self.add(row, f"{path}: more than {MAX_VALUES} values with those before them, missing ones included")
            return False
        self._values[row] = count
        return True

    def add(self, row: int, reason: str) -> None:
        self.reasons.setdefault(row, reason if len(reason) <= 200 else f"{reason[:197]}...")
