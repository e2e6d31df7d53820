package sharegroups;

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.*;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.*;

/** Subscribing, and what a poll returns. */
final class PollingCases {
    private static final Duration SHORT = Duration.ofMillis(500);

    static void testPollNoSubscribeFails(Scope scope) throws Exception {
        var consumer = scope.consumer(scope.named("group"));
        Check.equal(Set.of(), consumer.subscription(), "subscription");
        Check.fails(IllegalStateException.class, () -> consumer.poll(SHORT));
    }

    static void testSubscribeAndPollNoRecords(Scope scope) throws Exception {
        String topic = scope.topic();
        var consumer = subscribed(scope, topic);
        Check.equal(Set.of(topic), consumer.subscription(), "subscription");
        scope.nothing(consumer, SHORT);
    }

    static void testSubscribePollUnsubscribe(Scope scope) throws Exception {
        var consumer = subscribed(scope, scope.topic());
        scope.nothing(consumer, SHORT);
        consumer.unsubscribe();
        Check.equal(Set.of(), consumer.subscription(), "subscription");
    }

    static void testSubscribePollSubscribe(Scope scope) throws Exception {
        String topic = scope.topic();
        var consumer = subscribed(scope, topic);
        scope.nothing(consumer, SHORT);
        consumer.subscribe(Set.of(topic));
        Check.equal(Set.of(topic), consumer.subscription(), "subscription");
        scope.nothing(consumer, SHORT);
    }

    static void testSubscribeUnsubscribePollFails(Scope scope) throws Exception {
        var consumer = subscribed(scope, scope.topic());
        scope.nothing(consumer, SHORT);
        consumer.unsubscribe();
        Check.equal(Set.of(), consumer.subscription(), "subscription");
        Check.fails(IllegalStateException.class, () -> consumer.poll(SHORT));
    }

    static void testSubscribeSubscribeEmptyPollFails(Scope scope) throws Exception {
        var consumer = subscribed(scope, scope.topic());
        scope.nothing(consumer, SHORT);
        consumer.subscribe(Set.of());
        Check.equal(Set.of(), consumer.subscription(), "subscription");
        Check.fails(IllegalStateException.class, () -> consumer.poll(SHORT));
    }

    static void testSubscriptionAndPoll(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = subscribed(scope, topic);
        Check.equal(Optional.empty(), consumer.acquisitionLockTimeoutMs(), "lock duration before a poll");
        var record = scope.poll(consumer, 1).get(0);
        Check.equal("a", record.value(), "value");
        Check.equal(0L, record.offset(), "offset");
        Check.equal(Optional.of((short) 1), record.deliveryCount(), "delivery count");
        Check.equal(Optional.of(15000), consumer.acquisitionLockTimeoutMs(), "lock duration");
        scope.note("leader epoch of a record: " + record.leaderEpoch());
    }

    static void testSubscriptionAndPollMultiple(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = subscribed(scope, topic);
        Check.equal(List.of("a"), Scope.values(scope.poll(consumer, 1)), "values");
        for (String value : List.of("b", "c")) {
            scope.send(topic, value);
            Check.equal(List.of(value), Scope.values(scope.poll(consumer, 1)), "values");
        }
        Check.equal(Optional.of(15000), consumer.acquisitionLockTimeoutMs(), "lock duration");
    }

    static void testPollRecordsGreaterThanMaxBytes(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = scope.consumer(scope.group(), Map.of("fetch.max.bytes", 1));
        consumer.subscribe(Set.of(topic));
        Check.equal(List.of("a"), Scope.values(scope.poll(consumer, 1)), "values");
    }

    static void testFetchRecordLargerThanMaxPartitionFetchBytes(Scope scope) throws Exception {
        String topic = scope.topic(), large = "x".repeat(10_000);
        scope.send(topic, "small");
        scope.send(topic, large);
        var consumer = scope.consumer(scope.group(), Map.of("max.partition.fetch.bytes", 10_000));
        consumer.subscribe(Set.of(topic));
        Check.equal(List.of("small", large), Scope.values(scope.poll(consumer, 2)), "values");
    }

    static void testHeaders(Scope scope) throws Exception {
        String topic = scope.topic();
        var sent = new ProducerRecord<>(topic, 0, "key", "value");
        for (String name : List.of("z", "a", "m")) sent.headers().add(name, ("of " + name).getBytes());
        sent.headers().add("empty", null);
        scope.send(List.of(sent));
        var found = scope.poll(subscribed(scope, topic), 1).get(0).headers();
        Check.equal("of a", new String(found.lastHeader("a").value()), "header");
        List<String> names = new ArrayList<>();
        for (Header each : found) names.add(each.key());
        Check.equal(List.of("z", "a", "m", "empty"), names, "names of headers in order");
        Check.equal(null, found.lastHeader("empty").value(), "value of a header without one");
    }

    /** A serializer adds a header, and a deserializer reads it. */
    static void testHeadersSerializerDeserializer(Scope scope) throws Exception {
        String topic = scope.topic();
        List<String> seen = new ArrayList<>();
        var marking = new StringSerializer() {
            @Override
            public byte[] serialize(String topic, Headers headers, String value) {
                headers.add("form", "text".getBytes());
                return super.serialize(topic, value);
            }
        };
        var reading = new StringDeserializer() {
            @Override
            public String deserialize(String topic, Headers headers, java.nio.ByteBuffer value) {
                seen.add(new String(headers.lastHeader("form").value()));
                return super.deserialize(topic, headers, value);
            }
        };
        var record = new ProducerRecord<>(topic, 0, "key", "value");
        byte[] value = marking.serialize(topic, record.headers(), record.value());
        Check.equal("value", new String(value), "serialized value");
        scope.send(List.of(record));
        var consumer = scope.consumer(scope.group(), Map.of(), reading);
        consumer.subscribe(Set.of(topic));
        Check.equal(List.of("value"), Scope.values(scope.poll(consumer, 1)), "values");
        Check.equal(List.of("text"), seen, "headers that the deserializer saw");
    }

