import apache.rocketmq.v2.Message;
import apache.rocketmq.v2.SendMessageRequest;
import apache.rocketmq.v2.SystemProperties;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.proxy.common.ProxyContext;
import org.apache.rocketmq.proxy.grpc.v2.producer.SendMessageActivity;
import org.apache.rocketmq.proxy.service.route.AddressableMessageQueue;
import org.apache.rocketmq.proxy.service.route.MessageQueueView;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

/**
 * Writes message_groups.jsonl: the queues that the proxy of RocketMQ chooses for FIFO messages, one line of JSON for
 * each topic. A store is [broker name, readQueueNums, writeQueueNums, perm]. To write the file again, compile and run
 * this class with org.apache.rocketmq:rocketmq-proxy:5.5.0 and all it needs in the class path.
 */
public class MessageGroups {
    static class Open extends SendMessageActivity {
        Open() { super(null, null, null); }
        static AddressableMessageQueue choose(SendMessageRequest request, MessageQueueView view) {
            return new SendMessageQueueSelector(request).select(ProxyContext.create(), view);
        }
    }

    public static void main(String[] args) {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        Random random = new Random(5);
        String[] alphabet = {"a", "B", "7", "-", "_", "订", "单", "é", "\uD83D\uDE00", "z", "%", "/"};
        String[] names = {"broker-a", "broker-b", "Broker-c", "broker-a-2", "b\u4e2d"};
        for (int topic = 0; topic < 60; topic++) {
            List<QueueData> queues = new ArrayList<>();
            List<BrokerData> brokers = new ArrayList<>();
            StringBuilder stores = new StringBuilder();
            int count = 1 + random.nextInt(names.length);
            boolean writable = false;
            for (int i = 0; i < count; i++) {
                QueueData data = new QueueData();
                data.setBrokerName(names[i]);
                data.setReadQueueNums(1 + random.nextInt(16));
                data.setWriteQueueNums(random.nextInt(6) == 0 ? 0 : 1 + random.nextInt(topic % 3 == 0 ? 64 : 8));
                data.setPerm(random.nextInt(4) == 0 ? 4 : 2 + 4 * random.nextInt(2));
                queues.add(data);
                HashMap<Long, String> addresses = new HashMap<>();
                addresses.put(0L, "127.0.0.1:10911");
                brokers.add(new BrokerData("c", names[i], addresses));
                writable |= (data.getPerm() & 2) != 0 && data.getWriteQueueNums() > 0;
                stores.append(i == 0 ? "" : ", ").append("[\"").append(names[i]).append("\", ")
                    .append(data.getReadQueueNums()).append(", ").append(data.getWriteQueueNums()).append(", ")
                    .append(data.getPerm()).append("]");
            }
            if (!writable) {
                continue;
            }
            TopicRouteData route = new TopicRouteData();
            route.setQueueDatas(queues);
            route.setBrokerDatas(brokers);
            MessageQueueView view = new MessageQueueView("T", route, null);
            StringBuilder chosen = new StringBuilder();
            for (int i = 0; i < 40; i++) {
                StringBuilder group = new StringBuilder();
                for (int length = 1 + random.nextInt(12); length > 0; length--) {
                    group.append(alphabet[random.nextInt(alphabet.length)]);
                }
                SendMessageRequest request = SendMessageRequest.newBuilder().addMessages(Message.newBuilder()
                    .setSystemProperties(SystemProperties.newBuilder().setMessageGroup(group.toString()))).build();
                AddressableMessageQueue queue = Open.choose(request, view);
                chosen.append(i == 0 ? "" : ", ").append("[\"").append(group).append("\", \"")
                    .append(queue.getBrokerName()).append("\", ").append(queue.getQueueId()).append("]");
            }
            out.println("{\"stores\": [" + stores + "], \"chosen\": [" + chosen + "]}");
        }
    }
}
