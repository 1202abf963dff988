package rmqlog.interop;

import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.store.OffsetSerializeWrapper;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQAdminImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * `Client namesrv`: RocketMQ's own client, one command a line until the end of input. The answer to a command is any number of
 * lines and then `{"done": true}` or `{"error": …}`.
 */
public final class Client {
    private static final String GROUP = "interop_reader";
    private static final long TIMEOUT_MS = 10_000;
    private static final int PULL_MAX = 32;
    private static final int NO_MESSAGE = 208; // ResponseCode, whose package is not the same in both versions

    private final String namesrv;
    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(GROUP);
    private final Sender sender;
    private final FailingConsumers consumers;
    private Transactions transactions;

    Client(String namesrv) throws MQClientException {
        this.namesrv = namesrv;
        configure(consumer, namesrv);
        consumer.start();
        sender = new Sender(namesrv);
        consumers = new FailingConsumers(namesrv);
    }

    static void configure(ClientConfig client, String namesrv) {
        client.setNamesrvAddr(namesrv);
        client.setClientIP(Loopback.HOST);
        client.setVipChannelEnabled(false);
    }

    void run(List<String> words) throws Exception {
        List<String> rest = words.subList(1, words.size());
        switch (words.get(0)) {
            case "topics" -> topics().forEach(topic -> Lines.put(Map.of("topic", topic)));
            case "min-max" -> eachQueue(rest, this::putEnds);
            case "consume-all" -> eachQueue(rest, queue -> putMessages(queue, MessageSelector.byTag("*")));
            case "consume-where" -> consumeWhere(rest.get(0), rest.get(1));
            case "query-key" -> queryKey(rest.get(0), rest.get(1), Integer.parseInt(rest.get(2)), Long.parseLong(rest.get(3)), Long.parseLong(rest.get(4)));
            case "query-id" -> queryUniqueKey(rest.get(0), rest.get(1));
            case "view-message" -> viewMessage(rest.get(0), Long.parseLong(rest.get(1)));
            case "search-offset" -> searchOffset(queue(rest.get(0), Integer.parseInt(rest.get(1))), Long.parseLong(rest.get(2)), rest.get(3));
            case "consumer-offsets" -> consumerOffsets(rest.get(0), rest.subList(1, rest.size()));
            case "commit-offset" -> commitOffset(rest.get(0), queue(rest.get(1), Integer.parseInt(rest.get(2))), Long.parseLong(rest.get(3)));
            case "local-offsets" -> localOffsets(Path.of(rest.get(0)));
            case "push-consume" -> PushConsumer.run(namesrv, rest.get(0), rest.get(1), Long.parseLong(rest.get(2)), rest.subList(3, rest.size()));
            case "consumer-start" -> consumers.start(rest.get(0), rest.get(1), Boolean.parseBoolean(rest.get(2)), Integer.parseInt(rest.get(3)));
            case "consumer-seen" -> consumers.seen(rest.get(0));
            case "consumer-stop" -> consumers.stop(rest.get(0));
            case "tx-open" -> transactions = new Transactions(namesrv, rest.get(0), rest.size() > 1 ? rest.get(1) : null);
            case "tx-send" -> transactions.send(rest.get(0), Integer.parseInt(rest.get(1)), rest.get(2), rest.get(3));
            case "tx-checks" -> transactions.checks();
            case "tx-close" -> transactions.shutdown();
            case "recall" -> sender.recall(rest.get(0), rest.get(1));
            case "send" -> sender.send(rest.get(0), Integer.parseInt(rest.get(1)), rest.subList(2, rest.size()));
            default -> throw new IllegalArgumentException("no such command: " + words.get(0));
        }
    }

    /** As LocalFileOffsetStore reads offsets.json and writes it back. */
    private static void localOffsets(Path file) throws Exception {
        OffsetSerializeWrapper offsets = OffsetSerializeWrapper.fromJson(Files.readString(file), OffsetSerializeWrapper.class);
        offsets.getOffsetTable().forEach((queue, offset) -> {
            Map<String, Object> line = line(queue);
            line.put("offset", offset.get());
            Lines.put(line);
        });
        Files.writeString(file, offsets.toJson(true));
    }

    // ---- topics and queues ------------------------------------------------------------------------------------------------

    private MQClientInstance instance() {
        return consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
    }

    private MQAdminImpl admin() {
        return instance().getMQAdminImpl();
    }

    /** Those the broker has registered: system topics too. */
    private TreeSet<String> topics() throws Exception {
        return new TreeSet<>(instance().getMQClientAPIImpl().getTopicListFromNameServer(TIMEOUT_MS).getTopicList());
    }

    private List<MessageQueue> queues(String topic) throws Exception {
        List<MessageQueue> queues = new ArrayList<>();
        for (var data : instance().getMQClientAPIImpl().getTopicRouteInfoFromNameServer(topic, TIMEOUT_MS).getQueueDatas()) {
            for (int id = 0; id < data.getReadQueueNums(); id++) {
                queues.add(new MessageQueue(topic, data.getBrokerName(), id));
            }
        }
        return queues;
    }

    private MessageQueue queue(String topic, int queueId) throws Exception {
        return queues(topic).stream().filter(queue -> queue.getQueueId() == queueId).findFirst().orElseThrow();
    }

    private interface QueueCommand {
        void run(MessageQueue queue) throws Exception;
    }

    /** Of the topics named, or of all. */
    private void eachQueue(List<String> named, QueueCommand command) throws Exception {
        for (String topic : named.isEmpty() ? topics() : new TreeSet<>(named)) {
            for (MessageQueue queue : queues(topic)) {
                command.run(queue);
            }
        }
    }

