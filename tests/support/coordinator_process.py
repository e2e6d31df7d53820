"""A process that competes for the coordinator lease until it is killed.

python -m tests.support.coordinator_process CLUSTER LEASE_MS
"""

import sys

from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.maintenance.coordinator.coordinator import Coordinator

if __name__ == "__main__":
    settings = ClusterSettings(controller_lease_ms=int(sys.argv[2]))
    with Cluster.open(sys.argv[1]) as cluster, Coordinator(cluster, settings=settings):
        print("started", flush=True)
        sys.stdin.read()
