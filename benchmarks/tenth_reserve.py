"""Runs the command line of spark-log with the reserve of delta.max.lag.ms that earlier versions had, a tenth: the peer
in `benchmarks.tables`.
"""

from spark_log.cli.main import app
from spark_log.config import TopicConfig
from spark_log.maintenance.rewrite import table_schedule


def pause_ms(config: TopicConfig) -> int:
    return config.delta_max_lag_ms // 10


if __name__ == "__main__":
    table_schedule.pause_ms = pause_ms
    app(prog_name="python -m benchmarks.tenth_reserve")
