package rmqlog.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Push consumers that work while other commands run. A message with the property fail=n fails while its reconsumeTimes are less
 * than n: the concurrent consumer asks for it later, the orderly one suspends the queue.
 */
final class FailingConsumers {
    private static final long SUSPEND_MS = 100;
    private static final int CLIENT_POLL_MS = 500; // topics that are made after the start are found soon

    private final String namesrv;
    private final Map<String, DefaultMQPushConsumer> running = new HashMap<>();
    private final Map<String, List<Map<String, Object>>> seen = new HashMap<>();

    FailingConsumers(String namesrv) {
        this.namesrv = namesrv;
    }

    /** `maxTimes` is maxReconsumeTimes; -1 is RocketMQ's default: 16, and without end for an orderly consumer. */
    void start(String group, String topics, boolean orderly, int maxTimes) throws MQClientException {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        Client.configure(consumer, namesrv);
        consumer.setInstanceName("failing-" + group + "-" + System.nanoTime());
        consumer.setPollNameServerInterval(CLIENT_POLL_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(maxTimes);
        consumer.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
        for (String each : topics.split(",")) {
            consumer.subscribe(each, "*");
        }
        List<Map<String, Object>> lines = Collections.synchronizedList(new ArrayList<>());
        seen.put(group, lines);
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> consumed(messages, lines)
                ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> consumed(messages, lines)
                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        running.put(group, consumer);
    }

    /** A call has one message: consumeMessageBatchMaxSize is 1 by default. */
    private static boolean consumed(List<MessageExt> messages, List<Map<String, Object>> lines) {
        boolean ok = true;
        for (MessageExt message : messages) {
            String fail = message.getUserProperty("fail");
            boolean failed = fail != null && message.getReconsumeTimes() < Integer.parseInt(fail);
            Map<String, Object> line = Messages.line(message);
            line.put("failed", failed);
            lines.add(line);
            ok &= !failed;
        }
        return ok;
    }

    /** Every call of the listener since the start. */
    void seen(String group) {
        List<Map<String, Object>> lines = seen.get(group);
        synchronized (lines) {
            lines.forEach(Lines::put);
        }
    }

    /** The offsets are at the broker afterwards. */
    void stop(String group) {
        DefaultMQPushConsumer consumer = running.remove(group);
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.shutdown();
    }
}
