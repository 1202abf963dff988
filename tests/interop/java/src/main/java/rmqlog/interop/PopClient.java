package rmqlog.interop;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * `PopClient namesrv`: pops, acks and changes of invisible times as a broker's clients ask for them, one command a line until the
 * end of input. A handle is the text in the property POP_CK. The answer is any number of lines, then `{"done": true}` or
 * `{"error": …}`.
 */
public final class PopClient {
    private static final long TIMEOUT_MS = 10_000;
    private static final int ALL_QUEUES = -1;
    private static final int FROM_MIN = 0; // ConsumeInitMode

    private final MQClientInstance instance;

    private PopClient(String namesrv) throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop_pop");
        Client.configure(consumer, namesrv);
        consumer.start();
        instance = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
    }

    private void run(List<String> words) throws Exception {
        switch (words.get(0)) {
            case "pop" -> pop(words.get(1), words.get(2), Integer.parseInt(words.get(3)), Long.parseLong(words.get(4)), options(words, 5));
            case "ack" -> eachHandle(words, this::ack);
            case "batch-ack" -> batchAck(words.get(1), words.get(2), words.subList(3, words.size()));
            case "change" -> change(words.get(1), words.get(2), words.get(3), Long.parseLong(words.get(4)), options(words, 5));
            default -> throw new IllegalArgumentException("no such command: " + words.get(0));
        }
    }

    private static Map<String, String> options(List<String> words, int first) {
        Map<String, String> options = new HashMap<>();
        for (String word : words.subList(first, words.size())) {
            options.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        return options;
    }

    private MQClientAPIImpl api() {
        return instance.getMQClientAPIImpl();
    }

    private String broker(String topic) throws Exception {
        instance.updateTopicRouteInfoFromNameServer(topic);
        return instance.getTopicRouteTable().get(topic).getBrokerDatas().get(0).getBrokerName();
    }

    private static <T> T wait(CompletableFuture<T> answer) throws Exception {
        return answer.get(3 * TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    // ---- the requests -----------------------------------------------------------------------------------------------------

    /** Options: queue, order, poll (ms), tags, sql, attempt. A line for each message, then one with `status`. */
    private void pop(String group, String topic, int max, long invisible, Map<String, String> options) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(Integer.parseInt(options.getOrDefault("queue", Integer.toString(ALL_QUEUES))));
        header.setMaxMsgNums(max);
        header.setInvisibleTime(invisible);
        header.setPollTime(Long.parseLong(options.getOrDefault("poll", "0")));
        header.setBornTime(System.currentTimeMillis() + TIMEOUT_MS); // a busy broker answers a request older than 500 ms with nothing
        header.setInitMode(FROM_MIN);
        header.setOrder(Boolean.parseBoolean(options.getOrDefault("order", "false")));
        header.setAttemptId(options.get("attempt"));
        header.setExpType(options.containsKey("sql") ? "SQL92" : "TAG");
        header.setExp(options.getOrDefault("sql", options.getOrDefault("tags", "*")));
        String broker = broker(topic);
        CompletableFuture<PopResult> answer = new CompletableFuture<>();
        api().popMessageAsync(broker, instance.findBrokerAddressInPublish(broker), header, header.getPollTime() + TIMEOUT_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                answer.completeExceptionally(failure);
            }
        });
        PopResult result = wait(answer);
        if (result.getMsgFoundList() != null) {
            for (MessageExt message : result.getMsgFoundList()) {
                Map<String, Object> line = Messages.line(message);
                line.put("handle", message.getProperty(MessageConst.PROPERTY_POP_CK));
                Lines.put(line);
            }
        }
        Lines.put(Map.of("status", result.getPopStatus().name(), "popTime", result.getPopTime(), "restNum", result.getRestNum()));
    }

    private interface HandleCommand {
        void run(String group, String topic, String handle) throws Exception;
    }

    /** `… group topic handle…`: one request for each. */
    private static void eachHandle(List<String> words, HandleCommand command) throws Exception {
        for (String handle : words.subList(3, words.size())) {
            command.run(words.get(1), words.get(2), handle);
        }
    }

    private void ack(String group, String topic, String handle) throws Exception {
        String[] parts = ExtraInfoUtil.split(handle);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle);
        put(acked(callback -> api().ackMessageAsync(address(parts), TIMEOUT_MS, callback, header)));
    }

    private void batchAck(String group, String topic, List<String> handles) throws Exception {
        String address = address(ExtraInfoUtil.split(handles.get(0)));
        put(acked(callback -> api().batchAckMessageAsync(address, TIMEOUT_MS, callback, topic, group, handles)));
    }

    /** Option: suspend. The line has the new handle. */
    private void change(String group, String topic, String handle, long invisible, Map<String, String> options) throws Exception {
        String[] parts = ExtraInfoUtil.split(handle);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle);
        header.setInvisibleTime(invisible);
        header.setSuspend(Boolean.parseBoolean(options.getOrDefault("suspend", "false")));
        String broker = ExtraInfoUtil.getBrokerName(parts);
        put(acked(callback -> api().changeInvisibleTimeAsync(broker, address(parts), header, TIMEOUT_MS, callback)));
    }

    private String address(String[] handle) {
        return instance.findBrokerAddressInPublish(ExtraInfoUtil.getBrokerName(handle));
    }

    private interface AckRequest {
        void send(AckCallback callback) throws Exception;
    }

    private static AckResult acked(AckRequest request) throws Exception {
        CompletableFuture<AckResult> answer = new CompletableFuture<>();
        request.send(new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                answer.completeExceptionally(failure);
            }
        });
        return wait(answer);
    }

    private static void put(AckResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("status", result.getStatus() == null ? null : result.getStatus().name());
        line.put("popTime", result.getPopTime());
        line.put("handle", result.getExtraInfo());
        Lines.put(line);
    }

    public static void main(String[] arguments) throws Exception {
        Lines.takeStandardOutput();
        PopClient client = new PopClient(arguments[0]);
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
        Runtime.getRuntime().halt(0);
    }
}
