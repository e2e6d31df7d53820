"""The CPU time of publications to Delta tables: topics that share a round, and the same one after the other. Part of
`make bench-tables`.

--topics topics get a segment each, and one round publishes all of them, with one transaction that notes and one that
settles them. Then each gets another one, and is published in a round of its own. Both take turns --rounds times after a
warm-up, and the CPU seconds of this process, and of PostgreSQL if it has the store, are added up. The rows of the
segments are simulated (`benchmarks.scale_rows`).
"""

import tempfile
import time
from collections.abc import Sequence

from benchmarks.kafka_report import ON_POSTGRESQL, OURS, Row, parser, print_rows
from benchmarks.scale_rows import CONFIGS, add_segments
from benchmarks.writers import postgresql_cpu_s
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import publish_all

BAR = 0.8
_WARM_UP = 2
"""The first publication of a process opens the table, which later ones do not."""


def measure(address: str, log_dir: str, who: str, topics: int, rounds: int) -> Row:
    """Return the CPU seconds of one topic's publication."""
    alone = f"{who}, one a round"
    taken_s = {who: 0.0, alone: 0.0}
    with Cluster.init(address, log_dir=log_dir) as cluster:
        created = [create_topic(cluster, f"topic-{number}", configs=CONFIGS) for number in range(topics)]
        for number in range(_WARM_UP + rounds):
            for side, together in ((who, [created]), (alone, [[topic] for topic in created])):
                for topic in created:
                    add_segments(cluster, topic, 1)
                server_s, own_s = postgresql_cpu_s(address), time.process_time()
                for each in together:
                    _publish(cluster, each)
                own_s = time.process_time() - own_s
                if number >= _WARM_UP:
                    taken_s[side] += own_s + postgresql_cpu_s(address) - server_s
    each_s = {side: seconds / topics / rounds for side, seconds in taken_s.items()}
    shown = {side: f"{1000 * seconds:.2f} ms" for side, seconds in each_s.items()}
    return Row(f"CPU time of a publication, {topics} in a round", shown, each_s).with_limit(who, BAR, alone)


def _publish(cluster: Cluster, topics: Sequence[Topic]) -> None:
    published = publish_all(cluster, topics, eager=True)
    assert not any(each.error for each in published.values())


def main() -> None:
    options = parser(__doc__, rounds=20)
    options.add_argument("--topics", type=int, default=20)
    arguments = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="spark-log-bench-", dir=arguments.folder) as folder:
        for who, address in ((OURS, f"{folder}/cluster"), (ON_POSTGRESQL, arguments.postgresql)):
            if address:
                rows.append(measure(address, f"{folder}/log-dir-{who}", who, arguments.topics, arguments.rounds))
    print_rows("publications to Delta tables", rows, arguments.json)


if __name__ == "__main__":
    main()
