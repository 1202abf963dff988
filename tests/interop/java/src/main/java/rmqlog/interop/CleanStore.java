package rmqlog.interop;

import java.lang.reflect.Method;
import java.util.Map;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * `CleanStore store broker.conf rounds`: DefaultMessageStore itself on that directory, and its own cleaning, so many rounds. A
 * broker begins to clean a minute after its start; the rounds begin at once.
 */
public final class CleanStore {
    private CleanStore() {
    }

    private static void call(Object object, String name) throws ReflectiveOperationException {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == 0) {
                    method.setAccessible(true);
                    method.invoke(object);
                    return;
                }
            }
        }
        throw new NoSuchMethodException(object.getClass().getName() + "." + name);
    }

    public static void main(String[] args) {
        Lines.takeStandardOutput();
        try {
            Config config = new Config(args[0], args[1]);
            DefaultMessageStore store = StoreOpen.open(config.messageStore(), config.into(new BrokerConfig()));
            if (!store.load()) {
                throw new IllegalStateException("DefaultMessageStore.load() answered false; the store's log says why");
            }
            store.start();
            for (int round = 0; round < Integer.parseInt(args[2]); round++) {
                call(store, "cleanFilesPeriodically"); // 4.9: of the queues, too
                if (args[3].startsWith("5")) {
                    call(Config.field(store, "consumeQueueStore").get(store), "cleanQueueFilesPeriodically");
                }
            }
            long minimum = store.getMinPhyOffset();
            store.shutdown();
            Lines.put(Map.of("minOffset", minimum));
            Lines.put(Map.of("done", true));
        } catch (Throwable failure) {
            failure.printStackTrace();
            Lines.put(Map.of("error", failure.toString()));
        }
        Lines.flush();
        Runtime.getRuntime().halt(0);
    }
}
