r"""Mirror a topic to a second cluster whose log dir is in S3: every record has the offset that it has in the source.

The program makes two clusters and produces measurements into topic `measurements` of the first. Then it mirrors the
topic twice: the first call copies everything, the second one only the records that were produced in between. A consumer
of the second cluster reads the copy from S3.

It needs a bucket of yours: put its name and region in the place of `my-bucket` and `eu-west-1`.

    export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
    python examples/mirror_to_s3.py --cluster /tmp/main --to-cluster /tmp/copy \
        --log-dir 's3://my-bucket/log?region=eu-west-1'

An S3 server of your own is named in the URI: s3://my-bucket/log?endpoint_override=localhost:9000&scheme=http. Without
S3, try it with a folder: --log-dir /tmp/copy-files. It prints:

    mirrored 3000 records
    mirrored 10 records
    partition 0: 1505 records, offsets 0 to 1504, the same in both clusters
    partition 1: 1505 records, offsets 0 to 1504, the same in both clusters

Both folders must not exist yet, and the log dir must be empty. No Spark is needed; for large topics use the Spark job
`spark-submit "$(spark-log path jobs)/mirror.py"`, which copies the same way.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from spark_log import Cluster, Consumer, Producer, create_topic
from spark_log.clients.kafka import TopicPartition
from spark_log.spark.streams import mirror_topics

TOPIC = "measurements"


def produce(cluster: str, numbers: range) -> None:
    with Producer(cluster=cluster) as producer:
        for number in numbers:
            value = f'{{"number": {number}, "value": {number * 31 % 97}}}'
            producer.send(TOPIC, key=b"sensor", value=value.encode(), partition=number % 2)


def read(cluster: str, number: int) -> list[tuple[Any, ...]]:
    """Offset, timestamp, key and value of each record of a partition."""
    partition = TopicPartition(TOPIC, number)
    with Consumer(cluster=cluster) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        [end] = consumer.end_offsets([partition]).values()
        records: list[tuple[Any, ...]] = []
        while (consumer.position(partition) or 0) < end:
            for record in consumer.poll(timeout_ms=1000).get(partition, []):
                records.append((record.offset, record.timestamp, record.key, record.value))
        return records


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Mirror a topic to a cluster with its log dir in S3.")
    parser.add_argument("--cluster", required=True, metavar="DIR", help="folder of the new source cluster")
    parser.add_argument(
        "--to-cluster", required=True, metavar="DIR", help="folder of the new target cluster's metadata"
    )
    parser.add_argument("--log-dir", required=True, metavar="URI", help="of the target: s3://BUCKET/FOLDER?region=...")
    given = parser.parse_args(arguments)

    with Cluster.init(given.cluster) as source, Cluster.init(given.to_cluster, log_dir=given.log_dir) as target:
        create_topic(source, TOPIC, partitions=2)
        produce(given.cluster, range(3000))
        print(f"mirrored {mirror_topics(source, target, TOPIC)} records")
        produce(given.cluster, range(3000, 3010))
        print(f"mirrored {mirror_topics(source, target, TOPIC)} records")
    for number in range(2):
        records = read(given.to_cluster, number)
        same = "the same" if records == read(given.cluster, number) else "NOT the same"
        offsets = f"offsets {records[0][0]} to {records[-1][0]}"
        print(f"partition {number}: {len(records)} records, {offsets}, {same} in both clusters")


if __name__ == "__main__":
    main()
