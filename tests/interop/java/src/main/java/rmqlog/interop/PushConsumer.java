package rmqlog.interop;

import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer: goes on from the group's offsets, and has brought them to the broker when it ends. */
final class PushConsumer {
    private static final long STEP_MS = 50;
    private static final long QUIET_NANOS = 2_000_000_000;

    private PushConsumer() {
    }

    /**
     * Until the messages at all `places` of the topic, each a queue and an offset in it (`3:17`), have come, and then nothing for
     * 2 s; after `seconds` at the latest. A new group begins at the first offset.
     *
     * Messages of the group's retry topic come too; none of them is at a place of the topic. A message that comes again counts
     * once: after a rebalance a client gets what it has not yet committed a second time.
     */
    static void run(String namesrv, String group, String topic, long seconds, List<String> places) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        Client.configure(consumer, namesrv);
        consumer.setInstanceName("push-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Set<String> come = ConcurrentHashMap.newKeySet(); // where in the log they are
        Set<String> awaited = ConcurrentHashMap.newKeySet();
        awaited.addAll(places);
        AtomicLong last = new AtomicLong();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            last.set(System.nanoTime());
            synchronized (consumer) {
                for (MessageExt message : messages) {
                    if (come.add(message.getBrokerName() + "@" + message.getCommitLogOffset())) {
                        Lines.put(Messages.line(message));
                    }
                    if (message.getProperty(MessageConst.PROPERTY_RETRY_TOPIC) == null) {
                        awaited.remove(message.getQueueId() + ":" + message.getQueueOffset());
                    }
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            long end = System.nanoTime() + seconds * 1_000_000_000;
            while (System.nanoTime() < end) {
                // A consumer may get its first queue 20 s before the others, with the rebalance that follows.
                if (awaited.isEmpty() && System.nanoTime() - last.get() >= QUIET_NANOS) {
                    break;
                }
                Thread.sleep(STEP_MS);
            }
        } finally {
            consumer.setAwaitTerminationMillisWhenShutdown(5_000); // messages being consumed finish, then the offsets are sent
            consumer.shutdown();
        }
    }
}
