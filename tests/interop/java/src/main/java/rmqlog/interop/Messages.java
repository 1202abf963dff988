package rmqlog.interop;

import java.net.Inet6Address;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** A message as a line, with the field names of the golden stores' expected.jsonl.gz. */
final class Messages {
    private Messages() {
    }

    static Map<String, Object> line(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("physicalOffset", message.getCommitLogOffset());
        line.put("storeSize", message.getStoreSize());
        line.put("sysFlag", message.getSysFlag());
        line.put("flag", message.getFlag());
        line.put("bornTimestamp", message.getBornTimestamp());
        line.put("bornHost", host(message.getBornHost()));
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("storeHost", host(message.getStoreHost()));
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        line.put("bodyCRC", message.getBodyCRC());
        line.put("body", base64(message.getBody()));
        line.put("properties", properties(message));
        line.put("msgId", message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId());
        return line;
    }

    static String base64(byte[] bytes) {
        return bytes == null ? "" : Base64.getEncoder().encodeToString(bytes);
    }

    /** Without what the client adds to a message on its way to the consumer (PullAPIWrapper, ProcessQueue). */
    private static Map<String, String> properties(MessageExt message) {
        Map<String, String> properties = new TreeMap<>(message.getProperties() == null ? Map.of() : message.getProperties());
        properties.remove(MessageConst.PROPERTY_MIN_OFFSET);
        properties.remove(MessageConst.PROPERTY_MAX_OFFSET);
        properties.remove(MessageConst.PROPERTY_CONSUME_START_TIMESTAMP);
        return properties;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        String text = host.getAddress().getHostAddress();
        return (host.getAddress() instanceof Inet6Address ? "[" + text + "]" : text) + ":" + host.getPort();
    }
}
