"""spark-submit jobs/produce.py --help. The code is spark_log.jobs.produce; PYSPARK_PYTHON must have spark-log installed."""

import sys

from spark_log.jobs.produce import main

if __name__ == "__main__":
    sys.exit(main())
