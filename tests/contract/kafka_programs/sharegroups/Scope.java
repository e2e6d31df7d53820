package sharegroups;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

/** What one case works with: clients, topics and groups of its own. Closes its clients at the end. */
final class Scope implements AutoCloseable {
    static final Map<String, Object> EXPLICIT = Map.of(ConsumerConfig.SHARE_ACKNOWLEDGEMENT_MODE_CONFIG, "explicit");
    static final double WAIT_S = 30;
    static final Duration POLL = Duration.ofMillis(2500);

    private final String bootstrap;
    private final String suffix;
    private final Runner.Requests requests;
    private final Deque<AutoCloseable> opened = new ConcurrentLinkedDeque<>();
    private final List<String> notes = new CopyOnWriteArrayList<>();
    private Admin admin;
    private Producer<String, String> producer;

    Scope(String bootstrap, String suffix, Runner.Requests requests) {
        this.bootstrap = bootstrap;
        this.suffix = suffix;
        this.requests = requests;
    }

    /** A remark on what the server did, for the reader of the results. */
    void note(String text) {
        notes.add(text);
    }

    List<String> notes() {
        return notes;
    }

    /** Ask the program that started this one to do something to the server, and wait until it is done. */
    void request(String action) throws Exception {
        requests.send(action);
    }

    /** A name that no other case uses. */
    String named(String name) {
        return name + suffix;
    }

    // Topics

    String topic() throws Exception {
        return topic("topic", 1, Map.of());
    }

    String topic(String name, int partitions, Map<String, String> configs) throws Exception {
        String full = named(name);
        admin().createTopics(Set.of(new NewTopic(full, partitions, (short) 1).configs(configs))).all().get();
        return full;
    }

    synchronized Admin admin() {
        if (admin == null) admin = opened(Admin.create(Map.of("bootstrap.servers", bootstrap)));
        return admin;
    }

    // Producing