    private void putEnds(MessageQueue queue) throws Exception {
        Map<String, Object> line = line(queue);
        line.put("minOffset", admin().minOffset(queue));
        line.put("maxOffset", admin().maxOffset(queue));
        Lines.put(line);
    }

    private static Map<String, Object> line(MessageQueue queue) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", queue.getTopic());
        line.put("brokerName", queue.getBrokerName());
        line.put("queueId", queue.getQueueId());
        return line;
    }

    // ---- messages ---------------------------------------------------------------------------------------------------------

    /** From the first to the last at the time of asking; a broker that does not move on is an error, no empty queue. */
    private void putMessages(MessageQueue queue, MessageSelector selector) throws Exception {
        long stop = admin().maxOffset(queue);
        for (long offset = admin().minOffset(queue); offset < stop; ) {
            PullResult result = consumer.pull(queue, selector, offset, PULL_MAX);
            if (result.getPullStatus() == PullStatus.NO_NEW_MSG || result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(queue + " at offset " + offset + " of " + stop + ": " + result);
            }
            if (result.getPullStatus() == PullStatus.FOUND) {
                result.getMsgFoundList().forEach(message -> Lines.put(Messages.line(message)));
            }
            offset = result.getNextBeginOffset();
        }
    }

    /** What the broker delivers of a topic for an SQL92 condition; it has to have enablePropertyFilter=true. */
    private void consumeWhere(String topic, String condition) throws Exception {
        instance().updateTopicRouteInfoFromNameServer(topic);
        instance().sendHeartbeatToAllBrokerWithLock(); // the answer has the broker's version, without which the client asks for no SQL92
        eachQueue(List.of(topic), queue -> putMessages(queue, MessageSelector.bySql(condition)));
    }

    private void put(MessageExt message) {
        if (message != null) {
            Lines.put(Messages.line(message));
        }
    }

    /** Asks for all times: without times, a client of 5.5.0 asks for messages of the last three days only. */
    private void queryUniqueKey(String topic, String key) throws Exception {
        put(admin().queryMessageByUniqKey(topic, key, 32, 0, Long.MAX_VALUE).getMessageList().get(0));
    }

    private void queryKey(String topic, String key, int max, long begin, long end) throws Exception {
        try {
            QueryResult result = admin().queryMessage(topic, key, max, begin, end);
            result.getMessageList().forEach(this::put);
        } catch (MQClientException failure) {
            if (failure.getResponseCode() != NO_MESSAGE) {
                throw failure;
            }
        }
    }

    /** The id is made for the address at which the broker is now: the stored one may be another machine's. */
    private void viewMessage(String topic, long physicalOffset) throws Exception {
        String[] address = instance().findBrokerAddressInPublish(queues(topic).get(0).getBrokerName()).split(":");
        InetSocketAddress host = new InetSocketAddress(address[0], Integer.parseInt(address[1]));
        put(consumer.viewMessage(topic, MessageDecoder.createMessageId(host, physicalOffset)));
    }

    /** `boundary` is LOWER or UPPER with 5.x, and - with 4.9, which has none. */
    private void searchOffset(MessageQueue queue, long timestamp, String boundary) throws Exception {
        long offset = -1;
        if (boundary.equals("-")) {
            offset = admin().searchOffset(queue, timestamp);
        } else {
            Class<?> type = Class.forName("org.apache.rocketmq.common.BoundaryType");
            Object value = type.getMethod("valueOf", String.class).invoke(null, boundary);
            offset = (Long) MQAdminImpl.class.getMethod("searchOffset", MessageQueue.class, long.class, type).invoke(admin(), queue, timestamp, value);
        }
        Lines.put(Map.of("offset", offset));
    }

    /** What the broker has for the group: the next offset to read, or -1. */
    private void consumerOffsets(String group, List<String> topics) throws Exception {
        DefaultMQPullConsumer member = new DefaultMQPullConsumer(group);
        configure(member, namesrv);
        member.setInstanceName("offsets-" + System.nanoTime()); // a client of its own: groups may not share one
        member.start();
        try {
            eachQueue(topics, queue -> {
                Map<String, Object> line = line(queue);
                line.put("offset", member.fetchConsumeOffset(queue, true));
                Lines.put(line);
            });
        } finally {
            member.shutdown();
        }
    }

    /** As a client commits: the broker takes a lower offset too. */
    private void commitOffset(String group, MessageQueue queue, long offset) throws Exception {
        DefaultMQPullConsumer member = new DefaultMQPullConsumer(group);
        configure(member, namesrv);
        member.setInstanceName("commit-" + System.nanoTime());
        member.start();
        try {
            MQClientInstance instance = member.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
            instance.updateTopicRouteInfoFromNameServer(queue.getTopic());
            instance.sendHeartbeatToAllBrokerWithLock(); // 5.5 takes offsets only of a group that it knows
            member.getDefaultMQPullConsumerImpl().getOffsetStore().updateConsumeOffsetToBroker(queue, offset, false);
        } finally {
            member.shutdown();
        }
    }

    public static void main(String[] args) throws Exception {
        Lines.takeStandardOutput();
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000"); // else a topic made later waits 20 seconds
        Client client = new Client(args[0]);
        for (List<String> words = Lines.next(); !words.isEmpty(); words = Lines.next()) {
            try {
                client.run(words);
                Lines.put(Map.of("done", true));
            } catch (Exception failure) {
                failure.printStackTrace();
                Lines.put(Map.of("error", failure.toString()));
            }
            Lines.flush();
        }
        client.sender.shutdown();
        client.consumer.shutdown();
        Runtime.getRuntime().halt(0);
    }
}
