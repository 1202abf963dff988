package rmqlog.interop;

import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Modifier;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * `ConfigFiles`: a broker's own managers load files of `config/`, with the rule for their `.bak` (ConfigManager.load). A command is a
 * manager's class, the field with what it loaded, and a path; the answer is `loaded` (the broker starts), and `table`. A class that
 * is no manager is what a manager decodes the file into. 5.x deletes a file that it cannot read.
 */
public final class ConfigFiles {
    private ConfigFiles() {
    }

    private static final class Loader extends ConfigManager {
        private final Class<?> type;
        private final String path;
        private Object target;

        Loader(Class<?> type, String path) throws ReflectiveOperationException {
            this.type = type;
            this.path = path;
            target = made(type);
        }

        @Override
        public String configFilePath() {
            return path;
        }

        @Override
        public void decode(String json) {
            if (target instanceof ConfigManager manager) {
                manager.decode(json);
            } else {
                Object read = RemotingSerializable.fromJson(json, type);
                target = read == null ? target : read;
            }
        }

        @Override
        public String encode() {
            return null;
        }

        @Override
        public String encode(boolean pretty) {
            return null;
        }
    }

    /** An object by its constructor with the fewest parameters, of which none gets a value. */
    private static Object made(Class<?> type) throws ReflectiveOperationException {
        Constructor<?> least = null;
        for (Constructor<?> each : type.getConstructors()) {
            least = least == null || each.getParameterCount() < least.getParameterCount() ? each : least;
        }
        if (least == null) {
            throw new NoSuchMethodException(type.getName());
        }
        try {
            return least.newInstance(new Object[least.getParameterCount()]);
        } catch (InvocationTargetException failure) {
            throw new IllegalStateException(failure.getCause());
        }
    }

    /** Maps and scalars; a bean as the map of its fields. */
    private static Object plain(Object value) throws IllegalAccessException {
        if (value == null || value instanceof String || value instanceof Number || value instanceof Boolean) {
            return value;
        }
        Map<String, Object> fields = new TreeMap<>();
        if (value instanceof Map<?, ?> map) {
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                fields.put(String.valueOf(entry.getKey()), plain(entry.getValue()));
            }
        } else if (value.getClass().getName().startsWith("org.apache.rocketmq.") && !(value instanceof Enum<?>)) {
            for (Class<?> type = value.getClass(); type != null; type = type.getSuperclass()) {
                for (Field field : type.getDeclaredFields()) {
                    if (!Modifier.isStatic(field.getModifiers()) && !Modifier.isTransient(field.getModifiers())) {
                        field.setAccessible(true);
                        fields.put(field.getName(), plain(field.get(value)));
                    }
                }
            }
        } else {
            return String.valueOf(value);
        }
        return fields;
    }

    public static void main(String[] arguments) throws Exception {
        Lines.takeStandardOutput();
        for (List<String> words = Lines.next(); !words.isEmpty(); words = Lines.next()) {
            Map<String, Object> line = new LinkedHashMap<>();
            try {
                Loader loader = new Loader(Class.forName(words.get(0)), words.get(2));
                line.put("loaded", loader.load());
                line.put("table", plain(Config.field(loader.target, words.get(1)).get(loader.target)));
            } catch (Throwable failure) {
                failure.printStackTrace();
                line.put("error", failure.toString());
            }
            Lines.put(line);
            Lines.flush();
        }
    }
}
