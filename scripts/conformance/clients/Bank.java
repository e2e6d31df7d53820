// Transfers between the topics of a bank, each a transaction. Usage: java Bank.java SERVERS ID FILE
// FILE has a transfer in each line: topic, key and value of three records, separated by tabs.

import java.nio.file.*;
import java.util.*;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.StringSerializer;

public class Bank {
    static final TopicPartition NUMBERS = new TopicPartition("numbers", 0);

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], id = arguments[1];
        List<String> transfers = Files.readAllLines(Path.of(arguments[2]));
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", servers, "transactional.id", id, "max.block.ms", 20000, "delivery.timeout.ms", 20000,
            "request.timeout.ms", 10000, "linger.ms", 0);
        for (int attempts = 0; ; ) {
            try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers));
                 var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
                producer.initTransactions();
                var offsets = admin.listConsumerGroupOffsets(id).partitionsToOffsetAndMetadata().get();
                var committed = offsets.get(NUMBERS);
                for (int number = committed == null ? 0 : (int) committed.offset(); number < transfers.size(); ) {
                    attempts++;
                    producer.beginTransaction();
                    String[] fields = transfers.get(number).split("\t");
                    for (int leg = 0; leg < fields.length; leg += 3)
                        producer.send(new ProducerRecord<>(fields[leg], fields[leg + 1], fields[leg + 2]));
                    producer.sendOffsetsToTransaction(
                        Map.of(NUMBERS, new OffsetAndMetadata(number + 1)), new ConsumerGroupMetadata(id));
                    if (attempts % 4 == 0) {
                        producer.abortTransaction();
                        continue;
                    }
                    producer.commitTransaction();
                    System.out.println("done " + number++);
                }
                return;
            } catch (KafkaException | java.util.concurrent.ExecutionException error) {
                System.err.println(error); // it was committed or not: the group's offset tells
                Thread.sleep(100);
            }
        }
    }
}
