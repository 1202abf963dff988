package rmqlog.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * `Allocations`: the client's strategies. A command is a strategy, its argument, the current client, the number of queues, topic,
 * broker and id of each, and the clients; the answer is `queues`: the places of the client's queues among them.
 */
public final class Allocations {
    private Allocations() {
    }

    public static void main(String[] arguments) throws Exception {
        Lines.takeStandardOutput();
        for (List<String> words = Lines.next(); !words.isEmpty(); words = Lines.next()) {
            int count = Integer.parseInt(words.get(3));
            List<MessageQueue> queues = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                queues.add(new MessageQueue(words.get(4 + 3 * i), words.get(5 + 3 * i), Integer.parseInt(words.get(6 + 3 * i))));
            }
            List<String> clients = words.subList(4 + 3 * count, words.size());
            List<MessageQueue> found = strategy(words.get(0), words.get(1)).allocate("g", words.get(2), queues, clients);
            List<Integer> places = new ArrayList<>();
            found.forEach(queue -> places.add(queues.indexOf(queue)));
            Lines.put(Map.of("queues", places));
            Lines.flush();
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name, String argument) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(Integer.parseInt(argument));
            case "CONSISTENT_HASH_CRC":
                return new AllocateMessageQueueConsistentHash(Integer.parseInt(argument), Allocations::crc);
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(Set.of(argument.split(",")));
                return rooms;
            default:
                return new AllocateMachineRoomNearby(strategy(argument, "10"), new AllocateMachineRoomNearby.MachineRoomResolver() {
                    @Override
                    public String brokerDeployIn(MessageQueue queue) {
                        return queue.getBrokerName().split("@")[0];
                    }

                    @Override
                    public String consumerDeployIn(String client) {
                        return client.split("-")[0];
                    }
                });
        }
    }

    /** A user's hash function. */
    private static long crc(String key) {
        CRC32 crc = new CRC32();
        crc.update(key.getBytes(StandardCharsets.UTF_8));
        return crc.getValue();
    }
}
