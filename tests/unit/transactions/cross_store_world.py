"""A model of the transactions of one producer over two data stores: every reachable state, with the product's rules.

The producer has two transactions, one after the other, with up to one record in each store. Each may also write to the
home store only, and then has no parts. Every request may be lost,
may be repeated, and may arrive at any later time. The client gives up at any time; another one then takes over.
Transactions time out. A data store may crash once, and loses the registrations that were not forced to disk. Clients
and resolvers end the parts, at any time after the decision.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from spark_log.errors import SparkLogError
from spark_log.ids import StoreId
from spark_log.transactions import part_rules, rules
from spark_log.transactions.part_rules import Part, PartState, Resolution
from spark_log.transactions.rules import COMMITTED, EMPTY, ONGOING, Parts, ProducerRef, Transaction

STORES = (StoreId(1), StoreId(2))
WRITTEN = (STORES, STORES[:1])
"""The stores to which each transaction may write. With both stores for the second one too, there are 30 times as many
states.
"""
PRODUCER = 7


class DataStore(NamedTuple):
    part: Part = Part(PRODUCER)
    pending: frozenset[int] = frozenset()
    """The transactions whose record is pending here."""
    log: tuple[int, ...] = ()
    """The transactions whose record was appended here."""


class Client(NamedTuple):
    """A transaction, as its client knows it: the answers that it has got."""

    epoch: int
    number: int = 0
    joined: frozenset[StoreId] = frozenset()
    registered: frozenset[StoreId] = frozenset()
    prepared: frozenset[StoreId] = frozenset()

    @property
    def ref(self) -> ProducerRef:
        return ProducerRef(PRODUCER, self.epoch)


class World(NamedTuple):
    home: Transaction = Transaction(PRODUCER, 0, EMPTY)
    stores: tuple[DataStore, ...] = (DataStore(), DataStore())
    durable: tuple[DataStore, ...] = (DataStore(), DataStore())
    """What a crash leaves of each data store."""
    crashed: bool = False
    clients: tuple[Client, ...] = (Client(0),)
    decisions: tuple[tuple[int, frozenset[StoreId] | None], ...] = ()
    """The number of each transaction with parts, and how home has decided about it: the stores in which it commits
    records, none of them for an abort, or None before the decision.
    """


def explore() -> int:
    """Visit every state, check it, and return their number. Raises AssertionError for a violation."""
    first = World()
    seen, queue = {first}, deque([first])
    checked = cache(check_end)
    while queue:
        for after in steps(queue.popleft()):
            if after not in seen:
                check(after)
                checked(after._replace(clients=(), durable=after.stores))
                seen.add(after)
                queue.append(after)
    return len(seen)


def steps(world: World) -> Iterator[World]:
    for number, client in enumerate(world.clients, 1):
        yield from _requests(world, number, client)
    yield from _takeovers(world)
    yield from _ends(world)
    expired = rules.time_out(replace(world.home, expired=world.home.state is ONGOING))
    if expired.state is not world.home.state:
        yield _home(world, expired)
    if not world.crashed and world.stores != world.durable:
        yield world._replace(stores=world.durable, crashed=True)


def _requests(world: World, number: int, client: Client) -> Iterator[World]:
    """Each request that this client has ever sent, or may send now, arrives; its answer is lost or not."""

    def answered(after: World, client: Client) -> Iterator[World]:
        yield after
        clients = list(after.clients)
        clients[number - 1] = client
        yield after._replace(clients=tuple(clients))

    for store_id in WRITTEN[number - 1]:
        home = _try(lambda s=store_id: rules.join(world.home, client.ref, s, across=True))
        if home is not None:
            joined = client.joined | {store_id}
            yield from answered(_home(world, home), client._replace(number=home.parts.number, joined=joined))
        if store_id in client.joined and (after := _register(world, client, store_id)) is not None:
            yield from answered(after, client._replace(registered=client.registered | {store_id}))
        sent = store_id in client.joined and client.registered == client.joined
        if sent and (after := _prepare(world, client, store_id)) is not None:
            yield from answered(after, client._replace(prepared=client.prepared | {store_id}))
    if not client.joined or (client.registered and client.prepared >= client.joined):
        parts = Parts(client.number, client.joined)
        home = _try(lambda: rules.commit(world.home, client.ref, 0, parts))
        if home is not None:
            yield _home(world, home, client.registered)
    home = _try(lambda: rules.abort(world.home, client.ref))
    if home is not None:
        yield _home(world, home)


def _takeovers(world: World) -> Iterator[World]:
    """The next transaction: of the same client, which has the next epoch, or of another one, which fences it."""
    if len(world.clients) < len(WRITTEN):
        client = world.clients[-1]
        if world.home.previous_epoch == client.epoch:
            yield world._replace(clients=(*world.clients, Client(world.home.epoch)))
        home = _try(lambda: rules.initialize(world.home))
        if home is not None:
            yield _home(world, home)._replace(clients=(*world.clients, Client(home.epoch)))


def _ends(world: World) -> Iterator[World]:
    """A client, or a resolver, ends parts at any time after it has learned the decision, and perhaps again."""
    for store_id, store in zip(STORES, world.stores, strict=True):
        if not store.part.is_over:
            found = part_rules.resolve(world.home, store_id, store.part)
            stores = dict(world.decisions)[store.part.number]
            if found is not Resolution.WAIT:
                assert stores is not None, "a resolver does not wait for the decision"
                assert (store_id in stores) == (found is Resolution.ROLL_FORWARD), "a resolver does the opposite"
        for number, stores in world.decisions:
            if stores is not None:
                end = _roll_forward if store_id in stores else _abort
                yield end(world, number, store_id)


# The calls of the data stores, as the service makes them -------------------------------------------------------------


def _register(world: World, client: Client, store_id: StoreId) -> World | None:
    store = _store(world, store_id)
    there = store.pending if store.part.number == client.number else frozenset()
    new = {client.number} - there
    part = _try(lambda: part_rules.register(store.part, client.number, len(new)))
    if part is None:
        return None
    return _changed(world, store_id, store._replace(part=part, pending=there | new), durable=False)


def _prepare(world: World, client: Client, store_id: StoreId) -> World | None:
    store = _store(world, store_id)
    part = _try(lambda: part_rules.prepare(store.part, client.number, int(store_id in client.registered)))
    if part is None:
        return None
    pending = store.pending if part.number == store.part.number else frozenset()
    return _changed(world, store_id, store._replace(part=part, pending=pending))


def _roll_forward(world: World, number: int, store_id: StoreId) -> World:
    store = _store(world, store_id)
    part = part_rules.roll_forward(store.part, number)
    if part is not store.part:
        store = DataStore(part, frozenset(), (*store.log, *store.pending))
    after = _changed(world, store_id, store)
    return after._replace(home=rules.finish(world.home, number, store_id))


def _abort(world: World, number: int, store_id: StoreId) -> World:
    store = _store(world, store_id)
    part = part_rules.abort(store.part, number)
    return world if part is store.part else _changed(world, store_id, store._replace(part=part, pending=frozenset()))


def _store(world: World, store_id: StoreId) -> DataStore:
    return world.stores[STORES.index(store_id)]


def _changed(world: World, store_id: StoreId, store: DataStore, *, durable: bool = True) -> World:
    def put(stores: tuple[DataStore, ...]) -> tuple[DataStore, ...]:
        return tuple(store if each == store_id else old for each, old in zip(STORES, stores, strict=True))

    return world._replace(stores=put(world.stores), durable=put(world.durable) if durable else world.durable)


def _home(world: World, home: Transaction, committed: frozenset[StoreId] = frozenset()) -> World:
    """Note the decision of a change of home, and check that a transaction begins only after the one before it."""
    decisions = list(world.decisions)
    if home.state is ONGOING and world.home.state is not ONGOING:
        for number, stores in decisions:
            assert stores is not None, "a transaction begins before the decision about the last one"
            logs = [_store(world, store_id).log for store_id in stores]
            assert all(number in log for log in logs), "a transaction begins before the last one is done"
    if home.parts.stores and home.parts.number not in dict(decisions):
        decisions.append((home.parts.number, None))
    if home.state is not ONGOING and decisions and decisions[-1][1] is None:
        decisions[-1] = (decisions[-1][0], committed)
    return world._replace(home=home, decisions=tuple(decisions))


def _try(call):  # type: ignore[no-untyped-def]
    try:
        return call()
    except SparkLogError:
        return None


# What is true in every state -----------------------------------------------------------------------------------------


def check(world: World) -> None:
    for store_id, store in zip(STORES, world.stores, strict=True):
        assert len(set(store.log)) == len(store.log), "a record was committed twice"
        number = store.part.number
        stores = dict(world.decisions)[number] if number else frozenset()
        if store.part.state is PartState.COMMITTED:
            assert stores and store_id in stores, "a part committed alone"
        if store.part.state is PartState.ABORTED:
            assert stores is not None and store_id not in stores, "a part aborted alone"
        if world.home.state is COMMITTED and store_id in world.home.parts.stores:
            assert number == world.home.parts.number
            assert store.part.state in (PartState.PREPARED, PartState.COMMITTED), "decided and not prepared"


def check_end(world: World) -> None:
    """Let the open transaction time out, and the resolver end its parts: each store has all of a transaction, or
    nothing.
    """
    expired = rules.time_out(replace(world.home, expired=world.home.state is ONGOING))
    if expired.state is not world.home.state:
        world = _home(world, expired)
    for store_id in STORES:
        part = _store(world, store_id).part
        unfinished = store_id in world.home.parts.stores
        if unfinished or not part.is_over:
            found = part_rules.resolve(world.home, store_id, part)
            assert found is not Resolution.WAIT, "nobody ends this part"
            rolls_forward = store_id in (dict(world.decisions)[part.number] or ())
            assert rolls_forward == (found is Resolution.ROLL_FORWARD), "a resolver does the opposite"
            end = _abort if found is Resolution.ABORT else _roll_forward
            world = end(world, part.number, store_id)
    assert not rules.is_unfinished(world.home)
    for store_id, store in zip(STORES, world.stores, strict=True):
        assert store.part.is_over and not store.pending
        committed = [number for number, stores in world.decisions if stores and store_id in stores]
        assert sorted(store.log) == committed, "not all or nothing"
