package rmqlog.interop;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer: goes on from the group's offsets, and has brought them to the broker when it ends. */
final class PushConsumer {
    private static final long STEP_MS = 50;

    private PushConsumer() {
    }

    /**
     * Until `count` messages have come, and then nothing for a quarter of `idleSeconds`; with a `count` of 0, until nothing came for
     * `idleSeconds`. After `seconds` at the latest. A new group begins at the first offset.
     *
     * A message that comes again counts once: after a rebalance a client gets what it has not yet committed a second time.
     */
    static void run(String namesrv, String group, String topic, long seconds, long idleSeconds, long count) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        Client.configure(consumer, namesrv);
        consumer.setInstanceName("push-" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        Set<String> come = ConcurrentHashMap.newKeySet(); // where in the log they are
        AtomicLong last = new AtomicLong(); // 0 until something has come: on a busy machine the first rebalance may take long
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            synchronized (consumer) {
                for (MessageExt message : messages) {
                    if (come.add(message.getBrokerName() + "@" + message.getCommitLogOffset())) {
                        Lines.put(Messages.line(message));
                    }
                }
            }
            last.set(System.nanoTime());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            long end = System.nanoTime() + seconds * 1_000_000_000;
            long idle = idleSeconds * 1_000_000_000;
            while (System.nanoTime() < end) {
                // A consumer may get its first queue 20 s before the others, with the rebalance that follows.
                boolean isComplete = last.get() != 0 && come.size() >= count;
                if (isComplete && System.nanoTime() - last.get() >= (count == 0 ? idle : idle / 4)) {
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
