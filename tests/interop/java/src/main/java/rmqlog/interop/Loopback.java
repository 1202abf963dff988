package rmqlog.interop;

import io.netty.bootstrap.ServerBootstrap;
import java.io.IOException;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.SocketAddress;
import java.util.Collections;
import java.util.Map;
import org.apache.rocketmq.remoting.RemotingServer;

/** Keeps every server socket on 127.0.0.1: 4.9 listens on all addresses and has no setting, nor has any version's HA service. */
final class Loopback {
    static final String HOST = "127.0.0.1";
    private static final int PORT_MIN = 20000;
    private static final int PLACES = 3000; // of four ports
    private static long next = 2 * ProcessHandle.current().pid(); // a broker takes two places

    private Loopback() {
    }

    /**
     * A port of ours with all its neighbours at `distances` (-2 to 1) free too; below the range from which the system draws ports
     * itself. A port is bound some time after this call, so brokers that start at the same time do not draw from the same ports.
     */
    static synchronized int freePort(int... distances) throws IOException {
        for (int tries = 0; tries < PLACES; tries++) {
            int port = PORT_MIN + 4 * Math.floorMod(next++, PLACES) + 2;
            boolean free = isFree(port);
            for (int distance : distances) {
                free = free && isFree(port + distance);
            }
            if (free) {
                return port;
            }
        }
        throw new IOException("no free port between 20000 and 32000");
    }

    private static boolean isFree(int port) {
        try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getByName(HOST))) {
            return socket.isBound();
        } catch (IOException taken) {
            return false;
        }
    }

    /** All servers of a controller, to be called between its `initialize()` and `start()`: 4.9 has a field for each, 5.x a map. */
    static void bindServers(Object controller) throws ReflectiveOperationException {
        for (Field field : controller.getClass().getDeclaredFields()) {
            field.setAccessible(true);
            Object value = field.get(controller);
            for (Object each : value instanceof Map<?, ?> map ? map.values() : Collections.singletonList(value)) {
                if (each instanceof RemotingServer) {
                    Config.set(each, "serverBootstrap", new LoopbackBootstrap());
                }
            }
        }
    }

    /** 4.9 has made the acceptor by now; 5.x makes it in HAService.init(), early in the store's `start()`. */
    static void bindHaService(Object store, int port) throws ReflectiveOperationException {
        Field field = Config.field(store, "haService");
        Object service = field.get(store);
        if (service == null) {
            return; // a DLedger group replicates by itself
        }
        if (!field.getType().isInterface()) {
            bindAcceptor(service, port);
            return;
        }
        field.set(store, Proxy.newProxyInstance(Loopback.class.getClassLoader(), new Class<?>[] {field.getType()}, (proxy, method, arguments) -> {
            try {
                Object answer = method.invoke(service, arguments);
                if (method.getName().equals("init")) {
                    bindAcceptor(service, port);
                }
                return answer;
            } catch (InvocationTargetException failure) {
                throw failure.getCause();
            }
        }));
    }

    private static void bindAcceptor(Object service, int port) throws ReflectiveOperationException {
        Object acceptor = Config.field(service, "acceptSocketService").get(service);
        Config.set(acceptor, "socketAddressListen", new InetSocketAddress(HOST, port));
    }

    private static final class LoopbackBootstrap extends ServerBootstrap {
        @Override
        public ServerBootstrap localAddress(SocketAddress address) {
            return super.localAddress(new InetSocketAddress(HOST, ((InetSocketAddress) address).getPort()));
        }
    }
}
