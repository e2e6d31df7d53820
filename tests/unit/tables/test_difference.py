"""The difference between a Delta table and the metadata."""

from hypothesis import given
from hypothesis import strategies as st

from spark_log.tables.publication_state import PublishedFile
from spark_log.tables.table_changes import difference

paths = st.sets(st.sampled_from([f"_segments/0/{n}.parquet" for n in range(12)] + ["part-0.parquet"]))


def file(path):
    return PublishedFile(path, 0, 0, 1, 1, 1, 0, False)


@given(paths, paths)
def test_difference_changes_the_active_files_to_the_wanted_ones(wanted, active):
    found = difference([file(path) for path in wanted], active)
    added = [entry.path for entry in found.add]
    assert (active - set(found.remove)) | set(added) == wanted
    assert len(added) == len(set(added))
    assert not set(added) & active, "nothing is added twice"
    assert set(found.remove) <= active
    assert bool(found) == (wanted != active)


def test_correct_table_has_no_difference():
    assert not difference([file("a")], ["a"])
    assert not difference([], [])
