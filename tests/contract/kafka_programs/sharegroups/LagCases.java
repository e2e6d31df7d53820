package sharegroups;

import static org.apache.kafka.clients.consumer.AcknowledgeType.*;

import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;

/** Lag and start offset, as the server describes them. */
final class LagCases {
    static void testSharePartitionLagForSingleShareConsumer(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        consumedOne(scope, scope.consumer(group), topic);
        scope.lag(group, topic, 0);
        scope.send(topic, "b");
        scope.lag(group, topic, 1);
        scope.note("described: " + scope.offsets(group, topic));
    }

    static void testSharePartitionLagForMultipleShareConsumers(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        var first = scope.consumer(group);
        var second = scope.consumer(group);
        second.subscribe(Set.of(topic));
        consumedOne(scope, first, topic);
        scope.lag(group, topic, 0);
        scope.send(topic, "b");
        Check.equal(List.of("b"), Scope.values(scope.poll(second, 1)), "values of the second consumer");
        scope.lag(group, topic, 1);
        scope.committed(second, topic);
        scope.lag(group, topic, 0);
        scope.send(topic, "c");
        scope.lag(group, topic, 1);
    }

    static void testSharePartitionLagWithReleaseAcknowledgement(Scope scope) throws Exception {
        afterAcknowledgement(scope, RELEASE);
    }

    static void testSharePartitionLagWithRejectAcknowledgement(Scope scope) throws Exception {
        afterAcknowledgement(scope, REJECT);
    }

    private static void afterAcknowledgement(Scope scope, AcknowledgeType type) throws Exception {
        String topic = scope.topic(), group = scope.group();
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumedOne(scope, consumer, topic);
        scope.lag(group, topic, 0);
        scope.send(topic, "b");
        Scope.acknowledge(consumer, scope.poll(consumer, 1), type);
        scope.committed(consumer, topic);
        scope.lag(group, topic, type == RELEASE ? 1 : 0);
        startsAt(scope, group, topic, type == RELEASE ? 1 : 2);
        if (type == REJECT) {
            scope.nothing(consumer);
            return;
        }
        Scope.acknowledge(consumer, scope.poll(consumer, 1), ACCEPT);
        scope.committed(consumer, topic);
        scope.lag(group, topic, 0);
    }

    static void testSharePartitionLagAfterAlterShareGroupOffsets(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, 105);
        try (var consumer = scope.consumer(group)) {
            consumer.subscribe(Set.of(topic));
            scope.collect(consumer, 105);
            scope.committed(consumer, topic);
        }
        scope.lag(group, topic, 0);
        var partition = new TopicPartition(topic, 0);
        scope.admin().alterShareGroupOffsets(group, Map.of(partition, 40L)).all().get();
        scope.lag(group, topic, 65);
        Check.equal(40L, scope.offsets(group, topic).startOffset(), "start offset");
        var again = PollingCases.consumed(scope, group, topic, 65);
        Check.equal(40L, again.get(0).offset(), "first offset");
        Check.equal(Set.of(1), new HashSet<>(Scope.counts(again)), "delivery counts");
    }

    static void testSharePartitionLagAfterDeleteShareGroupOffsets(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, 5);
        PollingCases.consumed(scope, group, topic, 5);
        scope.lag(group, topic, 0);
        scope.admin().deleteShareGroupOffsets(group, Set.of(topic)).all().get();
        Check.eventually(Scope.WAIT_S, "no offsets", () -> scope.offsets(group, topic) == null);
        Check.equal(5, PollingCases.consumed(scope, group, topic, 5).size(), "records from the start");
        scope.lag(group, topic, 0);
    }

    @Server("restart")
    static void testSharePartitionLagOnGroupCoordinatorMovement(Scope scope) throws Exception {
        lagAfterRestart(scope);
    }

    @Server("restart")
    static void testSharePartitionLagOnShareCoordinatorMovement(Scope scope) throws Exception {
        lagAfterRestart(scope);
    }

    private static void lagAfterRestart(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        consumedOne(scope, scope.consumer(group), topic);
        scope.lag(group, topic, 0);
        scope.send(topic, "b");
        scope.lag(group, topic, 1);
        scope.request("restart");
        scope.lag(group, topic, 1);
        startsAt(scope, group, topic, 1);
    }

    /** Kafka describes the start offset from before the last acknowledgement, which was of one record. */
    private static void startsAt(Scope scope, String group, String topic, long expected) throws Exception {
        long found = scope.offsets(group, topic).startOffset();
        Check.that(found == expected || found == expected - 1, "a start offset of " + expected + ", not " + found);
    }

    /** Write a record, and accept it. */
    private static void consumedOne(Scope scope, ShareConsumer<String, String> consumer, String topic)
        throws Exception {
        scope.send(topic, "a");
        consumer.subscribe(Set.of(topic));
        var records = scope.poll(consumer, 1);
        try {
            Scope.acknowledge(consumer, records, ACCEPT);
        } catch (IllegalStateException implicit) {
            // the commit accepts
        }
        scope.committed(consumer, topic);
    }
}
