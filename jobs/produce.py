"""spark-submit jobs/produce.py --help: the code is spark_log.jobs.produce. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.produce import main

if __name__ == "__main__":
    sys.exit(main())
