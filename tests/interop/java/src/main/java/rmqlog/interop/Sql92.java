package rmqlog.interop;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * `Sql92`: RocketMQ's filter module. A command is an expression, then names and values of properties by turns; the answer is
 * `result`: true, false, null, eval_error or parse_error.
 */
public final class Sql92 {
    private Sql92() {
    }

    public static void main(String[] arguments) throws Exception {
        Lines.takeStandardOutput();
        for (List<String> words = Lines.next(); !words.isEmpty(); words = Lines.next()) {
            Map<String, Object> properties = new HashMap<>();
            for (int i = 1; i < words.size(); i += 2) {
                properties.put(words.get(i), words.get(i + 1));
            }
            Lines.put(Map.of("result", result(words.get(0), properties)));
            Lines.flush();
        }
    }

    private static String result(String text, Map<String, Object> properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Exception e) {
            return "parse_error";
        }
        try {
            return String.valueOf(expression.evaluate(new EvaluationContext() {
                @Override
                public Object get(String name) {
                    return properties.get(name);
                }

                @Override
                public Map<String, Object> keyValues() {
                    return properties;
                }
            }));
        } catch (Exception e) {
            return "eval_error";
        }
    }
}
