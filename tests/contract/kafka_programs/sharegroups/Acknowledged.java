package sharegroups;

import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.AcknowledgementCommitCallback;
import org.apache.kafka.common.*;

/** Commit callback that keeps what it is told: offsets, errors, and the number of calls. */
final class Acknowledged implements AcknowledgementCommitCallback {
    private final Map<String, Set<Long>> offsets = new ConcurrentHashMap<>();
    private final Map<String, List<Exception>> errors = new ConcurrentHashMap<>();
    private volatile int count;

    @Override
    public synchronized void onComplete(Map<TopicIdPartition, Set<Long>> acknowledged, Exception error) {
        acknowledged.forEach((partition, told) -> {
            offsets.computeIfAbsent(partition.topic(), __ -> new ConcurrentSkipListSet<>()).addAll(told);
            count += told.size();
            if (error != null) errors.computeIfAbsent(partition.topic(), __ -> new CopyOnWriteArrayList<>()).add(error);
        });
    }

    Set<Long> offsets(String topic) {
        return offsets.getOrDefault(topic, Set.of());
    }

    List<Exception> errors(String topic) {
        return errors.getOrDefault(topic, List.of());
    }

    /** Offsets told in all calls, repetitions included. */
    int count() {
        return count;
    }
}
