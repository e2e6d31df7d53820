package sharegroups;

import java.io.*;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.requests.*;

/** A connection to a server that sends requests of share groups as they are given, and tells the answers as text. */
final class Wire implements AutoCloseable {
    private final Socket socket;
    private int correlation;

    Wire(String address) throws IOException {
        int colon = address.lastIndexOf(':');
        socket = new Socket(address.substring(0, colon), Integer.parseInt(address.substring(colon + 1)));
        socket.setTcpNoDelay(true);
        socket.setSoTimeout(60_000);
    }

    AbstractResponse send(AbstractRequest request) throws IOException {
        RequestHeader header = new RequestHeader(request.apiKey(), request.version(), "wire", correlation++);
        ByteBuffer body = request.serializeWithHeader(header);
        DataOutputStream out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(body.remaining());
        out.write(body.array(), body.arrayOffset() + body.position(), body.remaining());
        out.flush();
        DataInputStream in = new DataInputStream(socket.getInputStream());
        byte[] answer = new byte[in.readInt()];
        in.readFully(answer);
        return AbstractResponse.parseResponse(ByteBuffer.wrap(answer), header);
    }

    @Override
    public void close() throws IOException {
        socket.close();
    }

    static String error(short code, String message) {
        return Errors.forCode(code) + (message == null ? "" : " \"" + message + "\"");
    }

    /** A ShareFetch request. */
    final class Fetch {
        private final ShareFetchRequestData data = new ShareFetchRequestData();

        Fetch(String group, String member, int epoch) {
            data.setGroupId(group).setMemberId(member).setShareSessionEpoch(epoch).setMaxWaitMs(500).setMinBytes(1)
                .setMaxBytes(1 << 20).setMaxRecords(500).setBatchSize(500);
        }

        ShareFetchRequestData data() {
            return data;
        }

        Fetch partition(Uuid topic, int partition) {
            place(topic, partition);
            return this;
        }

        Fetch acknowledge(Uuid topic, int partition, long first, long last, int... types) {
            place(topic, partition).acknowledgementBatches().add(new ShareFetchRequestData.AcknowledgementBatch()
                .setFirstOffset(first).setLastOffset(last).setAcknowledgeTypes(bytes(types)));
            return this;
        }

        Fetch forget(Uuid topic, int partition) {
            data.forgottenTopicsData().add(
                new ShareFetchRequestData.ForgottenTopic().setTopicId(topic).setPartitions(List.of(partition)));
            return this;
        }

        private ShareFetchRequestData.FetchPartition place(Uuid topic, int partition) {
            var topics = data.topics();
            var found = topics.find(topic);
            if (found == null) topics.add(found = new ShareFetchRequestData.FetchTopic().setTopicId(topic));
            var place = found.partitions().find(partition);
            if (place == null)
                found.partitions().add(place = new ShareFetchRequestData.FetchPartition().setPartitionIndex(partition));
            return place;
        }

        String send() throws IOException {
            var answer = (ShareFetchResponse) Wire.this.send(new ShareFetchRequest.Builder(data).build((short) 2));
            StringBuilder text = new StringBuilder(error(answer.data().errorCode(), answer.data().errorMessage()));
            text.append(", lock ").append(answer.data().acquisitionLockTimeoutMs());
            for (var topic : answer.data().responses())
                for (var each : topic.partitions()) {
                    text.append("; partition ").append(each.partitionIndex()).append(": ");
                    text.append(error(each.errorCode(), each.errorMessage()));
                    text.append(", acknowledged ");
                    text.append(error(each.acknowledgeErrorCode(), each.acknowledgeErrorMessage()));
                    text.append(", acquired");
                    for (var range : each.acquiredRecords())
                        text.append(' ').append(range.firstOffset()).append('-').append(range.lastOffset())
                            .append('x').append(range.deliveryCount());
                    text.append(", batches");
                    if (each.records() instanceof Records records)
                        for (RecordBatch batch : records.batches())
                            text.append(' ').append(batch.baseOffset()).append('-').append(batch.lastOffset());
                }
            if (!answer.data().nodeEndpoints().isEmpty()) text.append("; with endpoints");
            return text.toString();
        }
    }

    /** A ShareAcknowledge request. */
    final class Acknowledge {
        private final ShareAcknowledgeRequestData data = new ShareAcknowledgeRequestData();

        Acknowledge(String group, String member, int epoch) {
            data.setGroupId(group).setMemberId(member).setShareSessionEpoch(epoch);
        }

        Acknowledge renew(boolean renew) {
            data.setIsRenewAck(renew);
            return this;
        }

        Acknowledge batch(Uuid topic, int partition, long first, long last, int... types) {
            var found = data.topics().find(topic);
            if (found == null)
                data.topics().add(found = new ShareAcknowledgeRequestData.AcknowledgeTopic().setTopicId(topic));
            var place = found.partitions().find(partition);
            if (place == null)
                found.partitions().add(
                    place = new ShareAcknowledgeRequestData.AcknowledgePartition().setPartitionIndex(partition));
            place.acknowledgementBatches().add(new ShareAcknowledgeRequestData.AcknowledgementBatch()
                .setFirstOffset(first).setLastOffset(last).setAcknowledgeTypes(bytes(types)));
            return this;
        }

        String send() throws IOException {
            var request = new ShareAcknowledgeRequest.Builder(data).build((short) 2);
            var answer = (ShareAcknowledgeResponse) Wire.this.send(request);
            StringBuilder text = new StringBuilder(error(answer.data().errorCode(), answer.data().errorMessage()));
            text.append(", lock ").append(answer.data().acquisitionLockTimeoutMs());
            for (var topic : answer.data().responses())
                for (var each : topic.partitions())
                    text.append("; partition ").append(each.partitionIndex()).append(": ")
                        .append(error(each.errorCode(), each.errorMessage()));
            return text.toString();
        }
    }

    /** A heartbeat; `topics` null means unchanged. */
    String heartbeat(String group, String member, int epoch, List<String> topics) throws IOException {
        var data = new ShareGroupHeartbeatRequestData().setGroupId(group).setMemberId(member).setMemberEpoch(epoch)
            .setSubscribedTopicNames(topics);
        var request = new ShareGroupHeartbeatRequest.Builder(data).build((short) 1);
        var answer = ((ShareGroupHeartbeatResponse) send(request)).data();
        StringBuilder text = new StringBuilder(error(answer.errorCode(), answer.errorMessage()));
        text.append(", member ").append(member.equals(answer.memberId()) ? "same" : answer.memberId());
        text.append(", epoch ").append(answer.memberEpoch()).append(", interval ").append(answer.heartbeatIntervalMs());
        if (answer.assignment() == null) return text.append(", no assignment").toString();
        text.append(", assigned");
        for (var topic : answer.assignment().topicPartitions()) text.append(' ').append(topic.partitions());
        return text.toString();
    }

    /** All fields of the answer. */
    String answer(AbstractRequest request) throws IOException {
        return send(request).data().toString();
    }

    private static List<Byte> bytes(int... types) {
        List<Byte> bytes = new ArrayList<>();
        for (int type : types) bytes.add((byte) type);
        return bytes;
    }
}
