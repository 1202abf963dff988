package rmqlog.interop;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/**
 * `Archived store`: a broker on that new store directory, a client, and the store classes, in one process that has then loaded
 * most of what the other programs load. What it prints is of no use.
 */
public final class Archived {
    private static final List<List<String>> COMMANDS = List.of(
        List.of("send", "Archived", "20", "shards=3"),
        List.of("min-max"),
        List.of("consume-all"),
        List.of("search-offset", "Archived", "0", "0", "-"),
        List.of("query-key", "Archived", "no key", "1", "0", "1"),
        List.of("push-consume", "g_archived", "Archived", "10", "0:0"));

    private Archived() {
    }

    public static void main(String[] args) {
        Lines.takeStandardOutput();
        try {
            Path store = Files.createDirectories(Path.of(args[0]));
            Config config = new Config(store.toString(), Files.writeString(store.resolveSibling("conf"), "transactionMetricFlushInterval=50\n").toString());
            BrokerMain broker = new BrokerMain(config);
            broker.load();
            broker.start();
            Client client = new Client(broker.namesrvAddress);
            for (List<String> command : COMMANDS) {
                client.run(command);
            }
            broker.stop();
            StoreOpen.main(new String[] {store.toString(), store.resolveSibling("conf").toString(), "load"});
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }
}
