package rmqlog.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.commons.cli.PosixParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.SubCommand;
import org.apache.rocketmq.tools.command.consumer.DeleteSubscriptionGroupCommand;
import org.apache.rocketmq.tools.command.consumer.UpdateSubGroupSubCommand;
import org.apache.rocketmq.tools.command.topic.DeleteTopicSubCommand;
import org.apache.rocketmq.tools.command.topic.UpdateTopicSubCommand;

/**
 * `Admin namesrv`: what mqadmin is made of, one command a line until the end of input. The answer to a command is any number of
 * lines and then `{"done": true}` or `{"error": …}`. Types are left to the compiler: their packages are not the same in both versions.
 */
public final class Admin {
    private static final long TIMEOUT_MS = 20_000;

    private final DefaultMQAdminExt admin = new DefaultMQAdminExt(TIMEOUT_MS);

    private Admin(String namesrv) throws Exception {
        Client.configure(admin, namesrv);
        System.setProperty("rocketmq.namesrv.addr", namesrv); // for mqadmin's own commands
        admin.setAdminExtGroup("interop_admin");
        admin.start();
    }

    private void run(List<String> words) throws Exception {
        String first = words.size() > 1 ? words.get(1) : "";
        switch (words.get(0)) {
            case "topics" -> admin.fetchAllTopicList().getTopicList().forEach(topic -> Lines.put(Map.of("topic", topic)));
            case "topic-config" -> topicConfig(first, words.get(2));
            case "topic-stats" -> topicStats(first);
            case "groups" -> groups(first);
            case "consume-stats" -> consumeStats(first);
            case "create-topic" -> createTopic(first, words.get(2), Integer.parseInt(words.get(3)));
            case "delete-topic" -> deleteTopic(first, words.get(2), words.get(3));
            case "mqadmin" -> mqadmin(first, words.subList(2, words.size()));
            default -> throw new IllegalArgumentException("no such command: " + words.get(0));
        }
    }

    private void createTopic(String broker, String topic, int queues) throws Exception {
        var config = new org.apache.rocketmq.common.TopicConfig(topic);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        admin.createAndUpdateTopicConfig(broker, config);
    }

    private void deleteTopic(String broker, String topic, String namesrv) throws Exception {
        admin.deleteTopicInBroker(java.util.Set.of(broker), topic);
        admin.deleteTopicInNameServer(java.util.Set.of(namesrv), null, topic); // of every cluster; both versions have these arguments
    }

    /** A command of mqadmin itself, with its own options. */
    private static void mqadmin(String name, List<String> words) throws Exception {
        SubCommand command = switch (name) {
            case "updateTopic" -> new UpdateTopicSubCommand();
            case "deleteTopic" -> new DeleteTopicSubCommand();
            case "updateSubGroup" -> new UpdateSubGroupSubCommand();
            case "deleteSubGroup" -> new DeleteSubscriptionGroupCommand();
            default -> throw new IllegalArgumentException("no such command of mqadmin: " + name);
        };
        Options options = command.buildCommandlineOptions(ServerUtil.buildCommandlineOptions(new Options()));
        command.execute(new PosixParser().parse(options, words.toArray(String[]::new)), options, null);
    }

    private void topicConfig(String broker, String topic) throws Exception {
        var config = admin.examineTopicConfig(broker, topic);
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("readQueueNums", config.getReadQueueNums());
        line.put("writeQueueNums", config.getWriteQueueNums());
        line.put("perm", config.getPerm());
        line.put("order", config.isOrder());
        Lines.put(line);
    }

    private void topicStats(String topic) throws Exception {
        admin.examineTopicStats(topic).getOffsetTable().forEach((queue, offsets) -> {
            Map<String, Object> line = line(queue);
            line.put("minOffset", offsets.getMinOffset());
            line.put("maxOffset", offsets.getMaxOffset());
            line.put("lastUpdateTimestamp", offsets.getLastUpdateTimestamp());
            Lines.put(line);
        });
    }

    private void groups(String broker) throws Exception {
        admin.getAllSubscriptionGroup(broker, TIMEOUT_MS).getSubscriptionGroupTable().forEach((name, group) -> {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("group", name);
            line.put("consumeEnable", group.isConsumeEnable());
            line.put("retryQueueNums", group.getRetryQueueNums());
            line.put("retryMaxTimes", group.getRetryMaxTimes());
            Lines.put(line);
        });
    }

    private void consumeStats(String group) throws Exception {
        admin.examineConsumeStats(group).getOffsetTable().forEach((queue, offsets) -> {
            Map<String, Object> line = line(queue);
            line.put("brokerOffset", offsets.getBrokerOffset());
            line.put("consumerOffset", offsets.getConsumerOffset());
            line.put("lastTimestamp", offsets.getLastTimestamp());
            Lines.put(line);
        });
    }

    private static Map<String, Object> line(MessageQueue queue) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", queue.getTopic());
        line.put("brokerName", queue.getBrokerName());
        line.put("queueId", queue.getQueueId());
        return line;
    }

    public static void main(String[] arguments) throws Exception {
        Lines.takeStandardOutput();
        Admin admin = new Admin(arguments[0]);
        for (List<String> words = Lines.next(); !words.isEmpty(); words = Lines.next()) {
            try {
                admin.run(words);
                Lines.put(Map.of("done", true));
            } catch (Exception e) {
                Lines.put(Map.of("error", String.valueOf(e)));
            }
            Lines.flush();
        }
        System.exit(0); // the client's threads would go on
    }
}
