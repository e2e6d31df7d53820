package sharegroups;

import static org.apache.kafka.clients.consumer.AcknowledgeType.*;

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;

/** Delivery counts and their limit, and the two ways to acquire. */
final class DeliveryCases {
    private static final Map<String, Object> RECORD_LIMIT =
        Map.of("share.acquire.mode", "record_limit", "share.acknowledgement.mode", "explicit");

    /** A close gives records back: the delivery counts of released and of unacknowledged records both stay. */
    static void testDeliveryCountDifferentBehaviorWhenClosingSessionWithExplicitAcknowledgement(Scope scope)
        throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, "a", "b");
        try (var consumer = scope.consumer(group, Scope.EXPLICIT)) {
            consumer.subscribe(Set.of(topic));
            consumer.acknowledge(scope.poll(consumer, 2).get(0), RELEASE);
            scope.committed(consumer, topic);
        }
        var consumer = scope.consumer(group);
        consumer.subscribe(Set.of(topic));
        Check.equal(List.of(2, 2), Scope.counts(scope.poll(consumer, 2)), "delivery counts");
    }

    @Server("delivery-limit")
    static void testBehaviorOnDeliveryCountBoundary(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, "a");
        try (var consumer = scope.consumer(group, Scope.EXPLICIT)) {
            consumer.subscribe(Set.of(topic));
            var records = scope.poll(consumer, 1);
            Check.equal(List.of(1), Scope.counts(records), "delivery counts");
            Scope.acknowledge(consumer, records, RELEASE);
            scope.committed(consumer, topic);
            Check.equal(List.of(2), Scope.counts(scope.poll(consumer, 1)), "delivery counts");
        }
        try (var consumer = scope.consumer(group, Scope.EXPLICIT)) {
            consumer.subscribe(Set.of(topic));
            Check.equal(List.of(3), Scope.counts(scope.poll(consumer, 1)), "delivery counts");
        }
        var consumer = scope.consumer(group);
        consumer.subscribe(Set.of(topic));
        scope.nothing(consumer); // the close after the last delivery archived it
    }

    static void testPollInBatchOptimizedMode(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, 10);
        var consumer = scope.consumer(
            scope.group(), Map.of("max.poll.records", 5, "share.acquire.mode", "batch_optimized"));
        consumer.subscribe(Set.of(topic));
        Check.equal(Scope.numbers(10), Scope.values(scope.poll(consumer, 10)), "values of the whole batch");
    }

    static void testPollInRecordLimitMode(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, 10);
        var consumer = scope.consumer(
            scope.group(), Map.of("max.poll.records", 5, "share.acquire.mode", "record_limit"));
        consumer.subscribe(Set.of(topic));
        Check.equal(Scope.numbers(5), Scope.values(scope.poll(consumer, 5)), "values up to the limit");
    }

    static void testPollAndExplicitAcknowledgeSingleMessageInRecordLimitMode(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, 10);
        var consumer = limited(scope, topic, 1);
        for (String value : Scope.numbers(10)) {
            var records = scope.poll(consumer, 1);
            Check.equal(List.of(value), Scope.values(records), "values");
            Scope.acknowledge(consumer, records, ACCEPT);
            scope.committed(consumer, topic);
        }
        scope.nothing(consumer);
    }

    static void testExplicitAcknowledgeSuccessInRecordLimitMode(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, 15);
        var consumer = limited(scope, topic, 10);
        Scope.acknowledge(consumer, scope.poll(consumer, 10), ACCEPT);
        scope.committed(consumer, topic);
        Check.equal(Scope.numbers(15).subList(10, 15), Scope.values(scope.poll(consumer, 5)), "values");
    }

    static void testExplicitAcknowledgeReleaseAcceptInRecordLimitMode(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, 20);
        var consumer = limited(scope, topic, 10);
        for (var record : scope.poll(consumer, 10)) {
            consumer.acknowledge(record, record.offset() % 2 == 0 ? ACCEPT : RELEASE);
            scope.committed(consumer, topic);
        }
        var records = scope.poll(consumer, 10);
        Check.equal(List.of(1L, 3L, 5L, 7L, 9L, 10L, 11L, 12L, 13L, 14L), Scope.offsetsOf(records), "offsets");
        Check.equal(List.of(2, 2, 2, 2, 2, 1, 1, 1, 1, 1), Scope.counts(records), "delivery counts");
        Scope.acknowledge(consumer, records, ACCEPT);
        Check.equal(List.of(15L, 16L, 17L, 18L, 19L), Scope.offsetsOf(scope.poll(consumer, 5)), "offsets");
    }

    /** A limit that is lowered below the next delivery archives at that delivery's release. */
    static void testDynamicDeliveryCountLimitDecreaseArchivesRecords(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        scope.send(topic, "a");
        deliveries(scope, consumer, topic, 1, 2);
        scope.configure(group, Map.of("share.delivery.count.limit", "3"));
        deliveries(scope, consumer, topic, 3, 3);
        scope.nothing(consumer);
        scope.lag(group, topic, 0);
    }

    @Server("delivery-limit")
    static void testDynamicDeliveryCountLimitIncreaseAllowsMoreDeliveries(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        scope.send(topic, "a");
        deliveries(scope, consumer, topic, 1, 2);
        scope.configure(group, Map.of("share.delivery.count.limit", "5"));
        deliveries(scope, consumer, topic, 3, 5);
        scope.nothing(consumer);
    }

    /** The limit of locks holds the group back, and can be raised while it works. */
    static void testDynamicPartitionMaxRecordLocks(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group(Map.of("share.partition.max.record.locks", "100"));
        for (int batch = 0; batch < 30; batch++) scope.send(topic, 10);
        int held = held(scope, group, topic);
        scope.note("locks of 100, batches of 10: " + held + " records are held");
        Check.equal(100, held, "records that are held at once");
        scope.configure(group, Map.of("share.partition.max.record.locks", "200"));
        held = held(scope, group, topic);
        Check.equal(200, held, "records that are held at once");
    }

    /** How many records two consumers get that do not acknowledge. */
    private static int held(Scope scope, String group, String topic) {
        int held = 0;
        try (var first = scope.consumer(group, Scope.EXPLICIT); var second = scope.consumer(group, Scope.EXPLICIT)) {
            for (var consumer : List.of(first, second)) {
                consumer.subscribe(Set.of(topic));
                int found = 0;
                for (int polls = 0; found == 0 && polls < 4; polls++)
                    found = consumer.poll(Duration.ofSeconds(1)).count();
                held += found;
            }
        }
        return held;
    }

    /** Deliver and release the only record so many times. */
    private static void deliveries(
        Scope scope, ShareConsumer<String, String> consumer, String topic, int first, int last
    ) {
        for (int count = first; count <= last; count++) {
            var records = scope.poll(consumer, 1);
            Check.equal(List.of(count), Scope.counts(records), "delivery counts");
            Scope.acknowledge(consumer, records, RELEASE);
            scope.committed(consumer, topic);
        }
    }

    private static ShareConsumer<String, String> limited(Scope scope, String topic, int limit) throws Exception {
        Map<String, Object> settings = new HashMap<>(RECORD_LIMIT);
        settings.put("max.poll.records", limit);
        var consumer = scope.consumer(scope.group(), settings);
        consumer.subscribe(Set.of(topic));
        return consumer;
    }
}
