package rmqlog.interop;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * `StoreClean rounds store broker.conf [store broker.conf …]`: DefaultMessageStore on each directory deletes files as it does every
 * cleanResourceInterval, so many times at once. Says the ends of the queues afterwards. The stores are shut down in order.
 */
public final class StoreClean {
    private StoreClean() {
    }

    private static DefaultMessageStore open(String path, String conf) throws Exception {
        Config config = new Config(path, conf);
        return StoreOpen.open(config.messageStore(), config.into(new BrokerConfig()));
    }

    private static List<Map<String, Object>> clean(String path, DefaultMessageStore store, int rounds) throws Exception {
        if (!store.load()) {
            throw new IllegalStateException("DefaultMessageStore.load() answered false; the store's log says why");
        }
        store.start();
        for (int round = 0; round < rounds; round++) {
            clean(store);
        }
        List<Map<String, Object>> lines = new ArrayList<>();
        for (var topic : store.getConsumeQueueTable().entrySet()) {
            for (int queueId : topic.getValue().keySet()) {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("store", path);
                line.put("topic", topic.getKey());
                line.put("queueId", queueId);
                line.put("minOffset", store.getMinOffsetInQueue(topic.getKey(), queueId));
                line.put("maxOffset", store.getMaxOffsetInQueue(topic.getKey(), queueId));
                lines.add(line);
            }
        }
        store.shutdown();
        return lines;
    }

    /** Once, as every cleanResourceInterval. */
    static void clean(DefaultMessageStore store) throws ReflectiveOperationException {
        call(store, "cleanFilesPeriodically"); // up to 4.9 of the queues, too
        if (has(store, "consumeQueueStore")) {
            call(Config.field(store, "consumeQueueStore").get(store), "cleanQueueFilesPeriodically");
        }
    }

    private static boolean has(Object object, String name) {
        return Arrays.stream(object.getClass().getDeclaredFields()).anyMatch(field -> field.getName().equals(name));
    }

    private static void call(Object object, String name) throws ReflectiveOperationException {
        Method method = object.getClass().getDeclaredMethod(name);
        method.setAccessible(true);
        method.invoke(object);
    }

    public static void main(String[] args) {
        Lines.takeStandardOutput();
        try {
            ExecutorService threads = Executors.newCachedThreadPool(); // a shutdown sleeps for seconds
            List<Future<List<Map<String, Object>>>> all = new ArrayList<>();
            for (int i = 1; i < args.length; i += 2) {
                String path = args[i];
                DefaultMessageStore store = open(path, args[i + 1]); // here: two constructors at once fail now and then
                all.add(threads.submit((Callable<List<Map<String, Object>>>) () -> clean(path, store, Integer.parseInt(args[0]))));
            }
            for (Future<List<Map<String, Object>>> each : all) {
                each.get().forEach(Lines::put);
            }
            Lines.put(Map.of("done", true));
        } catch (Throwable failure) {
            failure.printStackTrace();
            Lines.put(Map.of("error", failure.toString()));
        }
        Lines.flush();
        Runtime.getRuntime().halt(0);
    }
}
