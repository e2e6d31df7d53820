"""Consumers in endless iteration, closed by another thread and by a signal handler."""

import os
import signal
import threading

from kafka import KafkaConsumer, KafkaProducer

producer = KafkaProducer(bootstrap_servers=["localhost:9092"])
for number in range(3):
    producer.send("endless", b"%d" % number)
producer.close()


def endless(group):
    return KafkaConsumer("endless", bootstrap_servers=["localhost:9092"], group_id=group, auto_offset_reset="earliest")


consumer, seen, three, ended = endless("thread"), [], threading.Event(), threading.Event()


def read():
    for record in consumer:
        seen.append(record.value)
        if len(seen) == 3:
            three.set()
    ended.set()


reader = threading.Thread(target=read)
reader.start()
assert three.wait(60)
consumer.close()
reader.join(60)
assert ended.is_set(), "the loop ends, it does not raise"

consumer, seen = endless("signal"), []
before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
for record in consumer:
    seen.append(record.value)
    if len(seen) == 3:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
assert seen == [b"0", b"1", b"2"]
signal.signal(signal.SIGUSR1, before)
