package sharegroups;

import static org.apache.kafka.clients.consumer.AcknowledgeType.*;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.errors.GroupMaxSizeReachedException;

/** Several members and groups, and the limits of both. */
final class GroupCases {
    static void testMultipleConsumersWithDifferentGroupIds(Scope scope) throws Exception {
        String topic = scope.topic();
        var first = scope.consumer(scope.group("first", Map.of()));
        var second = scope.consumer(scope.group("second", Map.of()));
        first.subscribe(Set.of(topic));
        second.subscribe(Set.of(topic));
        scope.send(topic, "a", "b", "c");
        Check.equal(List.of("a", "b", "c"), Scope.values(scope.collect(first, 3)), "values of the first group");
        Check.equal(List.of("a", "b", "c"), Scope.values(scope.collect(second, 3)), "values of the second group");
        scope.send(topic, "d", "e");
        Check.equal(List.of("d", "e"), Scope.values(scope.collect(first, 2)), "values of the first group");
        scope.send(topic, "f", "g", "h");
        Check.equal(List.of("f", "g", "h"), Scope.values(scope.collect(first, 3)), "values of the first group");
        var rest = Scope.values(scope.collect(second, 5));
        Check.equal(List.of("d", "e", "f", "g", "h"), rest, "values of the second group");
    }

    static void testMultipleConsumersInGroupSequentialConsumption(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        List<ShareConsumer<String, String>> consumers = List.of(scope.consumer(group), scope.consumer(group));
        for (var consumer : consumers) consumer.subscribe(Set.of(topic));
        for (int batch = 0; batch < 20; batch++) scope.send(topic, 100);
        List<Long> offsets = new ArrayList<>();
        int empty = 0;
        for (int polls = 0; empty < 4 && polls < 60; polls++) {
            var records = consumers.get(polls % 2).poll(Duration.ofSeconds(2));
            records.forEach(each -> offsets.add(each.offset()));
            empty = records.isEmpty() ? empty + 1 : 0;
        }
        everyOffsetOnce(2000, offsets);
    }

    static void testMultipleConsumersInGroupConcurrentConsumption(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        Thread producing = producing(scope, topic, 200, 100);
        everyOffsetOnce(20_000, consumeTogether(scope, topic, group, 4, 20_000));
        producing.join();
    }

    static void testMultipleConsumersInMultipleGroupsConcurrentConsumption(Scope scope) throws Exception {
        String topic = scope.topic();
        for (int batch = 0; batch < 80; batch++) scope.send(topic, 100);
        ExecutorService threads = Executors.newCachedThreadPool();
        try {
            List<Future<List<Long>>> found = new ArrayList<>();
            for (String name : List.of("first", "second", "third")) {
                String group = scope.group(name, Map.of());
                found.add(threads.submit(() -> consumeTogether(scope, topic, group, 2, 8000)));
            }
            for (var each : found) everyOffsetOnce(8000, each.get());
        } finally {
            threads.shutdownNow();
        }
    }

    /** A consumer that closes without a commit gives its records back; the others get all. */
    static void testMultipleConsumersInGroupFailureConcurrentConsumption(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        Thread producing = producing(scope, topic, 200, 100);
        int failed = 0;
        try (var consumer = scope.consumer(group, Scope.EXPLICIT)) {
            consumer.subscribe(Set.of(topic));
            for (long end = System.nanoTime() + 30_000_000_000L; failed == 0 && System.nanoTime() < end; )
                failed = consumer.poll(Duration.ofSeconds(2)).count();
        }
        Check.that(failed > 0, "records of the consumer that fails");
        everyOffsetOnce(20_000, consumeTogether(scope, topic, group, 4, 20_000));
        producing.join();
    }

    /** Records of the last poll before a close are not acknowledged: the next consumer gets them. */
    static void testConsumerCloseInGroupSequential(Scope scope) throws Exception {
        int count = 1500;
        String topic = scope.topic(), group = scope.group();
        var first = scope.consumer(group);
        var second = scope.consumer(group);
        first.subscribe(Set.of(topic));
        second.subscribe(Set.of(topic));
        for (int batch = 0; batch < 15; batch++) scope.send(topic, 100);
        List<Long> offsets = new ArrayList<>(), last = new ArrayList<>();
        for (int polls = 0; offsets.size() < count && polls < 30; polls++) {
            List<Long> found = new ArrayList<>();
            first.poll(Duration.ofSeconds(5)).forEach(each -> found.add(each.offset()));
            if (!found.isEmpty()) last = found;
            offsets.addAll(found);
        }
        everyOffsetOnce(count, offsets);
        first.close();
        scope.note("records of the last poll before the close: " + last.size());
        var again = scope.collect(second, last.size());
        Check.equal(last, Scope.offsetsOf(again), "offsets after the close");
        Check.equal(Set.of(2), new HashSet<>(Scope.counts(again)), "delivery counts");
        scope.nothing(second);
    }

