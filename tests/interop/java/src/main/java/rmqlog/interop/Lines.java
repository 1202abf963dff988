package rmqlog.interop;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * How these programs speak: one JSON object a line on standard output, one command a line on standard input. A command is words
 * in URL encoding between spaces. Whatever RocketMQ itself prints goes to standard error.
 */
final class Lines {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.US_ASCII);
    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));

    private Lines() {
    }

    static void takeStandardOutput() {
        System.setOut(System.err);
    }

    static void put(Map<String, ?> line) {
        OUT.print(Json.of(line) + "\n"); // a line is one write, so that a killed program leaves whole lines
    }

    static void flush() {
        OUT.flush();
    }

    /** The next command's words; none at the end of input, which is what a test that died leaves. */
    static List<String> next() throws IOException {
        String line = IN.readLine();
        List<String> words = new ArrayList<>();
        if (line != null) {
            for (String word : line.split(" ", -1)) {
                words.add(URLDecoder.decode(word, StandardCharsets.UTF_8));
            }
        }
        return words;
    }
}
