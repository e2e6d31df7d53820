"""What is done to a Delta log of which some files are torn."""

from spark_log.log.delta_repair import Repair, plan_repair


def commit(version):
    return f"{version:020d}.json"


def checkpoint(version):
    return f"{version:020d}.checkpoint.parquet"


def files(*names, torn=()):
    return {name: name not in torn for name in names}


def test_a_whole_log_is_left_alone():
    assert not plan_repair(files(commit(0), commit(1), checkpoint(1), "_last_checkpoint"))


def test_a_torn_commit_becomes_an_empty_one_without_its_checksums():
    names = [commit(0), commit(1), f".{commit(1)}.crc", f"{1:020d}.crc", commit(2), f".{commit(2)}.crc"]
    deleted = (f".{commit(1)}.crc", f"{1:020d}.crc")
    assert plan_repair(files(*names, torn=[commit(1)])) == Repair(deleted, (commit(1),))


def test_a_torn_checkpoint_goes_with_the_hint_that_names_it():
    names = [commit(0), commit(1), checkpoint(1), "_last_checkpoint", commit(2)]
    assert plan_repair(files(*names, torn=[checkpoint(1)])) == Repair((checkpoint(1), "_last_checkpoint"))


def test_a_torn_first_commit_does_not_matter_below_a_checkpoint():
    names = [commit(0), commit(1), checkpoint(1), commit(2)]
    assert plan_repair(files(*names, torn=[commit(0), commit(2)])) == Repair(empty=(commit(0), commit(2)))


def test_what_cannot_be_made_readable_is_deleted():
    for names, torn in (
        ([commit(0), commit(1)], [commit(0)]),
        ([commit(5), checkpoint(5), "_last_checkpoint", commit(6)], [checkpoint(5)]),
        ([commit(0), commit(1), commit(3)], [commit(1)]),
        ([commit(1), checkpoint(1), commit(3)], [commit(3)]),
    ):
        assert plan_repair(files(*names, torn=torn)) == Repair(delete=tuple(names))
