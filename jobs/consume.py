"""spark-submit jobs/consume.py --help: the code is spark_log.jobs.consume. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.consume import main

if __name__ == "__main__":
    sys.exit(main())
