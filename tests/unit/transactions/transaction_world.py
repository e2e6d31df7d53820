"""A model of one transactional id: a store that can crash, producers (the newest one is live, the others are zombies
that do not know it), and calls that are delayed or repeated. The rules decide; the model keeps sets of records and
checks the decisions with them.

A transaction is named by its *key*: its epoch.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from spark_log.errors import InvalidTxnStateError, ProducerFencedError, SparkLogError, TransactionAbortableError
from spark_log.transactions import rules
from spark_log.transactions.rules import EMPTY, ONGOING, ProducerRef, Transaction

Key = int
Records = frozenset[tuple[int, int]]
"""(position, record)."""

COMMITTED, ABORTED = "committed", "aborted"
ARRIVES, ANSWER_IS_LOST, CALL_IS_LOST = 0, 1, 2


@dataclass(frozen=True)
class Call:
    name: str
    ref: ProducerRef
    records: Records = frozenset()

    @property
    def key(self) -> Key:
        return self.ref.epoch


@dataclass(frozen=True)
class Stored:
    """A state of the store that a crash may restore: the row, the pending records, and the model's own state."""

    row: Transaction
    pending: Records = frozenset()
    open: Key | None = None
    previous: Key | None = None
    """The transaction whose end its producer may still ask for."""


@dataclass
class Producer:
    ref: ProducerRef
    open: bool = False
    failed: bool = False
    committing: bool = False
    sent: set[tuple[int, int]] = field(default_factory=set)
    doubt: tuple[int, int] | None = None
    """A record whose registration has no answer yet: before it, nothing else is sent or committed."""
    position: int = 0


FATE = st.sampled_from([ARRIVES, ARRIVES, ARRIVES, ANSWER_IS_LOST, CALL_IS_LOST])
WHO = st.sampled_from([-1, -1, -1, 0, 1, 2])
"""Most calls come from the newest producer."""


