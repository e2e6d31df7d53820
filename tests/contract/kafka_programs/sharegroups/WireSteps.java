package sharegroups;

import java.util.*;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.requests.*;

/**
 * Requests of share groups one by one; prints what the server answers to each, so that servers can be compared.
 *
 * <p>Usage: WireSteps HOST:PORT
 */
public final class WireSteps {
    private static final int GAP = 0, ACCEPT = 1, RELEASE = 2, REJECT = 3, RENEW = 4;

    private final String address;
    private final Scope scope;
    private final Map<String, String> masks = new LinkedHashMap<>();
    private Wire wire;
    private int epoch;
    private String subject, topic, group, member;
    private Uuid id;

    private WireSteps(String address, Scope scope) {
        this.address = address;
        this.scope = scope;
    }

    public static void main(String[] arguments) throws Exception {
        String run = "-" + Long.toString(System.currentTimeMillis() % 100_000_000, 36);
        try (Scope scope = new Scope(arguments[0], run, null)) {
            new WireSteps(arguments[0], scope).run();
        }
    }

    private void run() throws Exception {
        warm();
        heartbeats();
        sessions();
        fetches();
        acknowledgements();
        locks();
        closes();
        windows();
        waits();
        retention();
        growth();
        admin();
    }

    /** Until the server's own topics of groups and of their state exist. */
    private void warm() throws Exception {
        String first = scope.topic("first", 1, Map.of());
        scope.send(first, 1);
        PollingCases.consumed(scope, scope.group("of-first", Map.of()), first, 1);
    }

