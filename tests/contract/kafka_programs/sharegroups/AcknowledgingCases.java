package sharegroups;

import static org.apache.kafka.clients.consumer.AcknowledgeType.*;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Acknowledgements, explicit and implicit. */
final class AcknowledgingCases {
    private static final Duration LONG = Duration.ofSeconds(20);

    static void testExplicitAcknowledgeSuccess(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = explicit(scope, topic);
        scope.poll(consumer, 1).forEach(consumer::acknowledge);
        scope.send(topic, "b");
        Check.equal(List.of("b"), Scope.values(scope.poll(consumer, 1)), "values");
    }

    static void testExplicitAcknowledgeCommitSuccess(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = explicit(scope, topic);
        scope.poll(consumer, 1).forEach(consumer::acknowledge);
        scope.send(topic, "b");
        scope.committed(consumer, topic);
        Check.equal(List.of("b"), Scope.values(scope.poll(consumer, 1)), "values");
    }

    static void testConfiguredExplicitAcknowledgeCommitSuccess(Scope scope) throws Exception {
        testExplicitAcknowledgeCommitSuccess(scope);
    }

    static void testExplicitAcknowledgeReleasePollAccept(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = explicit(scope, topic);
        Scope.acknowledge(consumer, scope.poll(consumer, 1), RELEASE);
        var again = scope.poll(consumer, 1);
        Check.equal(List.of(2), Scope.counts(again), "delivery counts");
        Scope.acknowledge(consumer, again, ACCEPT);
        scope.nothing(consumer);
    }

    /** The last acknowledgement before a commit counts. */
    static void testExplicitAcknowledgeReleaseAccept(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = explicit(scope, topic);
        var records = scope.poll(consumer, 1);
        Scope.acknowledge(consumer, records, RELEASE);
        Scope.acknowledge(consumer, records, ACCEPT);
        scope.nothing(consumer);
    }

    static void testExplicitAcknowledgeReleaseClose(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, "a");
        var consumer = scope.consumer(group, Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        Scope.acknowledge(consumer, scope.poll(consumer, 1), RELEASE);
        consumer.close();
        var other = scope.consumer(group);
        other.subscribe(Set.of(topic));
        Check.equal(List.of(2), Scope.counts(scope.poll(other, 1)), "delivery counts");
    }

    static void testExplicitAcknowledgeThrowsNotInBatch(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = explicit(scope, topic);
        var record = scope.poll(consumer, 1).get(0);
        consumer.acknowledge(record);
        scope.nothing(consumer, Duration.ofMillis(500));
        fails(() -> consumer.acknowledge(record));
    }

    static void testExplicitAcknowledgeOffsetThrowsNotException(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = explicit(scope, topic);
        var record = scope.poll(consumer, 1).get(0);
        fails(() -> consumer.acknowledge(topic, 0, record.offset(), ACCEPT));
        consumer.acknowledge(record);
        scope.committed(consumer, topic);
    }

