"""spark-submit jobs/consume.py --help. The code is spark_log.jobs.consume; PYSPARK_PYTHON must have spark-log installed."""

import sys

from spark_log.jobs.consume import main

if __name__ == "__main__":
    sys.exit(main())
