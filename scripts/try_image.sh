#!/bin/sh
# Runs in the image, on a read-only root: a cluster, a producer, a consumer, and the driver of a Spark job.
set -eu
if touch /opt/spark-log/x 2>/dev/null; then
    echo "the root is writable" >&2
    exit 1
fi
test "$(id -u)" = 10001
spark-log init /data/log >/dev/null
export SPARK_LOG_CLUSTER=/data/log
spark-log topic create events >/dev/null
echo hello | spark-log produce events
test "$(spark-log consume events --from earliest --values)" = hello
cat >/tmp/count.py <<END
from pyspark.sql import SparkSession

events = SparkSession.builder.getOrCreate().read.format("spark_log").option("subscribe", "events").load()
assert events.count() == 1
END
export SPARK_DRIVER_BIND_ADDRESS=127.0.0.1
/opt/spark-log/docker/entrypoint.sh driver --conf "spark.master=local[1]" /tmp/count.py 2>/tmp/driver.log || {
    cat /tmp/driver.log >&2
    exit 1
}
