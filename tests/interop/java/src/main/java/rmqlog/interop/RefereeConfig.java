package rmqlog.interop;

import java.lang.reflect.Method;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.TopicConfig;

/** The files of config/ as the broker's own manager classes load them: `ConfigManager.load()`, which falls back to the `.bak`. */
final class RefereeConfig {
    private RefereeConfig() {
    }

    private static final class Offsets extends ConsumerOffsetManager {
        private final String path;

        Offsets(String path) {
            this.path = path;
        }

        @Override
        public String configFilePath() {
            return path;
        }
    }

    private static final class Topics extends TopicConfigManager {
        private final String path;

        Topics(String path) {
            this.path = path;
        }

        @Override
        public String configFilePath() {
            return path;
        }
    }

    private static final class Groups extends SubscriptionGroupManager {
        private final String path;

        Groups(String path) {
            this.path = path;
            getSubscriptionGroupTable().clear(); // the groups of every broker
        }

        @Override
        public String configFilePath() {
            return path;
        }
    }

    /** ScheduleMessageService needs a whole broker; this is its decode(), with the classes that it calls. */
    private static final class Delays extends ConfigManager {
        private final Map<Object, Object> offsets = new ConcurrentHashMap<>();
        private final String path;

        Delays(String path) {
            this.path = path;
        }

        @Override
        public void decode(String json) {
            try {
                Class<?> wrapper = wrapper();
                Method from = wrapper.getMethod("fromJson", String.class, Class.class);
                Object read = from.invoke(null, json, wrapper);
                if (read != null) {
                    offsets.putAll((Map<?, ?>) wrapper.getMethod("getOffsetTable").invoke(read));
                }
            } catch (ReflectiveOperationException failure) {
                throw new IllegalStateException(failure.getCause() == null ? failure : failure.getCause());
            }
        }

        private static Class<?> wrapper() throws ClassNotFoundException {
            try {
                return Class.forName("org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper");
            } catch (ClassNotFoundException old) {
                return Class.forName("org.apache.rocketmq.store.schedule.DelayOffsetSerializeWrapper");
            }
        }

        @Override
        public String configFilePath() {
            return path;
        }

        @Override
        public String encode() {
            return "";
        }

        @Override
        public String encode(boolean pretty) {
            return "";
        }
    }

    /** The table of topics; nothing but what the file says. */
    static ConcurrentHashMap<String, TopicConfig> topicTable(String store) {
        Topics topics = new Topics(store + "/config/topics.json");
        topics.load();
        return new ConcurrentHashMap<>(topics.getTopicConfigTable());
    }

    /** readQueueNums and perm of each topic; null if a broker does not start. */
    static Map<String, Object> readable(String store) {
        Topics topics = new Topics(store + "/config/topics.json");
        if (!topics.load()) {
            return null;
        }
        Map<String, Object> table = new TreeMap<>();
        topics.getTopicConfigTable().forEach((name, topic) -> table.put(name, List.of(topic.getReadQueueNums(), topic.getPerm())));
        return table;
    }

    /** A broker does not start when `load` is false. */
    static Map<String, Object> loaded(String what, String store) {
        Map<String, Object> line = new LinkedHashMap<>();
        String config = store + "/config/";
        switch (what) {
            case "offsets" -> {
                Offsets offsets = new Offsets(config + "consumerOffset.json");
                line.put("load", offsets.load());
                line.put("table", new TreeMap<>(offsets.getOffsetTable()));
            }
            case "topics" -> {
                Topics topics = new Topics(config + "topics.json");
                line.put("load", topics.load());
                Map<String, Object> table = new TreeMap<>();
                topics.getTopicConfigTable().forEach((name, topic) -> table.put(name,
                    Map.of("name", String.valueOf(topic.getTopicName()), "readQueueNums", topic.getReadQueueNums(),
                        "writeQueueNums", topic.getWriteQueueNums(), "perm", topic.getPerm())));
                line.put("table", table);
            }
            case "groups" -> {
                Groups groups = new Groups(config + "subscriptionGroup.json");
                line.put("load", groups.load());
                Map<String, Object> table = new TreeMap<>();
                // those of every broker: fastjson makes a manager that has them, where the file has no table
                groups.getSubscriptionGroupTable().keySet().removeAll(new SubscriptionGroupManager().getSubscriptionGroupTable().keySet());
                groups.getSubscriptionGroupTable().forEach((name, group) -> table.put(name,
                    Map.of("retryMaxTimes", group.getRetryMaxTimes(), "consumeEnable", group.isConsumeEnable(),
                        "consumeFromMinEnable", group.isConsumeFromMinEnable())));
                line.put("table", table);
            }
            case "delays" -> {
                Delays delays = new Delays(config + "delayOffset.json");
                line.put("load", delays.load());
                line.put("table", new TreeMap<>(delays.offsets));
            }
            default -> throw new IllegalArgumentException("no command " + what);
        }
        return line;
    }
}
