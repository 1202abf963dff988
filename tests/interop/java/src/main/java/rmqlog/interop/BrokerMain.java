package rmqlog.interop;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * `BrokerMain store broker.conf`: a name server and a broker on that store directory, on free ports of 127.0.0.1. Says when the
 * store is loaded and recovered, goes on at the command `start`, and then says its addresses when clients can come. `check`, `clean`
 * and `upload` have the broker do at once what it does by the clock. Shuts both down in order at the command `stop` or at the end of its input.
 */
public final class BrokerMain {
    private static final long WAIT_NS = 200_000_000;
    private static final long WAKE_NS = 50_000_000;
    private static final long REST_NS = 20_000_000;
    private static final int REGISTER_TRIES = 100;
    // Two or three seconds each, for requests on their way when a shutdown begins. The tests stop a broker when its clients have their answers.
    private static final Set<String> SLEEPS = Set.of(
        "org.apache.rocketmq.store.DefaultMessageStore.shutdown",
        "org.apache.rocketmq.broker.processor.PopBufferMergeService.run");

    private final Config config;
    private final NamesrvController namesrv;
    private final BrokerController broker;
    final String namesrvAddress;
    private final int haPort;

    BrokerMain(Config config) throws Exception {
        // As BrokerStartup does: without a version 4.9's name server takes the broker for one before 3.0.11 and drops its topics.
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        this.config = config;
        NettyServerConfig namesrvServer = new NettyServerConfig();
        namesrvServer.setListenPort(Loopback.freePort());
        namesrvAddress = Loopback.HOST + ":" + namesrvServer.getListenPort();
        namesrv = new NamesrvController(new NamesrvConfig(), namesrvServer);

        NettyServerConfig brokerServer = new NettyServerConfig();
        brokerServer.setListenPort(Loopback.freePort(-2, 1)); // -2 is BrokerController's own choice for the "VIP channel"
        haPort = brokerServer.getListenPort() + 1;
        MessageStoreConfig store = config.messageStore();
        store.setHaListenPort(haPort);
        broker = new BrokerController(brokerConfig(), brokerServer, new NettyClientConfig(), store);
        broker.getConfiguration().registerConfig(config.properties()); // as BrokerStartup does: plugins read their settings there
    }

    private BrokerConfig brokerConfig() {
        BrokerConfig broker = config.into(new BrokerConfig());
        broker.setNamesrvAddr(namesrvAddress);
        broker.setBrokerIP1(Loopback.HOST);
        broker.setBrokerIP2(Loopback.HOST);
        return broker;
    }

    /** The store's lock file is open from here on, but only `start` takes the lock. */
    void load() throws Exception {
        require(namesrv.initialize(), "the name server");
        Loopback.bindServers(namesrv);
        namesrv.start();
        require(broker.initialize(), "the broker");
        Loopback.bindServers(broker);
        Loopback.bindHaService(ownStore(), haPort);
    }

    void start() throws Exception {
        broker.start();
        rest();
        // 5.x knows its name server only a moment after its start, and would come again after 10 seconds.
        for (int tries = 0; tries < REGISTER_TRIES && namesrv.getRouteInfoManager().getAllTopicList().getTopicList().isEmpty(); tries++) {
            broker.registerBrokerAll(true, false, true);
            LockSupport.parkNanos(WAIT_NS);
        }
    }

    /**
     * 5.5: once an op message was written, and transactionOpBatchInterval after it, TransactionalOpBatchService never pauses, because
     * it counts the time of that write for queues that have nothing to write too. Those get the time of now.
     */
    private void rest() throws ReflectiveOperationException {
        Object service = broker.getTransactionalMessageService();
        if (Arrays.stream(service.getClass().getDeclaredFields()).noneMatch(field -> field.getName().equals("deleteContext"))) {
            return; // 4.9
        }
        Map<?, ?> queues = (Map<?, ?>) Config.field(service, "deleteContext").get(service);
        Thread rests = new Thread(() -> {
            while (true) {
                queues.values().forEach(BrokerMain::writtenNow);
                LockSupport.parkNanos(REST_NS);
            }
        });
        rests.setDaemon(true);
        rests.start();
    }

