#!/bin/sh
# Starts the command of a container. On Kubernetes, Spark starts its pods with the words `driver` and `executor`, and with
# the rest in environment variables, as its own images expect.
set -eu
case "${1:-}" in
driver)
    shift
    exec spark-submit --deploy-mode client --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
executor)
    options=$(mktemp)   # an argument file of Java: options of the user may have spaces
    env | sort -t_ -k4 -n | sed -n 's/\\/\\\\/g; s/"/\\"/g; s/^SPARK_JAVA_OPT_[0-9]*=\(.*\)/"\1"/p' >"$options"
    exec java "@$options" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$SPARK_CONF_DIR:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
