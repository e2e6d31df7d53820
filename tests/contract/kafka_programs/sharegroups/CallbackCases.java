package sharegroups;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.errors.*;

/** The callback that is told about acknowledgements. */
final class CallbackCases {
    private static final Duration SHORT = Duration.ofMillis(500);

    static void testAcknowledgementSentOnSubscriptionChange(Scope scope) throws Exception {
        String first = scope.topic("first", 1, Map.of()), second = scope.topic("second", 1, Map.of());
        scope.send(first, "a");
        scope.send(second, "b");
        var consumer = PollingCases.subscribed(scope, first);
        Acknowledged told = new Acknowledged();
        consumer.setAcknowledgementCommitCallback(told);
        Check.equal(Optional.empty(), consumer.acquisitionLockTimeoutMs(), "lock duration before a poll");
        Check.equal(List.of("a"), Scope.values(scope.poll(consumer, 1)), "values");
        Check.equal(Optional.of(15000), consumer.acquisitionLockTimeoutMs(), "lock duration");
        consumer.subscribe(Set.of(second));
        Check.equal(Optional.of(15000), consumer.acquisitionLockTimeoutMs(), "lock duration");
        Check.eventually(Scope.WAIT_S, "acknowledgements for both topics", () -> {
            consumer.poll(SHORT);
            return told.offsets(first).equals(Set.of(0L)) && told.offsets(second).equals(Set.of(0L));
        });
        Check.equal(List.of(), told.errors(first), "errors of the first topic");
        Check.equal(List.of(), told.errors(second), "errors of the second topic");
    }

    static void testAcknowledgementCommitCallbackSuccessfulAcknowledgement(Scope scope) throws Exception {
        Given given = given(scope);
        scope.nothing(given.consumer, Duration.ofSeconds(2));
        Check.equal(Set.of(0L), given.told.offsets(given.topic), "offsets told before the poll returns");
        Check.equal(List.of(), given.told.errors(given.topic), "errors");
    }

    static void testAcknowledgementCommitCallbackSuccessfulAcknowledgementOnCommitSync(Scope scope) throws Exception {
        Given given = given(scope);
        scope.committed(given.consumer, given.topic);
        Check.equal(Set.of(0L), given.told.offsets(given.topic), "offsets told before the commit returns");
        Check.equal(List.of(), given.told.errors(given.topic), "errors");
    }

    static void testAcknowledgementCommitCallbackOnClose(Scope scope) throws Exception {
        Given given = given(scope);
        scope.nothing(given.consumer, Duration.ofSeconds(1));
        given.consumer.close();
        Check.equal(Set.of(0L), given.told.offsets(given.topic), "offsets told");
        Check.equal(List.of(), given.told.errors(given.topic), "errors");
    }

    static void testAcknowledgementCommitCallbackInvalidRecordStateException(Scope scope) throws Exception {
        String topic = scope.topic(), group = scope.group(Map.of("share.record.lock.duration.ms", "2000"));
        scope.send(topic, "a");
        var consumer = scope.consumer(group);
        Acknowledged told = new Acknowledged();
        consumer.setAcknowledgementCommitCallback(told);
        consumer.subscribe(Set.of(topic));
        scope.poll(consumer, 1);
        Thread.sleep(3500);
        Check.eventually(Scope.WAIT_S, "a call of the callback", () -> {
            consumer.poll(SHORT);
            return !told.errors(topic).isEmpty();
        });
        Exception error = told.errors(topic).get(0);
        Check.that(error instanceof InvalidRecordStateException, "InvalidRecordStateException, not " + error);
        scope.note("message: " + error.getMessage());
    }

    /** Only `wakeup` may be called in a callback. */
    static void testAcknowledgementCommitCallbackCallsShareConsumerDisallowed(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = PollingCases.subscribed(scope, topic);
        List<Class<?>> errors = new CopyOnWriteArrayList<>();
        List<Callable<?>> calls = List.of(
            () -> { consumer.close(); return null; },
            () -> { consumer.subscribe(Set.of(topic)); return null; },
            () -> consumer.poll(SHORT),
            () -> consumer.commitSync());
        consumer.setAcknowledgementCommitCallback((offsets, error) -> {
            for (var call : calls) {
                try {
                    call.call();
                    errors.add(null);
                } catch (Exception raised) {
                    errors.add(raised.getClass());
                }
            }
        });
        scope.poll(consumer, 1);
        Check.eventually(Scope.WAIT_S, "a call of the callback", () -> {
            scope.nothing(consumer, SHORT);
            return !errors.isEmpty();
        });
        Check.equal(Collections.nCopies(calls.size(), IllegalStateException.class), errors, "errors in the callback");
    }

    static void testAcknowledgementCommitCallbackCallsShareConsumerWakeup(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = PollingCases.subscribed(scope, topic);
        consumer.setAcknowledgementCommitCallback((offsets, error) -> consumer.wakeup());
        scope.poll(consumer, 1);
        AtomicInteger polls = new AtomicInteger();
        Check.fails(WakeupException.class, () -> {
            while (polls.incrementAndGet() < 60) consumer.poll(SHORT);
            return "60 polls";
        });
        scope.note("poll after the first that was woken up: " + polls);
    }

    /** The error of a callback is not passed to the caller of `poll`. */
    static void testAcknowledgementCommitCallbackThrowsException(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = PollingCases.subscribed(scope, topic);
        AtomicBoolean called = new AtomicBoolean();
        consumer.setAcknowledgementCommitCallback((offsets, error) -> {
            called.set(true);
            throw new OutOfOrderSequenceException("from the callback");
        });
        scope.poll(consumer, 1);
        Check.eventually(Scope.WAIT_S, "a call of the callback", () -> {
            scope.nothing(consumer, SHORT);
            return called.get();
        });
        scope.nothing(consumer, SHORT);
    }

    private record Given(ShareConsumer<String, String> consumer, Acknowledged told, String topic) {}

    /** An implicit consumer that has polled one record. */
    private static Given given(Scope scope) throws Exception {
        String topic = scope.topic();
        scope.send(topic, "a");
        var consumer = PollingCases.subscribed(scope, topic);
        Acknowledged told = new Acknowledged();
        consumer.setAcknowledgementCommitCallback(told);
        scope.poll(consumer, 1);
        return new Given(consumer, told, topic);
    }
}
