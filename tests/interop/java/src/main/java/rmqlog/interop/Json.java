package rmqlog.interop;

import java.util.List;
import java.util.Map;

/** One line of JSON out of maps, lists, strings, numbers, booleans and null: RocketMQ's own library is another one in each version. */
final class Json {
    private Json() {
    }

    static String of(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                write(String.valueOf(entry.getKey()), out.append(separator));
                write(entry.getValue(), out.append(':'));
                separator = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            out.append('[');
            for (int i = 0; i < list.size(); i++) {
                write(list.get(i), i == 0 ? out : out.append(','));
            }
            out.append(']');
        } else if (value instanceof String text) {
            quote(text, out);
        } else {
            out.append(value); // a number, a boolean or null
        }
    }

    /** Everything but plain ASCII as an escape, lone surrogates too, so that no encoding on the way can change it. */
    private static void quote(String text, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