    /** With its own connection, for instance of a transaction. */
    Producer<String, String> producer(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "linger.ms", 60_000));
        all.putAll(settings);
        return opened(new KafkaProducer<>(all, new StringSerializer(), new StringSerializer()));
    }

    /** Write the values to partition 0 as one batch. */
    void send(String topic, String... values) throws Exception {
        send(topic, 0, List.of(values));
    }

    /** Write values "0", "1", ... to partition 0 as one batch. */
    void send(String topic, int count) throws Exception {
        send(topic, 0, numbers(count));
    }

    void send(String topic, int partition, List<String> values) throws Exception {
        List<ProducerRecord<String, String>> records = new ArrayList<>();
        for (String value : values) records.add(new ProducerRecord<>(topic, partition, "key", value));
        send(records);
    }

    /** One batch for each partition. */
    synchronized List<RecordMetadata> send(List<ProducerRecord<String, String>> records) throws Exception {
        if (producer == null) {
            producer = producer(Map.of("batch.size", 1 << 20, "buffer.memory", 64 << 20));
        }
        producer.partitionsFor(records.get(0).topic()); // so that no record waits for metadata
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (ProducerRecord<String, String> record : records) sent.add(producer.send(record));
        producer.flush();
        List<RecordMetadata> written = new ArrayList<>();
        for (Future<RecordMetadata> each : sent) written.add(each.get());
        return written;
    }

    static List<String> numbers(int count) {
        List<String> numbers = new ArrayList<>();
        for (int number = 0; number < count; number++) numbers.add(Integer.toString(number));
        return numbers;
    }

    // Groups

    /** A group that begins with the first record. */
    String group() throws Exception {
        return group("group", Map.of());
    }

    String group(Map<String, String> configs) throws Exception {
        return group("group", configs);
    }

    String group(String name, Map<String, String> configs) throws Exception {
        String full = named(name);
        Map<String, String> all = new LinkedHashMap<>(Map.of("share.auto.offset.reset", "earliest"));
        all.putAll(configs);
        configure(full, all);
        return full;
    }

    /** Set configs of the group, and wait until they are described. */
    void configure(String group, Map<String, String> configs) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        List<AlterConfigOp> changes = new ArrayList<>();
        configs.forEach((name, value) ->
            changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        admin().incrementalAlterConfigs(Map.of(resource, changes)).all().get();
        Check.eventually(10, "configs " + configs + " of " + group, () -> {
            Config found = admin().describeConfigs(List.of(resource)).all().get().get(resource);
            return configs.entrySet().stream().allMatch(each ->
                found.get(each.getKey()) != null && each.getValue().equals(found.get(each.getKey()).value()));
        });
    }

    /** Lag and start offset as the server describes them, or null. */
    SharePartitionOffsetInfo offsets(String group, String topic) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        var wanted = Map.of(group, new ListShareGroupOffsetsSpec().topicPartitions(List.of(partition)));
        return admin().listShareGroupOffsets(wanted).partitionsToOffsetInfo(group).get().get(partition);
    }

    void lag(String group, String topic, long expected) throws Exception {
        SharePartitionOffsetInfo[] last = new SharePartitionOffsetInfo[1];
        try {
            Check.eventually(WAIT_S, "lag " + expected, () -> {
                last[0] = offsets(group, topic);
                return last[0] != null && last[0].lag().equals(Optional.of(expected));
            });
        } catch (AssertionError error) {
            throw new AssertionError(error.getMessage() + ", but was " + last[0]);
        }
    }

    // Consuming

    ShareConsumer<String, String> consumer(String group) {
        return consumer(group, Map.of());
    }

    ShareConsumer<String, String> consumer(String group, Map<String, Object> settings) {
        return consumer(group, settings, new StringDeserializer());
    }

    ShareConsumer<String, String> consumer(
        String group, Map<String, Object> settings, Deserializer<String> values
    ) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group));
        all.putAll(settings);
        return opened(new KafkaShareConsumer<>(all, new StringDeserializer(), values));
    }

    /** A consumer without a group. */
    Consumer<String, String> reader() {
        var settings = Map.<String, Object>of("bootstrap.servers", bootstrap, "enable.auto.commit", false);
        return opened(new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer()));
    }

    /** Poll until there are records, which must be so many. */
    List<ConsumerRecord<String, String>> poll(ShareConsumer<String, String> consumer, int expected) {
        long deadline = System.nanoTime() + (long) (WAIT_S * 1e9);
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        while (found.isEmpty() && System.nanoTime() < deadline) consumer.poll(POLL).forEach(found::add);
        Check.equal(expected, found.size(), "records of a poll");
        return found;
    }

    /** Poll until there are so many records in all. */
    List<ConsumerRecord<String, String>> collect(ShareConsumer<String, String> consumer, int expected) {
        long deadline = System.nanoTime() + (long) (2 * WAIT_S * 1e9);
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        while (found.size() < expected && System.nanoTime() < deadline)
            consumer.poll(Duration.ofMillis(500)).forEach(found::add);
        Check.equal(expected, found.size(), "records of all polls");
        return found;
    }

    void nothing(ShareConsumer<String, String> consumer) {
        nothing(consumer, POLL);
    }

    void nothing(ShareConsumer<String, String> consumer, Duration waiting) {
        List<String> found = new ArrayList<>();
        consumer.poll(waiting).forEach(each ->
            found.add(each.topic() + "@" + each.offset() + " x" + each.deliveryCount().orElse((short) -1)));
        Check.equal(List.of(), found, "records of a poll");
    }

    /** All results of a commit are successes; a poll may have records of several partitions. */
    void committed(ShareConsumer<String, String> consumer, String topic) {
        Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync();
        Check.that(!results.isEmpty(), "partitions of a commit");
        results.forEach((partition, error) -> {
            Check.equal(topic, partition.topic(), "topic of a commit");
            Check.equal(Optional.empty(), error, "error of a commit");
        });
    }

    static void acknowledge(
        ShareConsumer<String, String> consumer, List<ConsumerRecord<String, String>> records, AcknowledgeType type
    ) {
        for (ConsumerRecord<String, String> record : records) consumer.acknowledge(record, type);
    }

    static List<String> values(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    static List<Long> offsetsOf(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::offset).toList();
    }

    static List<Integer> counts(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(each -> (int) each.deliveryCount().get()).toList();
    }

    private <T extends AutoCloseable> T opened(T client) {
        opened.push(client);
        return client;
    }

    @Override
    public void close() {
        for (AutoCloseable client : opened) {
            try {
                if (client instanceof ShareConsumer<?, ?> consumer) consumer.close(Duration.ofSeconds(5));
                else if (client instanceof Producer<?, ?> each) each.close(Duration.ofSeconds(5));
                else if (client instanceof Admin each) each.close(Duration.ofSeconds(5));
                else client.close();
            } catch (Exception error) {
                note("close: " + error);
            }
        }
    }
}
