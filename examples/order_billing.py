"""Order billing with transactions: every order is billed exactly once, although a process is killed in the middle.

The program produces 12 orders into topic `orders`. A first billing process reads them as a member of group `billing`
and is killed with SIGKILL after it has stored bills 5 and 6, before it has committed them. A second process with the
same transactional id takes over: the open transaction is aborted, and its orders are read again, because bills and
consumed offsets are committed in one transaction.

    python examples/order_billing.py --cluster /tmp/shop

It prints the bills after the crash and at the end:

    crash:    process 1 was killed by SIGKILL; bills that readers see: 1 2 3 4
    recovery: process 2 billed 8 orders in 2 transactions
    order  customer  amount
        1  bob            3
    ...
    12 orders, 12 bills, no order billed twice

DIR must not exist yet. No Spark is needed.
"""

import argparse
import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from typing import Any

from spark_log import Cluster, Consumer, Producer, create_topic
from spark_log.clients.kafka import TopicPartition
from spark_log.spark.streams import TransactionalLoop

ORDERS = 12
ORDERS_PER_TRANSACTION = 4
CRASH_AFTER = 6
CUSTOMERS = ("alice", "bob", "carol")


def produce_orders(cluster: str) -> None:
    with Producer(cluster=cluster) as producer:
        for number in range(1, ORDERS + 1):
            customer = CUSTOMERS[number % 3]
            order = {"order": number, "customer": customer, "items": number, "price": 3}
            producer.send("orders", key=customer.encode(), value=json.dumps(order).encode())


def bill_orders(cluster: str, crash_after: int | None = None) -> None:
    """Bill orders until none comes for a second. With `crash_after` the process kills itself after that order."""

    def bill(records: list[Any], producer: Producer) -> None:  # called in each transaction
        for record in records:
            order = json.loads(record.value)
            amount = order["items"] * order["price"]
            text = json.dumps({"order": order["order"], "customer": order["customer"], "amount": amount})
            producer.send("bills", key=record.key, value=text.encode())
            if order["order"] == crash_after:
                producer.flush()  # the bills of this transaction are stored now, and not committed
                os.kill(os.getpid(), signal.SIGKILL)

    consumer = Consumer(
        "orders",
        cluster=cluster,
        group_id="billing",
        enable_auto_commit=False,  # the transactions commit the offsets
        auto_offset_reset="earliest",
        max_poll_records=ORDERS_PER_TRANSACTION,
        session_timeout_ms=1000,  # how soon the partitions of a killed member go to another one
        heartbeat_interval_ms=300,
        consumer_timeout_ms=1000,
    )
    with consumer, Producer(cluster=cluster, transactional_id="billing-1") as producer:
        totals = TransactionalLoop(consumer, producer).run(bill)
    print(f"recovery: process 2 billed {totals.records} orders in {totals.transactions} transactions", flush=True)


def run_billing(cluster: str, crash_after: int | None = None) -> int:
    """`bill_orders` in a process of its own; returns its exit code, which is -9 after a SIGKILL."""
    process = multiprocessing.get_context("spawn").Process(target=bill_orders, args=(cluster, crash_after))
    process.start()
    process.join()
    return process.exitcode or 0


def read_bills(cluster: str) -> list[dict[str, int | str]]:
    """All bills that a reader sees now."""
    with Consumer(cluster=cluster) as consumer:
        partition = TopicPartition("bills", 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        [end] = consumer.end_offsets([partition]).values()
        bills: list[dict[str, int | str]] = []
        while (consumer.position(partition) or 0) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                bills += [json.loads(record.value) for record in records]
        return bills


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Bill orders in transactions, with a crash in the middle.")
    parser.add_argument("--cluster", required=True, metavar="DIR", help="folder of the new cluster")
    cluster = parser.parse_args(arguments).cluster

    with Cluster.init(cluster) as opened:
        create_topic(opened, "orders")
        create_topic(opened, "bills")
    produce_orders(cluster)

    exit_code = run_billing(cluster, crash_after=CRASH_AFTER)
    seen = " ".join(str(bill["order"]) for bill in read_bills(cluster))
    print(f"crash:    process 1 was killed by {signal.Signals(-exit_code).name}; bills that readers see: {seen}")
    run_billing(cluster)

    bills = read_bills(cluster)
    print("order  customer  amount")
    for bill in bills:
        print(f"{bill['order']:5}  {bill['customer']:8}  {bill['amount']:6}")
    twice = len(bills) - len({bill["order"] for bill in bills})
    print(f"{ORDERS} orders, {len(bills)} bills, {twice or 'no'} order billed twice")


if __name__ == "__main__":
    main()
