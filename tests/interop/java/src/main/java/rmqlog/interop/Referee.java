package rmqlog.interop;

import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * `Referee [loud]`: stays up and answers what a broker serves of a store, one line for each command. A store is loaded by
 * DefaultMessageStore.load() and changes as it does when a broker starts, so callers give a copy.
 *
 * `serve store broker.conf` loads the store, dispatches to the end of the commitlog as DefaultMessageStore.start() does, without the
 * threads, and lists what a pull at each offset of each queue gets.
 * `open store broker.conf` starts a store with all its threads. `put topic queueId body` and `again` (as `serve`) are for this store;
 * `close` shuts it down in order, which takes seconds.
 * `offsets|topics|groups|delays store` load a file of config/ with the broker's own classes.
 */
public final class Referee {
    private static final int SYS_FLAG_POSITION = 36; // MessageDecoder.SYSFLAG_POSITION, which is not the same in both versions
    private static final String GROUP = "referee";
    private static final int OFFSETS_MAX = 4096; // at each end of a queue: a flipped bit may make it very long

    /** One for all stores: each one has threads of its own. */
    private static final BrokerStatsManager STATISTICS = new BrokerStatsManager(GROUP, false);

    private static DefaultMessageStore open;

    private Referee() {
    }

    // ---- a store ----------------------------------------------------------------------------------------------------------

    private static Config config(String store, String conf) throws Exception {
        return new Config(store, conf);
    }

    private static DefaultMessageStore made(Config config, String store) throws Exception {
        MessageStoreConfig settings = config.into(new MessageStoreConfig());
        String log = settings.getStorePathCommitLog();
        settings.setStorePathRootDir(store);
        settings.setStorePathCommitLog(log == null || !log.startsWith(store) ? store + "/commitlog" : log);
        BrokerConfig broker = config.into(new BrokerConfig());
        Constructor<?> constructor = Arrays.stream(DefaultMessageStore.class.getConstructors())
            .filter(each -> each.getParameterCount() >= 4 && each.getParameterTypes()[0] == MessageStoreConfig.class).findFirst().orElseThrow();
        Object[] arguments = new Object[constructor.getParameterCount()];
        arguments[0] = settings;
        arguments[1] = STATISTICS;
        arguments[3] = broker;
        if (arguments.length > 4) {
            arguments[4] = RefereeConfig.topicTable(store);
        }
        return (DefaultMessageStore) constructor.newInstance(arguments);
    }