    static void testMaxPollRecords(Scope scope) throws Exception {
        int count = 10_000;
        String topic = scope.topic();
        long began = System.currentTimeMillis();
        for (int batch = 0; batch < 100; batch++) {
            List<ProducerRecord<String, String>> sent = new ArrayList<>();
            for (int number = batch * 100; number < (batch + 1) * 100; number++)
                sent.add(new ProducerRecord<>(topic, 0, began + number, "key " + number, "value " + number));
            scope.send(sent);
        }
        var consumer = scope.consumer(scope.group(), Map.of("max.poll.records", 2));
        consumer.subscribe(Set.of(topic));
        int number = 0;
        SortedSet<Integer> sizes = new TreeSet<>();
        for (long deadline = System.nanoTime() + 60_000_000_000L; number < count && System.nanoTime() < deadline; ) {
            var records = consumer.poll(SHORT);
            if (!records.isEmpty()) sizes.add(records.count());
            for (var record : records) {
                Check.equal((long) number, record.offset(), "offset");
                Check.equal(began + number, record.timestamp(), "timestamp");
                Check.equal(TimestampType.CREATE_TIME, record.timestampType(), "type of timestamps");
                Check.equal("key " + number, record.key(), "key");
                Check.equal("value " + number, record.value(), "value");
                Check.equal(record.key().length(), record.serializedKeySize(), "size of the key");
                Check.equal(record.value().length(), record.serializedValueSize(), "size of the value");
                number++;
            }
        }
        Check.equal(count, number, "records");
        scope.note("batches of 100, max.poll.records=2: sizes of polls " + sizes);
    }

    static void testSubscribeOnInvalidTopicThrowsInvalidTopicException(Scope scope) throws Exception {
        var consumer = subscribed(scope, "topic with spaces");
        Check.fails(InvalidTopicException.class, () -> consumer.poll(Duration.ofSeconds(10)));
    }

    static void testWakeupWithFetchedRecordsAvailable(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = subscribed(scope, topic);
        consumer.wakeup();
        Check.fails(WakeupException.class, () -> consumer.poll(Duration.ZERO));
        Check.equal(List.of("a"), Scope.values(scope.poll(consumer, 1)), "values");
    }

    static void testPollThrowsInterruptExceptionIfInterrupted(Scope scope) throws Exception {
        var consumer = subscribed(scope, scope.topic());
        try {
            Thread.currentThread().interrupt();
            Check.fails(InterruptException.class, () -> consumer.poll(Duration.ZERO));
        } finally {
            Thread.interrupted();
        }
        scope.nothing(consumer, Duration.ZERO);
    }

    static void testSubscriptionFollowedByTopicCreation(Scope scope) throws Exception {
        String name = scope.named("later");
        var consumer = subscribed(scope, name);
        scope.nothing(consumer, SHORT);
        scope.topic("later", 1, Map.of());
        for (String value : List.of("a", "b", "c")) {
            scope.send(name, value);
            Check.equal(List.of(value), Scope.values(scope.poll(consumer, 1)), "values");
        }
    }

    static void testSubscriptionAndPollFollowedByTopicDeletion(Scope scope) throws Exception {
        String deleted = scope.topic("deleted", 1, Map.of()), kept = scope.topic("kept", 1, Map.of());
        var consumer = scope.consumer(scope.group());
        consumer.subscribe(List.of(deleted, kept));
        for (String topic : List.of(deleted, kept)) {
            scope.send(topic, "of " + topic);
            Check.equal(List.of("of " + topic), Scope.values(scope.poll(consumer, 1)), "values");
        }
        scope.admin().deleteTopics(Set.of(deleted)).all().get();
        scope.nothing(consumer, SHORT);
        for (String value : List.of("a", "b")) {
            scope.send(kept, value);
            Check.equal(List.of(value), Scope.values(scope.poll(consumer, 1)), "values");
        }
    }

    static void testLsoMovementByRecordsDeletion(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        for (String value : Scope.numbers(10)) scope.send(topic, value);
        deleteRecords(scope, topic, 5);
        Check.equal(List.of(5L, 6L, 7L, 8L, 9L), Scope.offsetsOf(consumed(scope, group, topic, 5)), "offsets");
        for (String value : Scope.numbers(5)) scope.send(topic, value);
        deleteRecords(scope, topic, 14);
        Check.equal(List.of(14L), Scope.offsetsOf(consumed(scope, group, topic, 1)), "offsets");
        deleteRecords(scope, topic, 15);
        var consumer = scope.consumer(group);
        consumer.subscribe(Set.of(topic));
        scope.nothing(consumer);
        scope.nothing(consumer);
    }

    static void deleteRecords(Scope scope, String topic, long before) throws Exception {
        var wanted = Map.of(new TopicPartition(topic, 0), RecordsToDelete.beforeOffset(before));
        scope.admin().deleteRecords(wanted).all().get();
    }

    /** Records that a new consumer reads and accepts before it closes. */
    static List<ConsumerRecord<String, String>> consumed(Scope scope, String group, String topic, int count) {
        try (var consumer = scope.consumer(group)) {
            consumer.subscribe(Set.of(topic));
            var records = scope.collect(consumer, count);
            consumer.commitSync();
            return records;
        }
    }

    static ShareConsumer<String, String> subscribed(Scope scope, String topic) throws Exception {
        var consumer = scope.consumer(scope.group());
        consumer.subscribe(Set.of(topic));
        return consumer;
    }
}