    private static void writtenNow(Object queue) {
        try {
            if (((AtomicInteger) Config.field(queue, "totalSize").get(queue)).get() == 0) {
                Config.set(queue, "lastWriteTimestamp", System.currentTimeMillis());
            }
        } catch (ReflectiveOperationException changed) {
            throw new IllegalStateException(changed);
        }
    }

    /** The whole of BrokerController.shutdown(); only waits are cut short that nothing in these tests needs. */
    void stop() {
        Thread wakes = new Thread(BrokerMain::wakeSleepers);
        wakes.setDaemon(true);
        wakes.start();
        broker.shutdown();
        namesrv.shutdown();
    }

    private static void wakeSleepers() {
        while (true) {
            Thread.getAllStackTraces().forEach((thread, stack) -> {
                if (thread.getName().startsWith("NettyEventExecutor") || sleepsIn(stack)) {
                    thread.interrupt();
                }
            });
            LockSupport.parkNanos(WAKE_NS);
        }
    }

    private static boolean sleepsIn(StackTraceElement[] stack) {
        boolean sleeps = stack.length > 1 && stack[0].getClassName().equals("java.lang.Thread") && stack[0].getMethodName().startsWith("sleep");
        return sleeps && Arrays.stream(stack).filter(frame -> !frame.getClassName().equals("java.lang.Thread")).findFirst()
            .map(frame -> SLEEPS.contains(frame.getClassName() + "." + frame.getMethodName())).orElse(false);
    }

    private static void require(boolean initialized, String what) {
        if (!initialized) {
            throw new IllegalStateException(what + " refused to initialize; its log says why");
        }
    }

    /** What TransactionalMessageCheckService does when its time has come: asks the producers about halves that are old enough. */
    private void check() {
        BrokerConfig told = broker.getBrokerConfig();
        broker.getTransactionalMessageService().check(told.getTransactionTimeOut(), told.getTransactionCheckMax(), broker.getTransactionalMessageCheckListener());
    }

    /** The store on the broker's own disk: a plugin, such as that of tiered storage, has it in a field. */
    private Object ownStore() throws ReflectiveOperationException {
        Object store = broker.getMessageStore();
        return store instanceof DefaultMessageStore ? store : Config.field(store, "defaultStore").get(store);
    }

    /** What the dispatcher of TieredMessageStore does every 20 seconds: uploads what it has not uploaded yet. */
    private void upload() throws ReflectiveOperationException {
        Object dispatcher = Config.field(broker.getMessageStore(), "dispatcher").get(broker.getMessageStore());
        dispatcher.getClass().getMethod("wakeup").invoke(dispatcher);
    }

    /** Until the command `stop` or the end of the input. */
    private void serve() throws Exception {
        for (List<String> command = Lines.next(); !command.isEmpty() && !command.get(0).equals("stop"); command = Lines.next()) {
            switch (command.get(0)) {
                case "check" -> check();
                case "clean" -> StoreClean.clean((DefaultMessageStore) ownStore());
                case "upload" -> upload();
                default -> throw new IllegalArgumentException("no such command: " + command.get(0));
            }
            Lines.put(Map.of("done", true));
            Lines.flush();
        }
    }

    public static void main(String[] args) throws Exception {
        Lines.takeStandardOutput();
        try {
            BrokerMain main = new BrokerMain(new Config(args[0], args[1]));
            main.load();
            Lines.put(Map.of("loaded", true));
            Lines.flush();
            List<String> command = Lines.next();
            if (!command.isEmpty() && command.get(0).equals("start")) {
                main.start();
                Lines.put(Map.of("ready", true, "namesrv", main.namesrvAddress, "broker", main.broker.getBrokerAddr()));
                Lines.flush();
                main.serve();
                main.stop();
            }
            Lines.put(Map.of("stopped", true));
        } catch (Throwable failure) {
            failure.printStackTrace();
            Lines.put(Map.of("error", failure.toString()));
        }
        Lines.flush();
        Runtime.getRuntime().halt(0); // threads of either that outlive their shutdown are of no use
    }
}
