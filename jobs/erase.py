"""spark-submit jobs/erase.py --help: the code is spark_log.jobs.erase. PYSPARK_PYTHON needs spark-log."""

import sys

from spark_log.jobs.erase import main

if __name__ == "__main__":
    sys.exit(main())
