package rmqlog.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A transaction producer whose messages carry their rule: tx=commit|rollback|unknown is the local transaction, answer=commit@2 what
 * a check is answered from the second on. Any other answer is unknown.
 */
final class Transactions implements TransactionListener {
    private final TransactionMQProducer producer;
    private final List<Map<String, Object>> checks = Collections.synchronizedList(new ArrayList<>());

    /** The broker knows the producer afterwards, so that it can ask about messages of `topic`. */
    Transactions(String namesrv, String group, String topic) throws MQClientException {
        producer = new TransactionMQProducer(group);
        Client.configure(producer, namesrv);
        producer.setInstanceName("transactions-" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(this);
        producer.start();
        if (topic != null) {
            MQClientInstance instance = producer.getDefaultMQProducerImpl().getmQClientFactory();
            instance.updateTopicRouteInfoFromNameServer(topic);
            instance.sendHeartbeatToAllBrokerWithLock();
        }
    }

    void send(String topic, int count, String tx, String answer) throws MQClientException {
        for (int i = 0; i < count; i++) {
            byte[] body = ("transaction " + tx + " " + answer + " " + i).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(topic, "Tx", "tx-" + tx + "-" + answer + "-" + i, body);
            message.putUserProperty("tx", tx);
            message.putUserProperty("answer", answer);
            Lines.put(Map.of("uniqKey", producer.sendMessageInTransaction(message, null).getMsgId()));
        }
    }

    private static LocalTransactionState state(String name) {
        return switch (name) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return state(message.getUserProperty("tx"));
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int times = Integer.parseInt(message.getProperty("TRANSACTION_CHECK_TIMES"));
        String[] answer = message.getUserProperty("answer").split("@");
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("uniqKey", message.getProperty("UNIQ_KEY"));
        line.put("times", times);
        checks.add(line);
        return state(answer.length == 2 && times >= Integer.parseInt(answer[1]) ? answer[0] : "unknown");
    }

    /** Every check since the start. */
    void checks() {
        synchronized (checks) {
            checks.forEach(Lines::put);
        }
    }

    void shutdown() {
        producer.shutdown();
    }
}
