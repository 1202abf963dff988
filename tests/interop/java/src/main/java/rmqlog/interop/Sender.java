package rmqlog.interop;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/**
 * `send topic[,topic…] n [seed=…] [shards=…] [keys=…] [delay=…] [pause=…] [put.NAME=…]`: messages of every kind that a producer
 * sends one by one, to the topics in turn. `keys` is the number of different keys, of which each message then has one. `put.NAME`
 * sets a property, RocketMQ's own too.
 */
final class Sender {
    private static final String SHARDING_KEY = "__SHARDINGKEY"; // MessageConst has a name for it from 5.x on
    private static final String PUT = "put.";
    private static final int LARGE_EVERY = 10;
    private static final int LARGE_REPEATS = 600; // above compressMsgBodyOverHowmuch, 4096 bytes

    private final String namesrv;
    private DefaultMQProducer producer;

    Sender(String namesrv) {
        this.namesrv = namesrv;
    }

    private DefaultMQProducer producer() throws MQClientException {
        if (producer == null) {
            producer = new DefaultMQProducer("interop_sender");
            Client.configure(producer, namesrv);
            producer.setSendMsgTimeout(10_000);
            producer.start();
        }
        return producer;
    }

    void shutdown() {
        if (producer != null) {
            producer.shutdown();
        }
    }

    /** One line for each message that the broker acknowledged, at once: who kills the broker knows what it owes. */
    void send(String topic, int count, List<String> options) throws Exception {
        Map<String, String> chosen = new HashMap<>(Map.of("seed", "0", "shards", "0", "keys", "0", "delay", "0", "pause", "0"));
        for (String option : options) {
            chosen.put(option.substring(0, option.indexOf('=')), option.substring(option.indexOf('=') + 1));
        }
        String[] topics = topic.split(",");
        int shards = Integer.parseInt(chosen.get("shards"));
        int keys = Integer.parseInt(chosen.get("keys"));
        for (int i = 0; i < count; i++) {
            Message message = message(topics[i % topics.length], chosen.get("seed"), i);
            if (!chosen.get("delay").equals("0")) {
                message.setDelayTimeLevel(Integer.parseInt(chosen.get("delay")));
            }
            if (keys > 0) {
                message.setKeys("key-" + i % keys);
            }
            chosen.forEach((name, value) -> {
                if (name.startsWith(PUT)) {
                    MessageAccessor.putProperty(message, name.substring(PUT.length()), value);
                }
            });
            String shard = shards > 0 ? "shard-" + i % shards : null;
            if (shard != null) {
                MessageAccessor.putProperty(message, SHARDING_KEY, shard);
            }
            byte[] body = message.getBody();
            SendResult result = shard == null ? producer().send(message) : producer().send(message, new SelectMessageQueueByHash(), shard);
            Lines.put(line(message, body, result));
            Lines.flush();
            Thread.sleep(Long.parseLong(chosen.get("pause")));
        }
    }

    /** Cancels a timer message of `topic` by the handle that its sending answered; 4.9 has none. */
    void recall(String topic, String handle) throws Exception {
        Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class).invoke(producer(), topic, handle);
        Lines.put(Map.of("uniqKey", id));
    }

    private static String recallHandle(SendResult result) {
        try {
            return (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (ReflectiveOperationException old) {
            return null;
        }
    }

    private static Message message(String topic, String seed, int i) {
        String text = "消息 " + seed + "-" + i + " ";
        byte[] body = (i % LARGE_EVERY == LARGE_EVERY - 1 ? text.repeat(LARGE_REPEATS) : text).getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, "Tag" + (char) ('A' + i % 3), "key-" + seed + "-" + i + " grp-" + i % 5, i, body, true);
        message.putUserProperty("seed", seed);
        message.putUserProperty("备注", "n " + i);
        return message;
    }

    private static Map<String, Object> line(Message message, byte[] body, SendResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("status", result.getSendStatus().name());
        line.put("topic", message.getTopic());
        line.put("queueId", result.getMessageQueue().getQueueId());
        line.put("queueOffset", result.getQueueOffset());
        line.put("uniqKey", result.getMsgId());
        line.put("msgId", result.getOffsetMsgId());
        line.put("recallHandle", recallHandle(result));
        line.put("flag", message.getFlag());
        line.put("body", Messages.base64(body));
        line.put("properties", new HashMap<>(message.getProperties()));
        return line;
    }
}
