package sharegroups;

import static org.apache.kafka.clients.consumer.AcknowledgeType.*;

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.errors.InvalidRecordStateException;

/** Acknowledgements that keep a record longer. */
final class RenewCases {
    static void testRenewAcknowledgementOnPoll(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, 10);
        var consumer = AcknowledgingCases.explicit(scope, topic);
        Acknowledged told = new Acknowledged();
        consumer.setAcknowledgementCommitCallback(told);
        acceptAndRenew(consumer, scope.poll(consumer, 10));
        var renewed = scope.poll(consumer, 5);
        Check.equal(List.of(1L, 3L, 5L, 7L, 9L), Scope.offsetsOf(renewed), "renewed offsets");
        Check.equal(List.of(1, 1, 1, 1, 1), Scope.counts(renewed), "delivery counts");
        Scope.acknowledge(consumer, renewed, ACCEPT);
        scope.committed(consumer, topic);
        Check.equal(15, told.count(), "acknowledgements that were told");
        Check.equal(List.of(), told.errors(topic), "errors");
        scope.nothing(consumer);
    }

    /** A new lock duration is reported after the next poll, not by a commit. */
    static void testRenewAcknowledgementOnCommitSync(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, 10);
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        var records = scope.poll(consumer, 10);
        Check.equal(Optional.of(15000), consumer.acquisitionLockTimeoutMs(), "lock duration");
        scope.configure(group, Map.of("share.record.lock.duration.ms", "25000"));
        for (var record : records) {
            acceptAndRenew(consumer, List.of(record));
            scope.committed(consumer, topic);
            Check.equal(Optional.of(15000), consumer.acquisitionLockTimeoutMs(), "lock duration after a commit");
        }
        var renewed = scope.poll(consumer, 5);
        Check.equal(List.of(1L, 3L, 5L, 7L, 9L), Scope.offsetsOf(renewed), "renewed offsets");
        Check.equal(Optional.of(25000), consumer.acquisitionLockTimeoutMs(), "lock duration after a poll");
        Scope.acknowledge(consumer, renewed, ACCEPT);
        scope.committed(consumer, topic);
    }

    static void testRenewAcknowledgementInvalidStateRecord(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = AcknowledgingCases.explicit(scope, topic);
        var record = scope.poll(consumer, 1).get(0);
        consumer.acknowledge(record, REJECT);
        scope.committed(consumer, topic);
        Check.fails(IllegalStateException.class, () -> {
            consumer.acknowledge(record, RENEW);
            return "normally";
        });
    }

    static void testRenewAcknowledgementDisabled(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group(Map.of("share.renew.acknowledge.enable", "false"));
        scope.send(topic, "a");
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        Scope.acknowledge(consumer, scope.poll(consumer, 1), RENEW);
        var results = consumer.commitSync();
        Check.equal(1, results.size(), "partitions of a commit");
        var error = results.values().iterator().next();
        Check.that(error.isPresent() && error.get() instanceof InvalidRecordStateException,
            "InvalidRecordStateException, not " + error);
        scope.note("message: " + error.get().getMessage());
    }

    /** A poll that sends renewals returns no new records; the renewed ones come again first, then the new ones. */
    static void testRenewAcknowledgementNoResultInPoll(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group(Map.of("share.record.lock.duration.ms", "6000"));
        scope.send(topic, 10);
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        Acknowledged told = new Acknowledged();
        consumer.setAcknowledgementCommitCallback(told);
        consumer.subscribe(Set.of(topic));
        acceptAndRenew(consumer, scope.poll(consumer, 10));
        scope.send(topic, 5);
        long began = System.nanoTime();
        scope.nothing(consumer, Duration.ofMillis(4000));
        scope.note("the poll with renewals took " + (System.nanoTime() - began) / 1_000_000 + " ms");
        Check.equal(10, told.count(), "acknowledgements that were told");
        var renewed = scope.poll(consumer, 5);
        Check.equal(List.of(1L, 3L, 5L, 7L, 9L), Scope.offsetsOf(renewed), "renewed offsets");
        Scope.acknowledge(consumer, renewed, ACCEPT);
        scope.committed(consumer, topic);
        var fresh = scope.poll(consumer, 5);
        Check.equal(List.of(10L, 11L, 12L, 13L, 14L), Scope.offsetsOf(fresh), "new offsets");
        Scope.acknowledge(consumer, fresh, ACCEPT);
        scope.committed(consumer, topic);
        Check.equal(20, told.count(), "acknowledgements that were told");
        Check.equal(List.of(), told.errors(topic), "errors");
    }

    /** Accept even offsets, renew odd ones. */
    private static void acceptAndRenew(
        ShareConsumer<String, String> consumer, List<ConsumerRecord<String, String>> records
    ) {
        for (var record : records) consumer.acknowledge(record, record.offset() % 2 == 0 ? ACCEPT : RENEW);
    }
}
