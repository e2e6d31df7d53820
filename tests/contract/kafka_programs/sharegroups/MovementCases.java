package sharegroups;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Servers that end, and come again. */
final class MovementCases {
    /** A producer and a share consumer work on: each acknowledged record is consumed at least once. */
    @Server("restart")
    static void testShareConsumerAfterCoordinatorMovement(Scope scope) throws Exception {
        String topic = scope.topic("topic", 3, Map.of()), group = scope.group();
        AtomicBoolean produced = new AtomicBoolean();
        Set<String> sent = ConcurrentHashMap.newKeySet(), acknowledged = ConcurrentHashMap.newKeySet();
        Map<String, Integer> consumed = new ConcurrentHashMap<>();
        ExecutorService threads = Executors.newFixedThreadPool(2);
        try {
            Future<?> producing = threads.submit(() -> {
                var producer = scope.producer(Map.of("linger.ms", 0));
                for (int number = 0; !produced.get(); number++) {
                    String value = "value " + number;
                    sent.add(value);
                    try {
                        producer.send(new ProducerRecord<>(topic, 0, "key", value)).get();
                        acknowledged.add(value);
                    } catch (ExecutionException error) {
                        scope.note("not acknowledged: " + error.getCause());
                    }
                    Thread.sleep(5);
                }
                return null;
            });
            Future<?> consuming = threads.submit(() -> {
                var consumer = scope.consumer(group);
                consumer.subscribe(Set.of(topic));
                long end = System.nanoTime() + 150_000_000_000L;
                while ((!producing.isDone() || !consumed.keySet().containsAll(acknowledged)) && System.nanoTime() < end)
                    consumer.poll(Duration.ofSeconds(1)).forEach(each -> consumed.merge(each.value(), 1, Integer::sum));
                return null;
            });
            Check.eventually(60, "records before the restart", () -> consumed.size() > 100);
            scope.request("restart");
            int before = acknowledged.size();
            Check.eventually(60, "records after the restart", () -> acknowledged.size() > before + 200);
            produced.set(true);
            producing.get();
            consuming.get();
        } finally {
            produced.set(true);
            threads.shutdown();
        }
        Set<String> missing = new TreeSet<>(acknowledged);
        missing.removeAll(consumed.keySet());
        Check.equal(Set.of(), missing, "acknowledged records that were not consumed");
        Check.that(sent.containsAll(consumed.keySet()), "no records but those that were sent");
        scope.note(consumed.size() + " records, delivered "
            + consumed.values().stream().mapToInt(Integer::intValue).sum() + " times");
    }

    /** A close does not wait for a server that has ended. */
    @Server("restart")
    static void testConsumerCloseOnBrokerShutdown(Scope scope) throws Exception {
        var consumer = PollingCases.subscribed(scope, scope.topic());
        scope.nothing(consumer, Duration.ofSeconds(2));
        scope.request("stop");
        long began = System.nanoTime();
        consumer.close();
        double seconds = (System.nanoTime() - began) / 1e9;
        scope.request("start");
        Check.that(seconds < 5, "a close within 5 s, not " + seconds);
    }
}
