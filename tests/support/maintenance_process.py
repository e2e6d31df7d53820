"""A process that repeats maintenance, or only these tasks, until its standard input ends or a failpoint kills it.

python -m tests.support.maintenance_process CLUSTER [TASK ...]
"""

import sys

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance import run_tasks
from tests.support.waiting import end_of_input


def main(address: str, *tasks: str) -> None:
    ended = end_of_input()
    with Cluster.open(address) as cluster:
        while True:
            for report in run_tasks(cluster, tasks or None):
                print(report, flush=True)
            print("round", flush=True)
            if ended.wait(0.05):
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
