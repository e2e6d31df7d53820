package sharegroups;

import static org.apache.kafka.clients.consumer.AcknowledgeType.*;

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;

/** Records that a group gives up go to another topic. */
final class DeadLetterCases {
    private static final String TOPIC_OF_GROUP = "errors.deadletterqueue.topic.name";
    private static final String COPY = "errors.deadletterqueue.copy.record.enable";
    private static final String ENABLED = "errors.deadletterqueue.group.enable";
    private static final String REJECTED = "Offset rejected by client.";
    private static final String EXCEEDED = "Offset delivery count exceeded the threshold.";

    /** A source topic, a topic of dead letters, and a group that uses it. */
    private record Given(Scope scope, String topic, String letters, String group) {
        void reject(int count) throws Exception {
            try (var consumer = scope.consumer(group, Scope.EXPLICIT)) {
                consumer.subscribe(Set.of(topic));
                DeadLetterCases.reject(scope, consumer, topic, count);
            }
        }
    }

    private static Given given(Scope scope, int partitions, Map<String, String> more) throws Exception {
        String topic = scope.topic("topic", partitions, Map.of());
        String letters = scope.topic("dlq.letters", partitions, Map.of(ENABLED, "true"));
        Map<String, String> configs = new HashMap<>(Map.of(TOPIC_OF_GROUP, letters, COPY, "false"));
        configs.putAll(more);
        return new Given(scope, topic, letters, scope.group(configs));
    }

    static void testRejectedRecordsWrittenToDlqWithCopyRecordDisabled(Scope scope) throws Exception {
        Given given = given(scope, 1, Map.of());
        scope.send(given.topic, 5);
        given.reject(5);
        var letters = letters(scope, given.letters, 0, 5);
        Check.equal(List.of(0L, 1L, 2L, 3L, 4L), sources(letters), "source offsets");
        for (var letter : letters) {
            Check.equal(null, letter.key(), "key");
            Check.equal(null, letter.value(), "value");
            Check.equal(given.topic, header(letter, "topic"), "source topic");
            Check.equal("0", header(letter, "partition"), "source partition");
            Check.equal(given.group, header(letter, "group"), "group");
            Check.equal("1", header(letter, "delivery.count"), "delivery count");
            Check.equal(REJECTED, header(letter, "message"), "message");
        }
        scope.note("headers: " + names(letters.get(0)));
    }

    static void testRejectedRecordsWrittenToDlqWithCopyRecordEnabled(Scope scope) throws Exception {
        Given given = given(scope, 1, Map.of(COPY, "true"));
        var record = new ProducerRecord<>(given.topic, 0, 1_000_000L, "key", "0");
        record.headers().add("mine", "kept".getBytes());
        scope.send(List.of(record));
        scope.send(given.topic, "1", "2", "3", "4");
        given.reject(5);
        var letters = letters(scope, given.letters, 0, 5);
        Check.equal(List.of(0L, 1L, 2L, 3L, 4L), sources(letters), "source offsets");
        for (var letter : letters) {
            Check.equal("key", letter.key(), "key");
            Check.equal(header(letter, "offset"), letter.value(), "value");
            Check.equal(given.group, header(letter, "group"), "group");
            Check.equal(REJECTED, header(letter, "message"), "message");
            if (letter.value().equals("0")) {
                scope.note("headers: " + names(letter) + "; time of the source: 1000000, of the letter: "
                    + letter.timestamp() + " " + letter.timestampType());
            }
        }
    }