    private void heartbeats() throws Exception {
        begin("heartbeat", 2, 0);
        say("join without topics", wire.heartbeat(group, member, 0, null));
        say("join", wire.heartbeat(group, member, 0, List.of(topic)));
        say("join again with epoch 0", wire.heartbeat(group, member, 0, List.of(topic)));
        Thread.sleep(1500);
        say("heartbeat of epoch 1, unchanged", wire.heartbeat(group, member, 1, null));
        say("heartbeat of epoch 2, unchanged", wire.heartbeat(group, member, 2, null));
        say("heartbeat with the same topics", wire.heartbeat(group, member, 2, List.of(topic)));
        say("a higher epoch", wire.heartbeat(group, member, 9, null));
        say("epoch -2", wire.heartbeat(group, member, -2, null));
        say("an unknown member with epoch 3", wire.heartbeat(group, Uuid.randomUuid().toString(), 3, null));
        say("an unknown member leaves", wire.heartbeat(group, Uuid.randomUuid().toString(), -1, null));
        say("an empty member id", wire.heartbeat(group, "", 0, List.of(topic)));
        say("an empty group id", wire.heartbeat("", member, 0, List.of(topic)));
        say("no topics in a list", wire.heartbeat(group, Uuid.randomUuid().toString(), 0, List.of()));
        say("a member id that is no UUID", wire.heartbeat(group, "me", 0, List.of(topic)));
        say("a topic that does not exist", wire.heartbeat(group, Uuid.randomUuid().toString(), 0, List.of("absent")));
        Thread.sleep(1500);
        say("after others joined", wire.heartbeat(group, member, 2, null));
        say("leave", wire.heartbeat(group, member, -1, null));
        say("heartbeat after a leave", wire.heartbeat(group, member, 2, null));
        say("leave again", wire.heartbeat(group, member, -1, null));
        say("another group, epoch 4", wire.heartbeat(scope.named("absent"), member, 4, null));
        String classic = scope.named("classic");
        var committed = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(0));
        scope.admin().alterConsumerGroupOffsets(classic, committed).all().get();
        say("id of a consumer group", wire.heartbeat(classic, member, 0, List.of(topic)));
    }

    private void sessions() throws Exception {
        begin("session", 1, 10);
        join();
        say("epoch 5 without a session", fetch(5).partition(id, 0).send());
        say("epoch -1 without a session", fetch(-1).send());
        say("acknowledge, epoch 5 without a session", acknowledge(5).batch(id, 0, 0, 0, ACCEPT).send());
        say("acknowledge, epoch 0", acknowledge(0).batch(id, 0, 0, 0, ACCEPT).send());
        say("acknowledge, epoch -1 without a session", acknowledge(-1).send());
        say("epoch 0 with acknowledgements", fetch(0).acknowledge(id, 0, 0, 0, ACCEPT).send());
        say("epoch 0 without partitions", fetch(0).send());
        say("epoch 1 after an empty epoch 0", fetch(1).partition(id, 0).send());
        say("epoch 0 again", fetch(0).partition(id, 0).send());
        say("epoch 0 of another id", wire.new Fetch(group, "me", 0).partition(id, 0).send());
        say("epoch 0 of a member that is not in the group",
            wire.new Fetch(group, Uuid.randomUuid().toString(), 0).partition(id, 0).send());
        say("an empty member id", wire.new Fetch(group, "", 0).partition(id, 0).send());
        say("a null member id", wire.new Fetch(group, null, 0).partition(id, 0).send());
        say("a null group id", wire.new Fetch(null, member, 0).partition(id, 0).send());
        say("an empty group id", wire.new Fetch("", member, 0).partition(id, 0).send());
        say("epoch 3, expected 1", fetch(3).send());
        say("acknowledge, epoch 3, expected 1", acknowledge(3).batch(id, 0, 0, 0, ACCEPT).send());
        say("epoch 1", fetch(1).send());
        say("epoch 1 again", fetch(1).send());
        say("acknowledge, epoch 2", acknowledge(2).batch(id, 0, 0, 0, ACCEPT).send());
        say("epoch 2, which was of an acknowledge", fetch(2).send());
        say("acknowledge of nothing, epoch 3", acknowledge(3).send());
        try (Wire other = new Wire(address)) {
            say("the same session on another connection", other.new Fetch(group, member, 4).send());
        }
        say("epoch 5 after the other connection closed", fetch(5).send());
        say("epoch 4 after the other connection closed", fetch(4).send());
        say("epoch -1 with partitions", fetch(-1).partition(id, 0).send());
        say("epoch 0 after the end", fetch(0).partition(id, 0).send());
    }

    private void fetches() throws Exception {
        begin("fetch", 2, 10);
        join();
        Uuid unknown = new Uuid(1, 2);
        say("an unknown topic id", fetch(0).partition(unknown, 0).send());
        say("an unknown partition", fetch(0).partition(id, 7).send());
        say("one known and one unknown partition", fetch(0).partition(id, 0).partition(id, 7).send());
        say("next epoch of that session", fetch(1).send());
        begin("fetch limits", 1, 10);
        join();
        var zero = fetch(0).partition(id, 0);
        zero.data().setMaxRecords(0);
        say("MaxRecords 0", zero.send());
        var small = fetch(0).partition(id, 0);
        small.data().setMaxBytes(1);
        say("MaxBytes 1, a batch of 10", small.send());
        scope.send(topic, 10);
        var limited = fetch(1);
        limited.data().setShareAcquireMode((byte) 1).setMaxRecords(3);
        say("record_limit, MaxRecords 3", limited.send());
        var batches = fetch(2);
        batches.data().setBatchSize(4).setMaxRecords(3);
        say("batch_optimized, MaxRecords 3, BatchSize 4, the batch is acquired in part", batches.send());
        scope.send(topic, 10);
        var split = fetch(3);
        split.data().setBatchSize(4);
        say("batch_optimized, BatchSize 4, a batch of 10", split.send());
        var mode = fetch(4);
        mode.data().setShareAcquireMode((byte) 7);
        say("acquire mode 7", mode.send());
        long began = System.nanoTime();
        say("nothing to read, MaxWaitMs 500", fetch(5).send());
        say("it took at least 400 ms", (System.nanoTime() - began) / 1_000_000 >= 400);
        scope.send(topic, 1);
        say("forget the partition", fetch(6).forget(id, 0).send());
        say("after that", fetch(7).send());
        say("add it again", fetch(8).partition(id, 0).send());
        say("forget a partition that is not there", fetch(9).forget(id, 3).send());
        begin("fetch of a group that does not exist", 1, 3);
        say("without a heartbeat", fetch(0).partition(id, 0).send());
        begin("fetch of new records", 1, 0);
        join();
        say("an empty partition", fetch(0).partition(id, 0).send());
        scope.send(topic, 2);
        scope.send(topic, 2);
        say("two batches of two", fetch(1).send());
    }

    private void acknowledgements() throws Exception {
        begin("acknowledge", 2, 10);
        join();
        say("acquire", fetch(epoch = 0).partition(id, 0).send());
        say("type 5", acknowledge(++epoch).batch(id, 0, 0, 0, 5).send());
        say("type -1", acknowledge(++epoch).batch(id, 0, 0, 0, -1).send());
        say("no types", acknowledge(++epoch).batch(id, 0, 0, 0).send());
        say("two types for three offsets", acknowledge(++epoch).batch(id, 0, 0, 2, ACCEPT, ACCEPT).send());
        say("first after last", acknowledge(++epoch).batch(id, 0, 3, 2, ACCEPT).send());
        say("overlapping batches", acknowledge(++epoch).batch(id, 0, 0, 3, ACCEPT).batch(id, 0, 2, 4, ACCEPT).send());
        say("batches out of order", acknowledge(++epoch).batch(id, 0, 4, 4, ACCEPT).batch(id, 0, 1, 1, ACCEPT).send());
        say("negative offsets", acknowledge(++epoch).batch(id, 0, -5, -3, ACCEPT).send());
        say("in a fetch, type 5", fetch(++epoch).acknowledge(id, 0, 0, 0, 5).send());
        say("in a fetch, overlapping",
            fetch(++epoch).acknowledge(id, 0, 0, 3, ACCEPT).acknowledge(id, 0, 2, 4, ACCEPT).send());
        say("in a fetch, no types", fetch(++epoch).acknowledge(id, 0, 0, 0).send());
        say("a gap and an acceptance", acknowledge(++epoch).batch(id, 0, 0, 1, GAP, ACCEPT).send());
        say("touching batches", acknowledge(++epoch).batch(id, 0, 2, 3, ACCEPT).batch(id, 0, 4, 5, REJECT).send());
        say("the partition is not of the session", acknowledge(++epoch).batch(id, 1, 0, 0, ACCEPT).send());
        begin("acknowledge states", 1, 10);
        join();
        say("acquire", fetch(epoch = 0).partition(id, 0).send());
        say("one of the batch's offsets", acknowledge(++epoch).batch(id, 0, 2, 2, ACCEPT).send());
        say("it again", acknowledge(++epoch).batch(id, 0, 2, 2, ACCEPT).send());
        say("a range with it", acknowledge(++epoch).batch(id, 0, 1, 3, ACCEPT).send());
        say("a type for each offset, with a gap", acknowledge(++epoch).batch(id, 0, 3, 5, ACCEPT, GAP, RELEASE).send());
        say("a gap again", acknowledge(++epoch).batch(id, 0, 4, 4, GAP).send());
        say("the released offset", acknowledge(++epoch).batch(id, 0, 5, 5, ACCEPT).send());
        say("beyond the acquired offsets", acknowledge(++epoch).batch(id, 0, 9, 12, ACCEPT).send());
        say("far beyond", acknowledge(++epoch).batch(id, 0, 100, 100, ACCEPT).send());
        say("one good and one bad batch",
            acknowledge(++epoch).batch(id, 0, 6, 6, ACCEPT).batch(id, 0, 50, 50, ACCEPT).send());
        say("the good one alone", acknowledge(++epoch).batch(id, 0, 6, 6, REJECT).send());
        say("an unknown topic id", acknowledge(++epoch).batch(new Uuid(1, 2), 0, 0, 0, ACCEPT).send());
        say("an unknown partition", acknowledge(++epoch).batch(id, 9, 0, 0, ACCEPT).send());
        say("renewal with IsRenewAck", acknowledge(++epoch).renew(true).batch(id, 0, 7, 7, RENEW).send());
        say("renewal without IsRenewAck", acknowledge(++epoch).batch(id, 0, 7, 7, RENEW).send());
        say("acceptance with IsRenewAck", acknowledge(++epoch).renew(true).batch(id, 0, 7, 7, ACCEPT).send());
        var renewal = fetch(++epoch).acknowledge(id, 0, 8, 8, RENEW);
        renewal.data().setIsRenewAck(true);
        say("renewal in a fetch with limits", renewal.send());
        renewal = fetch(epoch).acknowledge(id, 0, 8, 8, RENEW);
        renewal.data().setIsRenewAck(true).setMaxWaitMs(0).setMinBytes(0).setMaxBytes(0).setMaxRecords(0);
        say("renewal in a fetch without limits", renewal.send());
        say("a fetch with a renewal and no IsRenewAck", fetch(++epoch).acknowledge(id, 0, 8, 8, RENEW).send());
        say("accept in a fetch, and acquire the released record",
            fetch(++epoch).acknowledge(id, 0, 8, 8, ACCEPT).send());
        String other = Uuid.randomUuid().toString();
        wire.heartbeat(group, other, 0, List.of(topic));
        wire.new Fetch(group, other, 0).partition(id, 0).send();
        say("by another member", wire.new Acknowledge(group, other, 1).batch(id, 0, 9, 9, ACCEPT).send());
        say("lag after it", "" + scope.offsets(group, topic).lag());
    }

    private void locks() throws Exception {
        begin("lock", 1, 2);
        scope.configure(group, Map.of("share.record.lock.duration.ms", "1000", "share.delivery.count.limit", "2"));
        join();
        say("acquire", fetch(0).partition(id, 0).send());
        Thread.sleep(1600);
        say("acknowledge after the end", acknowledge(1).batch(id, 0, 0, 0, ACCEPT).send());
        say("acquire again, with an old acknowledgement", fetch(2).acknowledge(id, 0, 1, 1, ACCEPT).send());
        Thread.sleep(1600);
        say("acquire after the end of the last delivery", fetch(3).send());
        say("lag", "" + scope.offsets(group, topic).lag());
        scope.send(topic, 1);
        long began = System.nanoTime();
        say("acquire the next", fetch(4).send());
        var waiting = fetch(5);
        waiting.data().setMaxWaitMs(5000);
        say("a fetch that waits gets it when the lock ends", waiting.send());
        say("within two seconds", (System.nanoTime() - began) / 1_000_000 < 2000);
    }

    private void closes() throws Exception {
        begin("close", 1, 6);
        join();
        say("acquire", fetch(0).partition(id, 0).send());
        say("the end of the session, with one acknowledgement", fetch(-1).acknowledge(id, 0, 0, 0, ACCEPT).send());
        say("acquire again", fetch(0).partition(id, 0).send());
        say("the end by an acknowledge", acknowledge(-1).batch(id, 0, 1, 1, ACCEPT).send());
        say("acquire again", fetch(0).partition(id, 0).send());
        say("epoch 0 while records are acquired", fetch(0).partition(id, 0).send());
        say("acknowledge one of them", acknowledge(1).batch(id, 0, 2, 2, ACCEPT).send());
        wire.heartbeat(group, member, -1, null);
        say("epoch 2 after the member left the group", acknowledge(2).batch(id, 0, 3, 3, ACCEPT).send());
        wire.close();
        wire = new Wire(address);
        member = Uuid.randomUuid().toString();
        join();
        Thread.sleep(500);
        say("another member, after the connection was closed", fetch(0).partition(id, 0).send());
        wire.heartbeat(group, member, -1, null);
        Thread.sleep(500);
        say("the member left the group, its session goes on", fetch(1).send());
        say("forget with acknowledgements",
            fetch(2).forget(id, 0).acknowledge(id, 0, 4, 4, ACCEPT).send());
        say("add it again", fetch(3).partition(id, 0).send());
    }

    private void windows() throws Exception {
        begin("locks", 1, 0);
        scope.configure(group, Map.of("share.partition.max.record.locks", "100"));
        join();
        fetch(0).partition(id, 0).send();
        scope.send(topic, 150);
        say("a batch of 150, 100 locks", fetch(1).send());
        scope.send(topic, 10);
        say("ten more", fetch(2).send());
        acknowledge(3).batch(id, 0, 10, 99, ACCEPT).send();
        say("after the acceptance of 90 in the middle", fetch(4).send());
        acknowledge(5).batch(id, 0, 0, 9, RELEASE).send();
        say("after the release of the first ten", fetch(6).send());
        acknowledge(7).batch(id, 0, 0, 9, ACCEPT).send();
        say("after the acceptance of the first ten", fetch(8).send());
        begin("locks of small batches", 1, 0);
        scope.configure(group, Map.of("share.partition.max.record.locks", "100"));
        join();
        fetch(0).partition(id, 0).send();
        for (int batch = 0; batch < 25; batch++) scope.send(topic, 10);
        say("batches of 10", fetch(1).send());
        say("again", fetch(2).send());
        acknowledge(3).batch(id, 0, 10, 59, ACCEPT).send();
        say("after the acceptance of 50 in the middle", fetch(4).send());
        acknowledge(5).batch(id, 0, 0, 9, ACCEPT).send();
        say("after the acceptance of the first ten", fetch(6).send());
        begin("partitions", 2, 10);
        scope.send(topic, 1, Scope.numbers(10));
        join();
        var few = fetch(0).partition(id, 0).partition(id, 1);
        few.data().setMaxRecords(5);
        say("two partitions with batches of 10, MaxRecords 5", few.send());
        few = fetch(1);
        few.data().setMaxRecords(5);
        say("the next", few.send());
        begin("partitions with record limit", 2, 10);
        scope.send(topic, 1, Scope.numbers(10));
        join();
        few = fetch(0).partition(id, 0).partition(id, 1);
        few.data().setMaxRecords(15).setShareAcquireMode((byte) 1);
        say("two partitions with batches of 10, MaxRecords 15", few.send());
        begin("batches", 1, 0);
        join();
        fetch(0).partition(id, 0).send();
        for (int batch = 0; batch < 6; batch++) scope.send(topic, 4);
        var sized = fetch(1);
        sized.data().setMaxRecords(10).setBatchSize(2);
        say("batches of 4, MaxRecords 10, BatchSize 2", sized.send());
        acknowledge(2).batch(id, 0, 1, 1, RELEASE).batch(id, 0, 3, 5, RELEASE).send();
        sized = fetch(3);
        sized.data().setMaxRecords(3);
        say("released offsets in two batches, MaxRecords 3", sized.send());
        sized = fetch(4);
        sized.data().setMaxRecords(100);
        say("the rest", sized.send());
    }

    private void waits() throws Exception {
        begin("waits", 1, 1);
        join();
        var large = fetch(0).partition(id, 0);
        large.data().setMinBytes(100_000).setMaxWaitMs(1500);
        long began = System.nanoTime();
        say("one record, MinBytes 100000, MaxWaitMs 1500", large.send());
        say("it took more than a second", (System.nanoTime() - began) / 1_000_000 > 1000);
        Thread later = new Thread(() -> {
            try {
                Thread.sleep(700);
                scope.send(topic, 1);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        later.start();
        var waiting = fetch(1);
        waiting.data().setMaxWaitMs(10_000);
        began = System.nanoTime();
        say("a record that comes while the fetch waits", waiting.send());
        say("it took less than 3 seconds", (System.nanoTime() - began) / 1_000_000 < 3000);
        later.join();
        String other = Uuid.randomUuid().toString();
        try (Wire second = new Wire(address)) {
            second.heartbeat(group, other, 0, List.of(topic));
            second.new Fetch(group, other, 0).partition(id, 0).send();
            Thread releasing = new Thread(() -> {
                try {
                    Thread.sleep(700);
                    acknowledge(2).batch(id, 0, 1, 1, RELEASE).send();
                } catch (Exception error) {
                    throw new IllegalStateException(error);
                }
            });
            releasing.start();
            waiting = second.new Fetch(group, other, 1);
            waiting.data().setMaxWaitMs(3000);
            // Kafka gives it at the end of MaxWaitMs only: a release does not wake other members' fetches.
            say("a record that another member releases meanwhile", waiting.send());
            releasing.join();
        }
    }

    private void retention() throws Exception {
        begin("retention", 1, 10);
        join();
        say("acquire", fetch(0).partition(id, 0).send());
        PollingCases.deleteRecords(scope, topic, 5);
        say("acknowledge offset 2 after records below 5 were deleted",
            acknowledge(1).batch(id, 0, 2, 2, ACCEPT).send());
        say("acknowledge offsets 3 to 6", acknowledge(2).batch(id, 0, 3, 6, ACCEPT).send());
        say("acknowledge offset 8", acknowledge(3).batch(id, 0, 8, 8, RELEASE).send());
        say("fetch", fetch(4).send());
        say("lag", "" + scope.offsets(group, topic).lag());
        PollingCases.deleteRecords(scope, topic, 10);
        say("fetch after all were deleted", fetch(5).send());
        scope.send(topic, 1);
        say("fetch of a new record", fetch(6).send());
        scope.admin().deleteTopics(Set.of(topic)).all().get();
        Thread.sleep(1000);
        say("fetch after the topic was deleted", fetch(7).send());
        say("acknowledge after the topic was deleted", acknowledge(8).batch(id, 0, 10, 10, ACCEPT).send());
        say("heartbeat after the topic was deleted", wire.heartbeat(group, member, 3, null));
    }

    /** A partition that is added while a group, which starts at the end, reads the topic. */
    private void growth() throws Exception {
        begin("growth", 1, 3);
        scope.configure(group, Map.of("share.auto.offset.reset", "latest"));
        join();
        say("start at the end", fetch(0).partition(id, 0).send());
        scope.admin().createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all().get();
        Thread.sleep(500);
        scope.send(topic, 1, List.of("a", "b"));
        String said = "";
        for (int beat = 0; beat < 10 && !said.contains("[0, 1]"); beat++) {
            Thread.sleep(1000);
            for (int tried = 5; tried > 0 && !said.startsWith("NONE"); tried--)
                said = wire.heartbeat(group, member, tried, null);
            if (!said.contains("[0, 1]")) said = "";
        }
        say("the assignment has the new partition", said.contains("[0, 1]"));
        say("fetch of the new partition", fetch(1).partition(id, 1).send());
    }

    private void admin() throws Exception {
        begin("admin", 1, 10);
        join();
        fetch(0).partition(id, 0).send();
        acknowledge(1).batch(id, 0, 0, 4, ACCEPT).send();
        say("describe", described(group));
        say("describe an absent group", described(scope.named("absent")));
        say("describe a consumer group", described(scope.named("classic")));
        say("offsets", offsets(group, topic, 0));
        say("offsets of all topics", offsets(group, null, 0));
        say("offsets of an absent topic", offsets(group, "absent", 0));
        say("offsets of an absent partition", offsets(group, topic, 5));
        say("offsets of an absent group", offsets(scope.named("absent"), topic, 0));
        say("offsets of an absent group, all topics", offsets(scope.named("absent"), null, 0));
        say("offsets of a consumer group", offsets(scope.named("classic"), topic, 0));
        say("alter with members", altered(group, topic, 0, 3));
        say("delete offsets with members", deleted(group, topic));
        say("delete the group with members", wire.answer(deleteGroup(group)));
        fetch(-1).send();
        wire.heartbeat(group, member, -1, null);
        say("describe without members", described(group));
        say("alter to 3", altered(group, topic, 0, 3));
        say("offsets", offsets(group, topic, 0));
        say("alter to -1", altered(group, topic, 0, -1));
        say("alter to 1000", altered(group, topic, 0, 1000));
        say("offsets", offsets(group, topic, 0));
        say("alter an absent topic", altered(group, "absent", 0, 0));
        say("alter an absent partition", altered(group, topic, 5, 0));
        say("alter an absent group", altered(scope.named("new"), topic, 0, 4));
        say("describe it", described(scope.named("new")));
        say("offsets of it", offsets(scope.named("new"), topic, 0));
        say("alter a consumer group", altered(scope.named("classic"), topic, 0, 4));
        say("delete offsets of an absent topic", deleted(group, "absent"));
        say("delete offsets of an absent group", deleted(scope.named("absent"), topic));
        say("delete offsets of a consumer group", deleted(scope.named("classic"), topic));
        say("delete offsets", deleted(group, topic));
        say("delete offsets again", deleted(group, topic));
        say("offsets", offsets(group, topic, 0));
        say("offsets of all topics", offsets(group, null, 0));
        say("delete the group", wire.answer(deleteGroup(group)));
        say("delete it again", wire.answer(deleteGroup(group)));
        say("describe it", described(group));
    }

    private String described(String group) throws Exception {
        var data = new ShareGroupDescribeRequestData().setGroupIds(List.of(group)).setIncludeAuthorizedOperations(true);
        return wire.answer(new ShareGroupDescribeRequest.Builder(data).build((short) 1));
    }

    private String offsets(String group, String topic, int partition) throws Exception {
        var wanted = new DescribeShareGroupOffsetsRequestData.DescribeShareGroupOffsetsRequestGroup().setGroupId(group);
        if (topic == null) wanted.setTopics(null);
        else
            wanted.setTopics(List.of(new DescribeShareGroupOffsetsRequestData.DescribeShareGroupOffsetsRequestTopic()
                .setTopicName(topic).setPartitions(List.of(partition))));
        var data = new DescribeShareGroupOffsetsRequestData().setGroups(List.of(wanted));
        return wire.answer(new DescribeShareGroupOffsetsRequest.Builder(data).build((short) 1));
    }

    private String altered(String group, String topic, int partition, long offset) throws Exception {
        var topics = new AlterShareGroupOffsetsRequestData.AlterShareGroupOffsetsRequestTopicCollection();
        topics.add(new AlterShareGroupOffsetsRequestData.AlterShareGroupOffsetsRequestTopic().setTopicName(topic)
            .setPartitions(List.of(new AlterShareGroupOffsetsRequestData.AlterShareGroupOffsetsRequestPartition()
                .setPartitionIndex(partition).setStartOffset(offset))));
        var data = new AlterShareGroupOffsetsRequestData().setGroupId(group).setTopics(topics);
        return wire.answer(new AlterShareGroupOffsetsRequest.Builder(data).build((short) 0));
    }

    private String deleted(String group, String topic) throws Exception {
        var data = new DeleteShareGroupOffsetsRequestData().setGroupId(group).setTopics(List.of(
            new DeleteShareGroupOffsetsRequestData.DeleteShareGroupOffsetsRequestTopic().setTopicName(topic)));
        return wire.answer(new DeleteShareGroupOffsetsRequest.Builder(data).build((short) 0));
    }

    private static AbstractRequest deleteGroup(String group) {
        var data = new DeleteGroupsRequestData().setGroupsNames(List.of(group));
        return new DeleteGroupsRequest.Builder(data).build((short) 2);
    }

    /** A new connection, topic with records, group and member. */
    private void begin(String subject, int partitions, int records) throws Exception {
        if (wire != null) wire.close();
        wire = new Wire(address);
        String name = subject.replace(' ', '-');
        topic = scope.topic(name, partitions, Map.of());
        id = scope.admin().describeTopics(Set.of(topic)).allTopicNames().get().get(topic).topicId();
        group = scope.group("of-" + name, Map.of());
        member = Uuid.randomUuid().toString();
        if (records > 0) scope.send(topic, records);
        this.subject = subject;
    }

    /** Until the member has its partitions. */
    private void join() throws Exception {
        String said = wire.heartbeat(group, member, 0, List.of(topic));
        Thread.sleep(1200);
        masks.put(member, "MEMBER");
        if (said.contains("assigned [")) return;
        wire.heartbeat(group, member, 1, null);
    }

    private Wire.Fetch fetch(int epoch) {
        return wire.new Fetch(group, member, epoch);
    }

    private Wire.Acknowledge acknowledge(int epoch) {
        return wire.new Acknowledge(group, member, epoch);
    }

    /** Prints the answer, without names and ids of this run. */
    private void say(String step, Object answer) throws Exception {
        String text = answer.toString().replace(id.toString(), "ID");
        for (var each : masks.entrySet()) text = text.replace(each.getKey(), each.getValue());
        text = text.replaceAll(java.util.regex.Pattern.quote(scope.named("")), "");
        System.out.println("{\"step\": " + Json.text(subject + ": " + step) + ", \"answer\": " + Json.text(text) + "}");
    }
}