    static void testExplicitAcknowledgeOffsetThrowsParametersError(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "good", "bad");
        var consumer = scope.consumer(scope.group(), Scope.EXPLICIT, refusing("bad"));
        consumer.subscribe(Set.of(topic));
        scope.poll(consumer, 1).forEach(consumer::acknowledge);
        var error = Check.fails(RecordDeserializationException.class, () -> consumer.poll(LONG));
        Check.equal(1L, error.offset(), "offset of the error");
        fails(() -> consumer.acknowledge("another", 0, 1, REJECT));
        fails(() -> consumer.acknowledge(topic, 1, 1, REJECT));
        fails(() -> consumer.acknowledge(topic, 0, 0, REJECT));
        consumer.acknowledge(topic, 0, 1, REJECT);
        scope.committed(consumer, topic);
        fails(() -> consumer.acknowledge(topic, 0, 1, REJECT));
        scope.nothing(consumer);
    }

    /** A record that cannot be deserialized is released, unless the application says otherwise. */
    static void testExplicitOverrideAcknowledgeCorruptedMessage(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a", "b", "bad");
        var consumer = scope.consumer(scope.group(), Scope.EXPLICIT, refusing("bad"));
        consumer.subscribe(Set.of(topic));
        var records = scope.poll(consumer, 2);
        Check.equal(List.of(0L, 1L), Scope.offsetsOf(records), "offsets");
        records.forEach(consumer::acknowledge);
        for (int time = 0; time < 2; time++) {
            var error = Check.fails(RecordDeserializationException.class, () -> consumer.poll(LONG));
            Check.equal(2L, error.offset(), "offset of the error");
            if (time == 1) consumer.acknowledge(topic, 0, 2, REJECT);
            scope.committed(consumer, topic);
        }
        scope.nothing(consumer);
    }

    static void testExplicitAcknowledgementCommitAsync(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group();
        scope.send(topic, "a", "b", "c");
        var first = scope.consumer(group, Scope.EXPLICIT);
        var second = scope.consumer(group);
        Acknowledged told = new Acknowledged();
        first.setAcknowledgementCommitCallback(told);
        first.subscribe(Set.of(topic));
        second.subscribe(Set.of(topic));
        var records = scope.poll(first, 3);
        Check.equal(List.of(0L, 1L, 2L), Scope.offsetsOf(records), "offsets");
        Scope.acknowledge(first, records.subList(0, 2), ACCEPT);
        first.acknowledge(records.get(2), RELEASE);
        first.commitAsync();
        var released = scope.poll(second, 1);
        Check.equal(List.of(2L), Scope.offsetsOf(released), "offsets");
        Check.equal(List.of(2), Scope.counts(released), "delivery counts");
        Check.eventually(Scope.WAIT_S, "a call of the callback", () -> {
            first.poll(Duration.ofMillis(500));
            return told.offsets(topic).equals(Set.of(0L, 1L, 2L));
        });
        Check.equal(List.of(), told.errors(topic), "errors of the callback");
    }

    static void testExplicitAcknowledgementCommitAsyncPartialBatch(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a", "b", "c");
        var consumer = explicit(scope, topic);
        Acknowledged told = new Acknowledged();
        consumer.setAcknowledgementCommitCallback(told);
        var records = scope.poll(consumer, 3);
        Scope.acknowledge(consumer, records.subList(0, 2), ACCEPT);
        consumer.commitAsync();
        scope.send(topic, "d");
        Check.fails(IllegalStateException.class, () -> consumer.poll(LONG));
        consumer.acknowledge(records.get(2));
        consumer.commitAsync();
        var next = scope.poll(consumer, 1);
        Check.equal(List.of(3L), Scope.offsetsOf(next), "offsets");
        Scope.acknowledge(consumer, next, ACCEPT);
        scope.nothing(consumer, Duration.ofMillis(500));
        consumer.close();
        Check.equal(List.of(), told.errors(topic), "errors of the callback");
        Check.equal(Set.of(0L, 1L, 2L, 3L), told.offsets(topic), "offsets that the callback was told");
        Check.equal(4, told.count(), "number of offsets that the callback was told");
    }

    static void testImplicitAcknowledgeFailsExplicit(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = PollingCases.subscribed(scope, topic);
        var record = scope.poll(consumer, 1).get(0);
        scope.nothing(consumer, Duration.ofMillis(500));
        fails(() -> consumer.acknowledge(record));
    }

    static void testConfiguredImplicitAcknowledgeExplicitAcknowledgeFails(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = scope.consumer(scope.group(), Map.of("share.acknowledgement.mode", "implicit"));
        consumer.subscribe(Set.of(topic));
        var record = scope.poll(consumer, 1).get(0);
        fails(() -> consumer.acknowledge(record));
    }

    static void testImplicitAcknowledgeCommitSync(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = PollingCases.subscribed(scope, topic);
        scope.poll(consumer, 1);
        scope.committed(consumer, topic);
        Check.equal(Map.of(), consumer.commitSync(), "result of a commit without acknowledgements");
        scope.nothing(consumer, Duration.ofMillis(500));
    }

    static void testImplicitAcknowledgementCommitAsync(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a", "b", "c");
        var consumer = PollingCases.subscribed(scope, topic);
        Acknowledged told = new Acknowledged();
        consumer.setAcknowledgementCommitCallback(told);
        scope.poll(consumer, 3);
        consumer.commitAsync();
        Check.eventually(Scope.WAIT_S, "a call of the callback", () -> {
            scope.nothing(consumer, Duration.ofMillis(500));
            return told.offsets(topic).equals(Set.of(0L, 1L, 2L));
        });
        Check.equal(List.of(), told.errors(topic), "errors of the callback");
    }

    private static void fails(Runnable action) {
        Check.fails(IllegalStateException.class, () -> {
            action.run();
            return "normally";
        });
    }

    static ShareConsumer<String, String> explicit(Scope scope, String topic) throws Exception {
        var consumer = scope.consumer(scope.group(), Scope.EXPLICIT);
        consumer.subscribe(Set.of(topic));
        return consumer;
    }

    private static StringDeserializer refusing(String refused) {
        return new StringDeserializer() {
            @Override
            public String deserialize(String topic, Headers headers, ByteBuffer data) {
                String value = super.deserialize(topic, headers, data);
                if (value.equals(refused)) throw new SerializationException("the value " + value);
                return value;
            }
        };
    }
}
