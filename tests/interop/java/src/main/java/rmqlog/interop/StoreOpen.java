package rmqlog.interop;

import java.lang.reflect.Constructor;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * `StoreOpen load|start store broker.conf [store broker.conf …]`: DefaultMessageStore itself on each directory, which recovers it as a
 * broker does at its start. Says every message of every queue, then the queues and the ends. `start` also starts and shuts down the
 * store.
 */
public final class StoreOpen {
    private static final int SYS_FLAG_POSITION = 36; // MessageDecoder.SYSFLAG_POSITION, which is not the same in both versions

    private final DefaultMessageStore store;

    private StoreOpen(Config config) throws Exception {
        store = open(config.messageStore(), config.into(new BrokerConfig()));
    }

    /** 5.x asks for the table of topics too; without one every queue has the default type. */
    static DefaultMessageStore open(MessageStoreConfig config, BrokerConfig broker) throws Exception {
        Constructor<?> constructor = Arrays.stream(DefaultMessageStore.class.getConstructors())
            .filter(each -> each.getParameterCount() >= 4 && each.getParameterTypes()[0] == MessageStoreConfig.class).findFirst().orElseThrow();
        Object[] arguments = new Object[constructor.getParameterCount()];
        arguments[0] = config;
        arguments[1] = new BrokerStatsManager(broker.getBrokerClusterName(), false);
        arguments[3] = broker;
        if (arguments.length > 4) {
            arguments[4] = new ConcurrentHashMap<>();
        }
        return (DefaultMessageStore) constructor.newInstance(arguments);
    }

    private void read() throws Exception {
        for (var topic : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            for (var queue : new TreeMap<>(topic.getValue()).entrySet()) {
                readQueue(topic.getKey(), queue.getKey(), queue.getValue());
            }
        }
        Lines.put(Map.of("commitLog", Map.of("minOffset", store.getMinPhyOffset(), "maxOffset", store.getMaxPhyOffset())));
    }

    private void readQueue(String topic, int queueId, Object queue) throws Exception {
        long start = store.getMinOffsetInQueue(topic, queueId);
        long stop = store.getMaxOffsetInQueue(topic, queueId);
        long found = 0;
        for (long offset = start; offset < stop; offset++) {
            if (!hasMessage(queue, offset)) {
                continue;
            }
            GetMessageResult result = store.getMessage("interop", topic, queueId, offset, 1, null);
            if (result != null && result.getMessageBufferList().size() == 1) {
                Lines.put(message(result.getMessageBufferList().get(0), tagsCode(queue, offset)));
                found++;
            }
            if (result != null) {
                result.release();
            }
        }
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", topic);
        line.put("queueId", queueId);
        line.put("minOffset", start);
        line.put("maxOffset", stop);
        line.put("rows", found);
        Lines.put(Map.of("queue", line));
    }

    /** As the golden files have it: sysFlag as stored, the body decompressed, and the stored bytes where they are others. */
    private static Map<String, Object> message(ByteBuffer unit, Long tagsCode) {
        MessageExt decoded = MessageDecoder.decode(unit.duplicate(), true, true);
        if (decoded == null) {
            byte[] bytes = new byte[unit.remaining()];
            unit.duplicate().get(bytes);
            throw new IllegalStateException("no client decodes " + Messages.base64(bytes));
        }
        Map<String, Object> line = Messages.line(decoded);
        String raw = Messages.base64(MessageDecoder.decode(unit.duplicate(), true, false).getBody());
        line.put("sysFlag", unit.getInt(unit.position() + SYS_FLAG_POSITION));
        if (!raw.equals(line.get("body"))) {
            line.put("rawBody", raw);
        }
        line.put("tagsCode", tagsCode);
        return line;
    }

    /** Not for an expired message, whose entry is there until cleaning deletes the file, and not for a blank entry: a get
     * returns the bytes of another message. Nor for zeros, which 4.9.7 takes for an entry at the beginning of a queue that
     * was cut (ConsumeQueue.truncateDirtyLogicFiles). */
    private boolean hasMessage(Object queue, long offset) {
        if (!(queue instanceof ConsumeQueue)) {
            return true;
        }
        SelectMappedBufferResult units = ((ConsumeQueue) queue).getIndexBuffer(offset);
        if (units == null) {
            return false;
        }
        try {
            ByteBuffer unit = units.getByteBuffer();
            long physicalOffset = unit.getLong(unit.position());
            int size = unit.getInt(unit.position() + 8);
            return physicalOffset >= store.getMinPhyOffset() && size > 0 && size != Integer.MAX_VALUE;
        } finally {
            units.release();
        }
    }

    private static Long tagsCode(Object queue, long offset) {
        if (!(queue instanceof ConsumeQueue)) {
            return null;
        }
        SelectMappedBufferResult units = ((ConsumeQueue) queue).getIndexBuffer(offset);
        try {
            return units.getByteBuffer().getLong(units.getByteBuffer().position() + 12);
        } finally {
            units.release();
        }
    }

    private static void openStore(Config config, boolean starts) throws Exception {
        StoreOpen open = new StoreOpen(config);
        if (!open.store.load()) {
            throw new IllegalStateException("DefaultMessageStore.load() answered false; the store's log says why");
        }
        if (starts) {
            open.store.start();
        } else {
            Config.set(open.store, "shutdown", false); // else getMessage answers nothing before start()
        }
        open.read();
        if (starts) {
            open.store.shutdown();
        }
    }

    public static void main(String[] args) {
        Lines.takeStandardOutput();
        try {
            for (int i = 1; i < args.length; i += 2) {
                openStore(new Config(args[i], args[i + 1]), args[0].equals("start"));
            }
            Lines.put(Map.of("done", true));
        } catch (Throwable failure) {
            failure.printStackTrace();
            Lines.put(Map.of("error", failure.toString()));
        }
        Lines.flush();
        Runtime.getRuntime().halt(0); // what load() began, nobody is to finish: the directory stays as the recovery left it
    }
}
