package rmqlog.interop;

import java.io.IOException;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager;
import org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager.OrderInfo;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * `PopOrder`: the broker's rules of order pop (QueueLevelConsumerManager), one command a line. The answer has `result` and `file`,
 * the consumerOrderInfo.json after the command.
 *
 * The class reads the real clock. The commands have a clock of their own, which stands still between `advance` commands: time passes
 * by moving all times of the table into the past, and `file` has the times of the commands. Commands should therefore compare times
 * that are at least minutes apart.
 */
public final class PopOrder {
    private static final long CLOCK_START = 1_700_000_000_000L;

    private final long start = System.currentTimeMillis();
    private long clock = CLOCK_START;
    private QueueLevelConsumerManager manager = new QueueLevelConsumerManager();
    private BrokerController broker;

    private Object run(List<String> words) throws Exception {
        String key = words.size() > 1 ? words.get(1) : "";
        int at = key.indexOf('@');
        String topic = at < 0 ? "" : key.substring(0, at);
        String group = key.substring(at + 1);
        switch (words.get(0)) {
            case "new" -> {
                manager = new QueueLevelConsumerManager();
                clock = CLOCK_START;
            }
            case "load" -> {
                manager.decode(words.get(1));
                shift(start - clock);
            }
            case "advance" -> {
                long passed = number(words, 1);
                clock += passed;
                shift(-passed);
            }
            case "pop" -> {
                return pop(topic, group, words);
            }
            case "block" -> {
                String attempt = words.get(3);
                return manager.checkBlock(attempt.isEmpty() ? null : attempt, topic, group, (int) number(words, 2), number(words, 4));
            }
            case "ack" -> {
                return manager.commitAndNext(topic, group, (int) number(words, 2), number(words, 3), real(number(words, 4)));
            }
            case "visible" -> manager.updateNextVisibleTime(topic, group, (int) number(words, 2), number(words, 3), real(number(words, 4)), real(number(words, 5)));
            case "clear" -> manager.clearBlock(topic, group, (int) number(words, 2));
            case "clean" -> clean(topic, group, (int) number(words, 2));
            default -> throw new IllegalArgumentException("no such command: " + words.get(0));
        }
        return null;
    }

    /** `pop topic@group queue attempt popTime invisible offset…`: orderCountInfo, which tells the client how often it consumed. */
    private String pop(String topic, String group, List<String> words) {
        int queue = (int) number(words, 2);
        String attempt = words.get(3);
        List<Long> offsets = new ArrayList<>();
        for (int i = 6; i < words.size(); i++) {
            offsets.add(number(words, i));
        }
        StringBuilder counts = new StringBuilder();
        long popTime = real(number(words, 4));
        manager.update(attempt.isEmpty() ? null : attempt, false, topic, group, queue, popTime, number(words, 5), offsets, counts);
        OrderInfo info = manager.getTable().get(topic + "@" + group).get(queue);
        if (Math.abs(info.getLastConsumeTimestamp() - start) > 1_800_000) {
            throw new IllegalStateException("half an hour since the start: times are compared wrong");
        }
        info.setLastConsumeTimestamp(start);
        return counts.toString();
    }

    /** autoClean of a broker that has this topic, with so many queues to read, and this group alone. */
    private void clean(String topic, String group, int readQueues) throws IOException {
        if (broker == null) {
            MessageStoreConfig store = new MessageStoreConfig();
            store.setStorePathRootDir(Files.createTempDirectory("pop-order").toString());
            broker = new BrokerController(new BrokerConfig(), new NettyServerConfig(), new NettyClientConfig(), store);
        }
        broker.getTopicConfigManager().getTopicConfigTable().clear();
        broker.getTopicConfigManager().getTopicConfigTable().put(topic, new TopicConfig(topic, readQueues, readQueues));
        broker.getSubscriptionGroupManager().getSubscriptionGroupTable().clear();
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        broker.getSubscriptionGroupManager().getSubscriptionGroupTable().put(group, config);
        QueueLevelConsumerManager cleaner = new QueueLevelConsumerManager(broker);
        cleaner.setTable(manager.getTable());
        cleaner.autoClean();
        cleaner.shutdown();
    }

    private static long number(List<String> words, int index) {
        return Long.parseLong(words.get(index));
    }

    private long real(long time) {
        return time - clock + start;
    }

    private void shift(long by) {
        for (ConcurrentHashMap<Integer, OrderInfo> queues : manager.getTable().values()) {
            for (OrderInfo info : queues.values()) {
                info.setPopTime(info.getPopTime() + by);
                info.setLastConsumeTimestamp(info.getLastConsumeTimestamp() + by);
                if (info.getOffsetNextVisibleTime() != null) {
                    info.getOffsetNextVisibleTime().replaceAll((offset, time) -> time + by);
                }
            }
        }
    }

    private String file() {
        shift(clock - start);
        String text = manager.encode(true);
        shift(start - clock);
        return text;
    }

    public static void main(String[] arguments) throws Exception {
        Lines.takeStandardOutput();
        PopOrder program = new PopOrder();
        for (List<String> words = Lines.next(); !words.isEmpty(); words = Lines.next()) {
            try {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("result", program.run(words));
                line.put("file", program.file());
                Lines.put(line);
            } catch (Exception failure) {
                failure.printStackTrace();
                Lines.put(Map.of("error", failure.toString()));
            }
            Lines.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