    static void testAcquisitionLockTimeoutOnConsumer(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group(Map.of("share.record.lock.duration.ms", "2500"));
        var consumer = scope.consumer(group);
        consumer.subscribe(Set.of(topic));
        scope.send(topic, "a");
        Check.equal(List.of("a"), Scope.values(scope.poll(consumer, 1)), "values");
        scope.nothing(consumer, Duration.ofSeconds(1));
        scope.send(topic, "b");
        Check.equal(List.of("b"), Scope.values(scope.poll(consumer, 1)), "values");
        Thread.sleep(4000);
        var again = scope.poll(consumer, 1);
        Check.equal(List.of("b"), Scope.values(again), "values after the end of the lock");
        Check.equal(List.of(2), Scope.counts(again), "delivery counts");
        scope.nothing(consumer, Duration.ofSeconds(1));
        scope.nothing(consumer, Duration.ofSeconds(3));
    }

    /** Each record is released a number of times that follows from its offset, then accepted or rejected. */
    static void testComplexShareConsumer(Scope scope) throws Exception {
        String topic = scope.topic("topic", 3, Map.of()), group = scope.group();
        int count = 140;
        Thread producing = producing(scope, topic, count / 7, 7);
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        Map<Long, Integer> deliveries = new TreeMap<>();
        for (int empty = 0; empty < 3; ) {
            var records = consumer.poll(Duration.ofMillis(2500));
            empty = records.isEmpty() ? empty + 1 : 0;
            for (var record : records) {
                int delivery = deliveries.merge(record.offset(), 1, Integer::sum);
                Check.equal(delivery, (int) record.deliveryCount().get(), "delivery count of " + record.offset());
                int accepted = attempt(record.offset());
                consumer.acknowledge(record, accepted == 0 ? REJECT : delivery == accepted ? ACCEPT : RELEASE);
            }
        }
        producing.join();
        Map<Long, Integer> expected = new TreeMap<>();
        for (long offset = 0; offset < count; offset++) expected.put(offset, Math.max(1, Math.min(5, attempt(offset))));
        Check.equal(expected, deliveries, "deliveries of each offset");
    }

    /** At which delivery the record is accepted; 0: it is rejected; 6 exceeds the limit. */
    private static int attempt(long offset) {
        return (int) ((offset + offset / 7) % 7);
    }

    @Server("max-size")
    static void testShareGroupMaxSizeConfigExceeded(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        for (int member = 0; member < 3; member++) {
            var consumer = scope.consumer(group);
            consumer.subscribe(Set.of(topic));
            scope.nothing(consumer, Duration.ofSeconds(2));
        }
        var members = scope.admin().describeShareGroups(Set.of(group)).all().get().get(group).members();
        Check.equal(3, members.size(), "members");
        var fourth = scope.consumer(group);
        fourth.subscribe(Set.of(topic));
        var error = Check.fails(GroupMaxSizeReachedException.class, () -> {
            for (int polls = 0; polls < 10; polls++) fourth.poll(Duration.ofSeconds(3));
            return "ten polls";
        });
        scope.note("message: " + error.getMessage());
    }

    /** A consumer without a place in the cache of sessions gets nothing, and no error, until there is a place. */
    @Server("session-cache")
    static void testShareGroupShareSessionCacheIsFull(Scope scope) throws Exception {
        String topic = scope.topic();
        var first = scope.consumer(scope.group("first", Map.of()));
        var second = scope.consumer(scope.group("second", Map.of()));
        scope.send(topic, "a");
        first.subscribe(Set.of(topic));
        second.subscribe(Set.of(topic));
        Check.equal(List.of("a"), Scope.values(scope.poll(first, 1)), "values of the first consumer");
        scope.send(topic, "b");
        scope.nothing(second, Duration.ofSeconds(3));
        scope.nothing(second, Duration.ofSeconds(3));
        first.close();
        Check.equal(List.of("a", "b"), Scope.values(scope.collect(second, 2)), "values of the second consumer");
    }

    /** Offsets that the members of a group read until all are read; each acknowledges before it closes. */
    private static List<Long> consumeTogether(Scope scope, String topic, String group, int members, int count)
        throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(members);
        List<Long> offsets = Collections.synchronizedList(new ArrayList<>());
        try {
            List<Future<?>> running = new ArrayList<>();
            for (int member = 0; member < members; member++) {
                running.add(threads.submit(() -> {
                    try (var consumer = scope.consumer(group, Map.of("max.partition.fetch.bytes", 100_000))) {
                        consumer.subscribe(Set.of(topic));
                        long deadline = System.nanoTime() + 120_000_000_000L;
                        while (offsets.size() < count && System.nanoTime() < deadline)
                            consumer.poll(Duration.ofSeconds(1)).forEach(each -> offsets.add(each.offset()));
                        consumer.commitSync(Duration.ofSeconds(10));
                    }
                }));
            }
            for (Future<?> each : running) each.get();
        } finally {
            threads.shutdownNow();
        }
        return offsets;
    }

    private static void everyOffsetOnce(int count, Collection<Long> offsets) {
        Check.equal(count, offsets.size(), "records");
        Check.equal(count, new HashSet<>(offsets).size(), "different offsets");
    }

    private static Thread producing(Scope scope, String topic, int batches, int size) {
        Thread thread = new Thread(() -> {
            try {
                for (int batch = 0; batch < batches; batch++) scope.send(topic, size);
            } catch (Exception error) {
                scope.note("the producer failed: " + error);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }
}
