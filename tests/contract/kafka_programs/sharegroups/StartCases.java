package sharegroups;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.ShareConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;

/** Where a group begins to read, and records of transactions. */
final class StartCases {
    /** The default is the end of the log. */
    static void testShareAutoOffsetResetDefaultValue(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.named("group");
        scope.send(topic, "a");
        var consumer = scope.consumer(group);
        consumer.subscribe(Set.of(topic));
        assigned(scope, consumer, group);
        scope.send(topic, "b");
        Check.equal(List.of("b"), Scope.values(scope.poll(consumer, 1)), "values");
    }

    static void testShareAutoOffsetResetEarliest(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = PollingCases.subscribed(scope, topic);
        Check.equal(List.of("a"), Scope.values(scope.poll(consumer, 1)), "values");
        scope.send(topic, "b");
        Check.equal(List.of("b"), Scope.values(scope.poll(consumer, 1)), "values");
    }

    static void testShareAutoOffsetResetEarliestAfterLsoMovement(Scope scope) throws Exception {
        String topic = scope.topic();
        for (String value : Scope.numbers(10)) scope.send(topic, value);
        PollingCases.deleteRecords(scope, topic, 5);
        var records = PollingCases.consumed(scope, scope.group(), topic, 5);
        Check.equal(List.of(5L, 6L, 7L, 8L, 9L), Scope.offsetsOf(records), "offsets");
    }

    static void testShareAutoOffsetResetMultipleGroupsWithDifferentValue(Scope scope) throws Exception {
        String topic = scope.topic();
        String latest = scope.group("latest", Map.of("share.auto.offset.reset", "latest"));
        var fromStart = scope.consumer(scope.group("earliest", Map.of()));
        var fromEnd = scope.consumer(latest);
        fromStart.subscribe(Set.of(topic));
        fromEnd.subscribe(Set.of(topic));
        scope.send(topic, "a");
        Check.equal(List.of("a"), Scope.values(scope.poll(fromStart, 1)), "values from the start");
        assigned(scope, fromEnd, latest); // a consumer joins at its first poll, so the record was there before
        scope.send(topic, "b");
        Check.equal(List.of("b"), Scope.values(scope.poll(fromStart, 1)), "values from the start");
        Check.equal(List.of("b"), Scope.values(scope.poll(fromEnd, 1)), "values from the end");
    }

    static void testShareAutoOffsetResetByDuration(Scope scope) throws Exception {
        String topic = scope.topic();
        long now = System.currentTimeMillis(), minute = 60_000;
        List<Long> times = List.of(now - 120 * minute, now - 30 * minute, now);
        for (long time : times) scope.send(List.of(new ProducerRecord<>(topic, 0, time, "key", "at " + time)));
        String hour = scope.group("hour", Map.of("share.auto.offset.reset", "by_duration:PT1H"));
        var recent = PollingCases.consumed(scope, hour, topic, 2);
        Check.equal(List.of("at " + times.get(1), "at " + now), Scope.values(recent), "values of the last hour");
        Check.equal(times.get(1), recent.get(0).timestamp(), "timestamp");
        String hours = scope.group("hours", Map.of("share.auto.offset.reset", "by_duration:PT3H"));
        Check.equal(3, PollingCases.consumed(scope, hours, topic, 3).size(), "records of three hours");
    }

    static void testShareAutoOffsetResetByDurationInvalidFormat(Scope scope) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, scope.named("group"));
        for (String value : List.of("by_duration:1h", "by_duration:-PT1H", "by_duration:", "none")) {
            Collection<AlterConfigOp> change = List.of(
                new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", value), AlterConfigOp.OpType.SET));
            var error = Check.fails(ExecutionException.class,
                () -> scope.admin().incrementalAlterConfigs(Map.of(resource, change)).all().get());
            Check.equal(InvalidConfigurationException.class, error.getCause().getClass(), "error of " + value);
            scope.note(value + ": " + error.getCause().getMessage());
        }
    }

    static void testReadCommittedIsolationLevel(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group(Map.of("share.isolation.level", "read_committed"));
        var producer = scope.producer(Map.of("transactional.id", scope.named("producer"), "linger.ms", 0));
        producer.initTransactions();
        List<String> committed = new ArrayList<>();
        for (int number = 1; number <= 10; number++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "key", "value " + number));
            producer.flush();
            if (number % 5 == 0) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
                committed.add("value " + number);
            }
        }
        Check.equal(committed, Scope.values(PollingCases.consumed(scope, group, topic, 8)), "committed values");
    }

    /** Poll until the group's only member has partitions, and its session with the broker exists. */
    private static void assigned(Scope scope, ShareConsumer<String, String> consumer, String group) throws Exception {
        Check.eventually(Scope.WAIT_S, "an assignment", () -> {
            scope.nothing(consumer, Duration.ofSeconds(1));
            return isAssigned(scope, group);
        });
        scope.nothing(consumer, Duration.ofSeconds(2));
    }

    private static boolean isAssigned(Scope scope, String group) throws Exception {
        var described = scope.admin().describeShareGroups(Set.of(group)).all().get().get(group);
        return described.members().stream().anyMatch(each -> !each.assignment().topicPartitions().isEmpty());
    }
}