    @Server("dead-letter-topics")
    static void testRejectedRecordsWrittenToAutoCreatedDlq(Scope scope) throws Exception {
        String topic = scope.topic(), created = scope.named("dlq.created");
        String group = scope.group(Map.of(TOPIC_OF_GROUP, created, COPY, "false"));
        scope.send(topic, 5);
        new Given(scope, topic, created, group).reject(5);
        Check.eventually(Scope.WAIT_S, "the topic", () -> scope.admin().listTopics().names().get().contains(created));
        var letters = letters(scope, created, 0, 5);
        Check.equal(List.of(0L, 1L, 2L, 3L, 4L), sources(letters), "source offsets");
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, created);
        var configs = scope.admin().describeConfigs(List.of(resource)).all().get().get(resource);
        Check.equal("true", configs.get(ENABLED).value(), ENABLED);
        var partitions = scope.admin().describeTopics(Set.of(created)).allTopicNames().get().get(created).partitions();
        scope.note("partitions of the created topic: " + partitions.size());
    }

    static void testReleasedRecordsExceedingDeliveryCountWrittenToDlq(Scope scope) throws Exception {
        Given given = given(scope, 1, Map.of("share.delivery.count.limit", "2"));
        scope.send(given.topic, 5);
        try (var consumer = scope.consumer(given.group, Scope.EXPLICIT)) {
            consumer.subscribe(Set.of(given.topic));
            for (int delivery = 0; delivery < 2; delivery++) {
                Scope.acknowledge(consumer, scope.collect(consumer, 5), RELEASE);
                scope.committed(consumer, given.topic);
            }
            var letters = letters(scope, given.letters, 0, 5);
            Check.equal(List.of(0L, 1L, 2L, 3L, 4L), sources(letters), "source offsets");
            for (var letter : letters) {
                Check.equal(null, letter.value(), "value");
                Check.equal("2", header(letter, "delivery.count"), "delivery count");
                Check.equal(EXCEEDED, header(letter, "message"), "message");
            }
            scope.nothing(consumer);
        }
    }

    /** Of three neighbours one is rejected, one released until its end, one accepted. */
    static void testMixedAcknowledgementTypesWrittenToDlq(Scope scope) throws Exception {
        Given given = given(scope, 1, Map.of("share.delivery.count.limit", "2"));
        scope.send(given.topic, 6);
        try (var consumer = scope.consumer(given.group, Scope.EXPLICIT)) {
            consumer.subscribe(Set.of(given.topic));
            List<AcknowledgeType> types = List.of(REJECT, RELEASE, ACCEPT);
            for (int delivery = 1; delivery <= 2; delivery++) {
                for (var record : scope.collect(consumer, delivery == 1 ? 6 : 2))
                    consumer.acknowledge(record, types.get((int) record.offset() % 3));
                scope.committed(consumer, given.topic);
            }
        }
        Map<Long, String> causes = new TreeMap<>();
        for (var letter : letters(scope, given.letters, 0, 4))
            causes.put(Long.parseLong(header(letter, "offset")), header(letter, "message"));
        Check.equal(Map.of(0L, REJECTED, 1L, EXCEEDED, 3L, REJECTED, 4L, EXCEEDED), causes, "causes by source offset");
        scope.lag(given.group, given.topic, 0);
    }

    static void testDlqRecordsRoutedToCorrectDlqPartition(Scope scope) throws Exception {
        Given given = given(scope, 2, Map.of());
        for (int partition = 0; partition < 2; partition++)
            scope.send(given.topic, partition, Scope.numbers(3));
        given.reject(6);
        for (int partition = 0; partition < 2; partition++) {
            var letters = letters(scope, given.letters, partition, 3);
            Check.equal(List.of(0L, 1L, 2L), sources(letters), "source offsets");
            for (var letter : letters)
                Check.equal(Integer.toString(partition), header(letter, "partition"), "source partition");
        }
    }

    static void testManyRejectedRecordsAllWrittenToDlq(Scope scope) throws Exception {
        Given given = given(scope, 1, Map.of());
        scope.send(given.topic, 500);
        given.reject(500);
        var letters = letters(scope, given.letters, 0, 500);
        List<Long> expected = new ArrayList<>();
        for (long offset = 0; offset < 500; offset++) expected.add(offset);
        Check.equal(expected, sources(letters), "source offsets");
    }

    /** Without a usable topic of dead letters rejected records do not come again, and nothing is written. */
    static void testDlqNotTriggeredWhenGatedOff(Scope scope) throws Exception {
        Map<String, String> letters = new LinkedHashMap<>();
        letters.put("unnamed", "");
        letters.put("disabled", scope.topic("dlq.disabled", 1, Map.of()));
        letters.put("missing", scope.named("dlq.missing"));
        letters.put("prefix", scope.topic("wrong.prefix", 1, Map.of(ENABLED, "true")));
        for (var each : letters.entrySet()) {
            String topic = scope.topic(each.getKey(), 1, Map.of()), name = each.getValue();
            String group = scope.group("of-" + each.getKey(), name.isEmpty() ? Map.of() : Map.of(TOPIC_OF_GROUP, name));
            scope.send(topic, 3);
            try (var consumer = scope.consumer(group, Scope.EXPLICIT)) {
                consumer.subscribe(Set.of(topic));
                reject(scope, consumer, topic, 3);
                scope.nothing(consumer, Duration.ofSeconds(2));
            }
            var consumer = scope.consumer(group);
            consumer.subscribe(Set.of(topic));
            scope.nothing(consumer, Duration.ofSeconds(2));
            scope.note(each.getKey() + ": " + scope.offsets(group, topic));
            if (scope.admin().listTopics().names().get().contains(name))
                Check.equal(0L, end(scope, name), "records of " + name);
            else
                Check.that(!each.getKey().equals("disabled"), "the topic " + name);
        }
    }

    static void testDlqStopsAfterDisablingForGroup(Scope scope) throws Exception {
        Given given = given(scope, 1, Map.of());
        try (var consumer = scope.consumer(given.group, Scope.EXPLICIT)) {
            consumer.subscribe(Set.of(given.topic));
            scope.send(given.topic, 5);
            reject(scope, consumer, given.topic, 5);
            Check.equal(5, letters(scope, given.letters, 0, 5).size(), "letters");
            scope.configure(given.group, Map.of(TOPIC_OF_GROUP, ""));
            scope.send(given.topic, 5);
            reject(scope, consumer, given.topic, 5);
            scope.nothing(consumer, Duration.ofSeconds(2));
            scope.nothing(consumer, Duration.ofSeconds(2));
        }
        Check.equal(5L, end(scope, given.letters), "letters");
    }

    private static void reject(Scope scope, ShareConsumer<String, String> consumer, String topic, int count) {
        for (int rejected = 0; rejected < count; ) {
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            for (int polls = 0; records.isEmpty() && polls < 12; polls++)
                consumer.poll(Scope.POLL).forEach(records::add);
            Check.that(!records.isEmpty(), "records to reject");
            Scope.acknowledge(consumer, records, REJECT);
            scope.committed(consumer, topic);
            rejected += records.size();
        }
    }

    /** Records of the topic of dead letters; fails if there are not so many, or more. */
    private static List<ConsumerRecord<String, String>> letters(Scope scope, String topic, int partition, int count)
        throws Exception {
        var where = new TopicPartition(topic, partition);
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try (var consumer = scope.reader()) {
            consumer.assign(List.of(where));
            consumer.seekToBeginning(List.of(where));
            Check.eventually(Scope.WAIT_S, count + " letters in " + where, () -> {
                consumer.poll(Duration.ofMillis(500)).forEach(found::add);
                return found.size() >= count;
            });
            consumer.poll(Duration.ofMillis(500)).forEach(found::add);
        }
        Check.equal(count, found.size(), "letters in " + where);
        return found;
    }

    private static long end(Scope scope, String topic) throws Exception {
        try (var consumer = scope.reader()) {
            var where = new TopicPartition(topic, 0);
            return consumer.endOffsets(List.of(where)).get(where);
        }
    }

    /** Sorted. */
    private static List<Long> sources(List<ConsumerRecord<String, String>> letters) {
        return letters.stream().map(each -> Long.parseLong(header(each, "offset"))).sorted().toList();
    }

    private static List<String> names(ConsumerRecord<String, String> letter) {
        return Arrays.stream(letter.headers().toArray()).map(Header::key).toList();
    }

    private static String header(ConsumerRecord<String, String> letter, String name) {
        Header header = letter.headers().lastHeader("__dlq.errors." + name);
        return header == null ? null : new String(header.value());
    }
}
