"""The rule that decides which files in a log dir are orphans."""

import pytest

from spark_log.maintenance.removal.orphans import GRACE_MS, Needed, is_orphan, write_id_of

ID = "0123456789abcdef" * 2
NAME = f"{ID}-7.parquet"
NOW_MS = 10**12
OLD_MS = NOW_MS - GRACE_MS - 1
NOT_NEEDED = Needed()
NAMED = Needed(names={(3, NAME)})
REGISTERED = Needed(write_ids={ID})


@pytest.mark.parametrize(
    ("name", "modified_ms", "needed", "expected"),
    [
        (NAME, NOW_MS, NOT_NEEDED, True),
        (NAME, OLD_MS, NAMED, False),
        (NAME, OLD_MS, REGISTERED, False),
        (NAME, OLD_MS, Needed(names={(2, NAME)}), True),  # needed by another partition
        (f".{NAME}.tmp", NOW_MS, NOT_NEEDED, True),
        (f".{NAME}.tmp", OLD_MS, REGISTERED, False),
        (f".{NAME}-0123456789ab.tmp", NOW_MS - GRACE_MS, NOT_NEEDED, False),
        (f".{NAME}-0123456789ab.tmp", OLD_MS, NOT_NEEDED, True),
        (f".{NAME}-0123456789ab.tmp", OLD_MS, REGISTERED, True),
    ],
)
def test_orphan_is_not_needed_and_has_no_registered_write_id(name, modified_ms, needed, expected):
    assert is_orphan(3, name, modified_ms, needed, NOW_MS) is expected


@pytest.mark.parametrize(
    "name",
    [
        "part-00000.parquet", "spark_log_dir.json", "_SUCCESS", ".hidden", "", NAME.upper(), f"{ID}.parquet",
        f"{ID[:-1]}-7.parquet", f"{NAME}.crc", f"{NAME}.tmp", f".{NAME}", f".{NAME}-0123.tmp", f"{NAME}\n", f"x{NAME}",
        "00000000000000000000.json",
    ],
)  # fmt: skip
def test_files_with_foreign_names_stay(name):
    assert write_id_of(name) is None
    assert not is_orphan(3, name, 0, NOT_NEEDED, NOW_MS)


@pytest.mark.parametrize("name", [f"{ID}-0.parquet", f"{ID}-12-3-4.parquet", f".{ID}-0.parquet.tmp"])
def test_write_id_is_read_from_the_name(name):
    assert write_id_of(name) == ID