    private static Map<String, Object> serve(String path, String conf) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topics", RefereeConfig.readable(path));
        DefaultMessageStore store = made(config(path, conf), path);
        try {
            boolean loaded = store.load();
            line.put("load", loaded);
            if (loaded) {
                line.put("behind", dispatched(store));
                Config.set(store, "shutdown", false); // else getMessage answers nothing before start()
                served(store, line);
            }
        } finally {
            unmap(store);
        }
        return line;
    }

    /** What start() does before any other service works: dispatches from behind the largest place of all queues. Returns the bytes
     * that cannot be dispatched: a broker waits for them forever. */
    private static long dispatched(DefaultMessageStore store) throws Exception {
        long from = store.getCommitLog().getMinOffset();
        for (Object queues : store.getConsumeQueueTable().values()) {
            for (Object queue : ((Map<?, ?>) queues).values()) {
                from = Math.max(from, (Long) call(queue, "getMaxPhysicOffset"));
            }
        }
        Object service = Config.field(store, "reputMessageService").get(store);
        Config.set(service, "reputFromOffset", Math.max(0, from));
        long before = -1;
        while (store.dispatchBehindBytes() > 0 && before != Config.field(service, "reputFromOffset").getLong(service)) {
            before = Config.field(service, "reputFromOffset").getLong(service);
            call(service, "doReput");
        }
        call(store, "recoverTopicQueueTable");
        return Math.max(0, store.dispatchBehindBytes());
    }

    private static void served(DefaultMessageStore store, Map<String, Object> line) throws Exception {
        line.put("log", List.of(store.getMinPhyOffset(), store.getMaxPhyOffset()));
        List<Object> queues = new ArrayList<>();
        for (var topic : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            for (int queueId : new TreeMap<>(topic.getValue()).keySet()) {
                queues.add(queue(store, topic.getKey(), queueId));
            }
        }
        line.put("queues", queues);
    }

    private static Map<String, Object> queue(DefaultMessageStore store, String topic, int queueId) throws Exception {
        long start = store.getMinOffsetInQueue(topic, queueId);
        long stop = store.getMaxOffsetInQueue(topic, queueId);
        List<Object> messages = new ArrayList<>();
        for (long offset = Math.max(start, 0); offset < stop; offset++) { // -1: an empty batch queue
            if (offset == start + OFFSETS_MAX) {
                offset = Math.max(offset, stop - OFFSETS_MAX);
            }
            GetMessageResult result = store.getMessage(GROUP, topic, queueId, offset, 1, null);
            if (result == null) {
                continue;
            }
            if (!result.getMessageBufferList().isEmpty()) {
                Map<String, Object> message = message(offset, result.getMessageBufferList().get(0));
                message.put("entry", entry(store, topic, queueId, offset));
                messages.add(message);
            } else {
                messages.add(Map.of("at", offset, "status", result.getStatus().toString(), "entry", entry(store, topic, queueId, offset)));
            }
            result.release();
        }
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", topic);
        line.put("queueId", queueId);
        line.put("min", start);
        line.put("max", stop);
        line.put("messages", messages);
        return line;
    }

    /** Physical offset and tags code of the entry: what a pull gets may be another one's message. */
    private static List<Long> entry(DefaultMessageStore store, String topic, int queueId, long offset) throws Exception {
        Object found = ((Map<?, ?>) store.getConsumeQueueTable().get(topic)).get(queueId);
        if (!(found instanceof ConsumeQueue queue)) { // a batch queue
            Object unit = call(found, "get", offset);
            return unit == null ? List.of() : List.of((long) call(unit, "getPos"), (long) call(unit, "getTagsCode"));
        }
        SelectMappedBufferResult units = queue.getIndexBuffer(offset);
        try {
            ByteBuffer unit = units.getByteBuffer();
            return List.of(unit.getLong(unit.position()), unit.getLong(unit.position() + 12));
        } finally {
            units.release();
        }
    }

    /** What a pull at that offset gets, as a client decodes it, and what the record claims. */
    private static Map<String, Object> message(long offset, ByteBuffer unit) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("at", offset);
        line.put("size", unit.remaining());
        if (unit.remaining() < SYS_FLAG_POSITION + 4) {
            line.putAll(Map.of("physicalOffset", -1, "storedSize", 0, "magic", 0, "decodes", false));
            return line;
        }
        line.put("physicalOffset", unit.getLong(unit.position() + 28));
        line.put("storedSize", unit.getInt(unit.position()));
        line.put("magic", unit.getInt(unit.position() + 4));
        MessageExt stored = decoded(unit, false);
        MessageExt message = decoded(unit, true);
        line.put("decodes", stored != null && message != null);
        if (stored == null || message == null) {
            return line;
        }
        byte[] raw = stored.getBody() == null ? new byte[0] : stored.getBody();
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        line.put("crc", crc(raw) == message.getBodyCRC());
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("sysFlag", unit.getInt(unit.position() + SYS_FLAG_POSITION));
        line.put("body", crc(body));
        line.put("bodyLength", body.length);
        for (String name : List.of("UNIQ_KEY", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_BASE", "INNER_NUM")) {
            if (message.getProperty(name) != null) {
                line.put(name, message.getProperty(name));
            }
        }
        return line;
    }

    private static MessageExt decoded(ByteBuffer unit, boolean decompress) {
        try {
            return MessageDecoder.decode(unit.duplicate(), true, decompress);
        } catch (RuntimeException failure) { // a compression type that no client knows
            return null;
        }
    }

    private static int crc(byte[] bytes) {
        CRC32 crc = new CRC32();
        crc.update(bytes);
        return (int) (crc.getValue() & 0x7FFFFFFF);
    }

    /** Closes what load() opened. Nothing is waited for: no service was started but, in 4.9, those of the constructor. */
    private static void unmap(DefaultMessageStore store) throws Exception {
        Object allocates = Config.field(store, "allocateMappedFileService").get(store);
        if (Config.field(allocates, "thread").get(allocates) != null) {
            call(allocates, "shutdown");
        }
        // not the index files: a thread of each full one may still flush it, and a write to what is unmapped ends the JVM
        unmapFiles(store.getCommitLog());
        for (Object queues : store.getConsumeQueueTable().values()) {
            for (Object queue : ((Map<?, ?>) queues).values()) {
                unmapFiles(queue);
            }
        }
        ((AutoCloseable) Config.field(store, "lockFile").get(store)).close();
    }

    private static void unmapFiles(Object owner) throws Exception {
        if (has(owner, "mappedFileQueue")) {
            Object queue = Config.field(owner, "mappedFileQueue").get(owner);
            for (Object file : (Iterable<?>) Config.field(queue, "mappedFiles").get(queue)) {
                call(file, "shutdown", 0L);
            }
        }
    }

    // ---- a store that stays open -----------------------------------------------------------------------------------------

    private static void start(String path, String conf) throws Exception {
        open = made(config(path, conf), path);
        if (!open.load()) {
            throw new IllegalStateException("DefaultMessageStore.load() answered false; the store's log says why");
        }
        open.start();
    }

    private static Map<String, Object> put(String topic, int queueId, String body) throws Exception {
        Method put = Arrays.stream(DefaultMessageStore.class.getMethods()).filter(each -> each.getName().equals("putMessage")).findFirst().orElseThrow();
        MessageExt message = (MessageExt) put.getParameterTypes()[0].getConstructor().newInstance(); // its package is another one in 4.9
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body.getBytes(StandardCharsets.UTF_8));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 2));
        MessageAccessor.setProperties(message, new HashMap<>());
        call(message, "setPropertiesString", "");
        PutMessageResult result = (PutMessageResult) call(open, "putMessage", message);
        AppendMessageResult appended = result.getAppendMessageResult();
        return Map.of("status", result.getPutMessageStatus().toString(), "queueOffset", appended == null ? -1 : appended.getLogicsOffset());
    }

    private static Map<String, Object> again() throws Exception {
        while (open.dispatchBehindBytes() > 0) {
            Thread.onSpinWait(); // the store's own thread dispatches
        }
        Map<String, Object> line = new LinkedHashMap<>();
        served(open, line);
        return line;
    }

    static Object call(Object object, String name, Object... arguments) throws Exception {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == arguments.length) {
                    method.setAccessible(true);
                    try {
                        return method.invoke(object, arguments);
                    } catch (InvocationTargetException failure) {
                        throw failure.getCause() instanceof Exception cause ? cause : failure;
                    }
                }
            }
        }
        throw new NoSuchMethodException(object.getClass().getName() + "." + name);
    }

    private static boolean has(Object object, String name) {
        try {
            Config.field(object, name);
            return true;
        } catch (NoSuchFieldException failure) {
            return false;
        }
    }

    private static Map<String, ?> answer(List<String> words) throws Exception {
        switch (words.get(0)) {
            case "serve":
                return serve(words.get(1), words.get(2));
            case "open":
                start(words.get(1), words.get(2));
                return again();
            case "put":
                return put(words.get(1), Integer.parseInt(words.get(2)), words.get(3));
            case "again":
                return again();
            case "close":
                open.shutdown();
                return Map.of("closed", true);
            default:
                return RefereeConfig.loaded(words.get(0), words.get(1));
        }
    }

    public static void main(String[] args) throws Exception {
        Lines.takeStandardOutput();
        if (args.length == 0) {
            System.setErr(new PrintStream(OutputStream.nullOutputStream()));
        }
        for (List<String> words = Lines.next(); !words.isEmpty(); words = Lines.next()) {
            Map<String, Object> line = new LinkedHashMap<>();
            try {
                line.putAll(answer(words));
            } catch (Throwable failure) {
                failure.printStackTrace();
                line.put("failed", failure.toString());
            }
            Lines.put(line);
            Lines.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
