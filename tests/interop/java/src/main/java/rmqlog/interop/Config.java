package rmqlog.interop;

import java.io.IOException;
import java.io.Reader;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** A broker.conf, read as BrokerStartup reads it: each bean takes the properties that it has a setter for. */
final class Config {
    private final Properties properties = new Properties();
    private final String store;

    Config(String store, String path) throws IOException {
        this.store = store;
        try (Reader reader = Files.newBufferedReader(Path.of(path))) {
            properties.load(reader);
        }
    }

    Properties properties() {
        return properties;
    }

    <T> T into(T bean) {
        MixAll.properties2Object(properties, bean);
        return bean;
    }

    /** The store directory wins over the file; 4.9 does not derive the commitlog's place from the root's. */
    MessageStoreConfig messageStore() {
        MessageStoreConfig config = into(new MessageStoreConfig());
        config.setStorePathRootDir(store);
        config.setStorePathCommitLog(store + "/commitlog");
        return config;
    }

    /** Sets a field that no setter reaches, in the class that declares it. */
    static void set(Object object, String name, Object value) throws ReflectiveOperationException {
        field(object, name).set(object, value);
    }

    static Field field(Object object, String name) throws NoSuchFieldException {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field;
                }
            }
        }
        throw new NoSuchFieldException(object.getClass().getName() + "." + name);
    }
}
