package sharegroups;

import static org.apache.kafka.clients.consumer.AcknowledgeType.*;

import java.util.*;
import org.apache.kafka.clients.consumer.*;

/** Records that were delivered often come in smaller and smaller polls, the last time alone. */
final class ThrottlingCases {
    static void testFetchWithThrottledDelivery(Scope scope) throws Exception {
        halving(scope, 5, 100);
    }

    static void testFetchWithThrottledDeliveryBatchesWithIncreasedDeliveryLimit(Scope scope) throws Exception {
        halving(scope, 10, 512);
    }

    static void testFetchWithThrottledDeliveryBatchesWithDecreasedDeliveryLimit(Scope scope) throws Exception {
        halving(scope, 2, 512);
    }

    /** Whatever the sizes of the polls are, each offset is delivered as often as the limit says, with its count. */
    static void testFetchWithThrottledDeliveryValidateDeliveryCount(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group(Map.of("share.delivery.count.limit", "10"));
        scope.send(topic, 500);
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        Map<Long, Integer> deliveries = new HashMap<>();
        List<Integer> sizes = new ArrayList<>();
        while (deliveries.size() < 500 || deliveries.values().stream().anyMatch(each -> each < 10)) {
            var records = new ArrayList<ConsumerRecord<String, String>>();
            for (int polls = 0; records.isEmpty() && polls < 8; polls++)
                consumer.poll(Scope.POLL).forEach(records::add);
            Check.that(!records.isEmpty(), "records until each was delivered 10 times");
            sizes.add(records.size());
            for (var record : records)
                Check.equal(deliveries.merge(record.offset(), 1, Integer::sum), (int) record.deliveryCount().get(),
                    "delivery count of offset " + record.offset());
            Scope.acknowledge(consumer, records, RELEASE);
            scope.committed(consumer, topic);
        }
        Check.equal(List.of(500, 500, 500, 500, 500, 250, 125, 62, 31, 1), sizes.subList(0, 10), "sizes of polls");
        Check.equal(Set.of(10), new HashSet<>(deliveries.values()), "deliveries of the offsets");
        scope.note(sizes.size() + " polls");
        scope.nothing(consumer);
    }

    /** Records in their last delivery do not come with others. */
    static void testFetchWithThrottledDeliveryBatchesMultipleConsumers(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, "a");
        scope.send(topic, "b");
        var first = scope.consumer(group, with("max.poll.records", 1));
        var second = scope.consumer(group, with("max.poll.records", 2));
        first.subscribe(Set.of(topic));
        second.subscribe(Set.of(topic));
        var held = scope.poll(first, 1);
        Check.equal(List.of(0L), Scope.offsetsOf(held), "offsets of the first consumer");
        for (int count = 1; count <= 4; count++) {
            var records = scope.poll(second, 1);
            Check.equal(List.of(1L), Scope.offsetsOf(records), "offsets of the second consumer");
            Check.equal(List.of(count), Scope.counts(records), "delivery counts");
            Scope.acknowledge(second, records, RELEASE);
            scope.committed(second, topic);
        }
        Scope.acknowledge(first, held, RELEASE);
        scope.committed(first, topic);
        for (long offset = 0; offset < 2; offset++) {
            var records = scope.poll(second, 1);
            Check.equal(List.of(offset), Scope.offsetsOf(records), "offsets of the second consumer");
            Check.equal(List.of(offset == 0 ? 2 : 5), Scope.counts(records), "delivery counts");
            Scope.acknowledge(second, records, ACCEPT);
            scope.committed(second, topic);
        }
        scope.nothing(first);
    }

    /**
     * One batch is released until all of its records are archived. The sizes and offsets of all polls are compared with
     * a model: the lowest available offset decides, by its count, how many records of the same count come.
     */
    private static void halving(Scope scope, int limit, int size) throws Exception {
        String topic = scope.topic();
        String group = scope.group(Map.of("share.delivery.count.limit", Integer.toString(limit)));
        scope.send(topic, size);
        var consumer = scope.consumer(group, with("max.poll.records", 512));
        consumer.subscribe(Set.of(topic));
        int[] counts = new int[size];
        int polls = 0;
        for (int first = 0; ; polls++) {
            while (first < size && counts[first] == limit) first++;
            if (first == size) break;
            int expected = size(counts[first], limit, size), end = first;
            while (end < size && end < first + expected && counts[end] == counts[first]) end++;
            var records = scope.poll(consumer, end - first);
            for (int offset = first; offset < end; offset++) {
                Check.equal((long) offset, records.get(offset - first).offset(), "offset in poll " + polls);
                Check.equal(++counts[offset], (int) records.get(offset - first).deliveryCount().get(),
                    "delivery count of offset " + offset);
            }
            Scope.acknowledge(consumer, records, RELEASE);
            scope.committed(consumer, topic);
        }
        scope.note(polls + " polls");
        scope.nothing(consumer);
    }

    /** Records of a poll whose first record was delivered `count` times; the batch had `size` when it came first. */
    private static int size(int count, int limit, int size) {
        int free = Math.max(2, (limit + 1) / 2);
        if (limit <= 2 || count < free) return size;
        return count == limit - 1 ? 1 : Math.max(1, size >> (count - free + 1));
    }

    private static Map<String, Object> with(String name, Object value) {
        Map<String, Object> settings = new HashMap<>(Scope.EXPLICIT);
        settings.put(name, value);
        return settings;
    }
}
