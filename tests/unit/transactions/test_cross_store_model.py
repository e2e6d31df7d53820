"""Transactions over several stores: every state that two transactions over two data stores can reach, and mutations of
the rules that the model must detect.
"""

from dataclasses import replace

import pytest

from spark_log.transactions import part_rules, rules
from spark_log.transactions.part_rules import Resolution
from tests.unit.transactions.cross_store_world import explore


def test_every_reachable_state():
    assert explore() > 1000


def begins_before_the_last_one_is_done(patch):
    patch(rules, "check_finished", lambda transaction: None)


def does_not_count(patch):
    prepare = part_rules.prepare
    patch(
        part_rules,
        "prepare",
        lambda part, number, batches: prepare(part, number, part.pending if number == part.number else 0),
    )


def commits_without_the_list_of_stores(patch):
    commit = rules.commit
    patch(rules, "commit", lambda row, ref, batches, parts: commit(row, ref, batches, row.parts))


def resolver_aborts_an_open_transaction(patch):
    resolve = part_rules.resolve

    def eager(transaction, store_id, part):
        found = resolve(transaction, store_id, part)
        return Resolution.ABORT if found is Resolution.WAIT else found

    patch(part_rules, "resolve", eager)


def prepared_part_takes_batches(patch):
    register = part_rules.register

    def lenient(part, number, batches):
        return (
            replace(part, pending=part.pending + batches) if number == part.number else register(part, number, batches)
        )

    patch(part_rules, "register", lenient)


def keeps_the_number_of_aborted_parts(patch):
    patch(rules, "_next_parts", lambda transaction: transaction.parts)


MUTANTS = [
    begins_before_the_last_one_is_done,
    does_not_count,
    commits_without_the_list_of_stores,
    resolver_aborts_an_open_transaction,
    prepared_part_takes_batches,
    keeps_the_number_of_aborted_parts,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_model_detects_the_mutation(monkeypatch, mutant):
    mutant(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        explore()