class World(RuleBasedStateMachine):
    """The rules are steps. `who` and `which` are taken modulo the number of producers and calls."""

    def __init__(self) -> None:
        super().__init__()
        self.now = Stored(Transaction(7, -1, EMPTY))
        self.unforced: list[Stored] = []
        self.producers: list[Producer] = []
        self.calls: list[Call] = []
        self.visible: list[tuple[Key, Records]] = []
        self.over: dict[Key, str] = {}
        self.answers: dict[Key, str] = {}
        self.record = 0

    # Steps of producers -----------------------------------------------------------------------------------------------

    @rule()
    def init(self) -> None:
        before = self.now
        row = rules.initialize(before.row)
        assert row.epoch == before.row.epoch + 1
        self._abort_open(row, previous=None)
        self.producers.append(Producer(ProducerRef(7, row.epoch)))

    @rule(who=WHO)
    def begin(self, who: int) -> None:
        producer = self._producer(who)
        if not producer.open and self._may_begin(producer.ref):
            vars(producer).update(vars(Producer(producer.ref, open=True)))

    @rule(who=WHO, fate=FATE)
    def send(self, who: int, fate: int = ARRIVES) -> None:
        producer = self._producer(who)
        if not producer.open or producer.failed or producer.committing:
            return
        if producer.doubt is None:
            self.record += 1
            producer.doubt = (producer.position, self.record)
            producer.position += 1
        record = producer.doubt
        error = self._call(Call("register", producer.ref, frozenset({record})), fate)
        if fate == ARRIVES:
            producer.doubt, producer.failed = None, error is not None
            if error is None:
                producer.sent.add(record)

    @rule(who=WHO, fate=FATE)
    def begin_and_send(self, who: int, fate: int) -> None:
        self.begin(who)
        self.send(who, fate)

    @rule(who=WHO, fate=FATE)
    def commit(self, who: int, fate: int = ARRIVES) -> None:
        producer = self._producer(who)
        if not producer.open or producer.failed or producer.doubt is not None:
            return
        producer.committing = True
        call = Call("commit", producer.ref, frozenset(producer.sent))
        error = self._call(call, fate)
        if fate == ARRIVES:
            producer.failed = error is not None
            if error is None:
                self._answer(producer, call.key, COMMITTED)

    @rule(who=WHO, fate=FATE)
    def abort(self, who: int, fate: int = ARRIVES) -> None:
        producer = self._producer(who)
        if not producer.open:
            return
        producer.failed = True
        call = Call("abort", producer.ref)
        error = self._call(call, fate)
        if fate == ARRIVES and not isinstance(error, ProducerFencedError):
            self._answer(producer, call.key, ABORTED if error is None else COMMITTED)

    @rule(which=st.integers(-40, 0))
    def late(self, which: int) -> None:
        """An earlier call arrives late, or is repeated."""
        if self.calls:
            self._deliver(self.calls[which % len(self.calls)])

    # Other events -----------------------------------------------------------------------------------------------------

    @rule()
    def expire(self) -> None:
        """The time of the open transaction is over, and it is not aborted yet."""
        self.now = _expired(self.now)
        self.unforced = [_expired(stored) for stored in self.unforced]

    @rule()
    def time_out(self) -> None:
        before = self.now
        row = rules.time_out(before.row)
        if before.open is not None and before.row.expired:
            self._abort_open(row, previous=before.open)
        else:
            assert row is before.row, "nothing to abort"

    @rule(lost=st.integers(1, 3))
    def crash(self, lost: int) -> None:
        """The store restarts without the last `lost` of the changes that it had not forced to disk."""
        if self.unforced and lost:
            first = max(0, len(self.unforced) - lost)
            self.now = self.unforced[first]
            del self.unforced[first:]

    # ------------------------------------------------------------------------------------------------------------------

    def _producer(self, who: int) -> Producer:
        if not self.producers:
            self.init()
        return self.producers[who % len(self.producers)]

    def _may_begin(self, ref: ProducerRef) -> bool:
        error = None
        try:
            rules.check(self.now.row, ref)
        except SparkLogError as raised:
            error = raised
        self._expect(error, ref, may=self._may_go_on(ref))
        return error is None

    def _answer(self, producer: Producer, key: Key, fate: str) -> None:
        """A producer gets its answer, which must be true from now on."""
        self.answers[key] = fate
        producer.open = False
        producer.ref = ProducerRef(7, key + 1)

    def _call(self, call: Call, fate: int) -> SparkLogError | None:
        self.calls.append(call)
        return self._deliver(call) if fate != CALL_IS_LOST else None

    def _deliver(self, call: Call) -> SparkLogError | None:
        error: SparkLogError | None = None
        try:
            getattr(self, f"_{call.name}")(call)
        except SparkLogError as raised:
            error = raised
        self._check()
        return error

    def _register(self, call: Call) -> None:
        before = self.now
        new = call.records - before.pending
        row = self._decide(rules.register, call, len(new), may=self._may_go_on(call.ref))
        self.unforced.append(before)
        self._save(row, Stored(row, before.pending | new, call.key))

    def _commit(self, call: Call) -> None:
        before = self.now
        again = call.key == before.previous and self.over[call.key] == COMMITTED
        all_there = call.records == (before.pending if before.open == call.key else frozenset())
        may = again or (self._may_go_on(call.ref) and all_there)
        row = self._decide(rules.commit, call, len(call.records), may=may)
        if row is before.row:
            assert again
            return
        self.visible.append((call.key, call.records))  # the append of these records, in the same transaction
        self.over[call.key] = COMMITTED
        self._force(row, Stored(row, previous=call.key))

    def _abort(self, call: Call) -> None:
        before = self.now
        again = call.key == before.previous and self.over[call.key] == ABORTED
        row = self._decide(rules.abort, call, may=again or self._may_go_on(call.ref, expired=True))
        if row is before.row:
            assert again
            return
        self.over[call.key] = ABORTED
        self._force(row, Stored(row, previous=call.key))

    def _may_go_on(self, ref: ProducerRef, *, expired: bool = False) -> bool:
        """Whether the transaction of `ref` is the open one, or may begin."""
        return ref.epoch == self.now.row.epoch and (expired or not self.now.row.expired)

    def _decide(self, rule: Any, call: Call, *arguments: int, may: bool) -> Transaction:
        error = None
        try:
            found: Transaction = rule(self.now.row, call.ref, *arguments)
        except SparkLogError as raised:
            error = raised
        self._expect(error, call.ref, may=may)
        if error is not None:
            raise error
        return found

    def _expect(self, error: SparkLogError | None, ref: ProducerRef, *, may: bool) -> None:
        assert (error is None) == may, f"{ref} is {'' if may else 'not '}to be done in {self.now}: {error!r}"
        if error is not None and ref.epoch not in (self.now.row.epoch, self.now.previous):
            assert isinstance(error, ProducerFencedError), (
                "a fenced producer gets ProducerFencedError, also if the call is invalid for another reason"
            )
        elif error is not None:
            assert isinstance(error, InvalidTxnStateError | TransactionAbortableError)

    def _abort_open(self, row: Transaction, previous: Key | None) -> None:
        if self.now.open is not None:
            self.over[self.now.open] = ABORTED
        self._force(row, Stored(row, previous=previous))
        self._check()

    def _force(self, row: Transaction, after: Stored) -> None:
        self._save(row, after)
        self.unforced.clear()

    def _save(self, row: Transaction, after: Stored) -> None:
        before = self.now.row
        assert row.state in rules.TRANSITIONS[before.state]
        assert row.epoch >= before.epoch, "it does not decrease"
        if before.state is ONGOING and row.state is not ONGOING:
            assert row.epoch == before.epoch + 1, "a late call of the transaction does not affect the next one"
        self.now = after

    def _check(self) -> None:
        row, now = self.now.row, self.now
        assert (row.state is ONGOING) == (now.open is not None)
        assert row.pending == len(now.pending) and (now.open is not None or not now.pending)
        assert not row.expired or row.state is ONGOING
        assert now.open not in self.over, "a finished transaction is not opened again"
        keys = [key for key, _ in self.visible]
        assert len(keys) == len(set(keys)), "each transaction is committed once"
        assert set(keys) == {key for key, fate in self.over.items() if fate == COMMITTED}
        assert all(self.over[key] == fate for key, fate in self.answers.items()), "every answer to a producer is true"
        records = [record for _, batch in self.visible for record in batch]
        assert len(records) == len(set(records)), "each record is visible once"
        for producer in self.producers:
            sent = dict(self.visible).get(producer.ref.epoch)
            assert sent is None or sent == producer.sent, "a transaction is visible as a whole"


def _expired(stored: Stored) -> Stored:
    return replace(stored, row=replace(stored.row, expired=True)) if stored.open is not None else stored
