package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** One JSON command a line on stdin, one JSON answer a line on stdout; whatever else is printed goes to stderr. */
public final class Main {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        var commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            answers.println(JSON.writeValueAsString(answer(line)));
        }
    }

    private static Map<String, Object> answer(String line) {
        try {
            return run(JSON.readTree(line));
        } catch (Throwable failure) {
            var trace = new StringWriter();
            failure.printStackTrace(new PrintWriter(trace));
            return Map.of("failure", failure.toString(), "trace", trace.toString());
        }
    }

    private static Map<String, Object> run(JsonNode request) throws Exception {
        String command = request.path("command").asText();
        return switch (command) {
            case "append" -> Append.run(request);
            case "broker" -> ofReference("Broker", request);
            case "clean" -> Clean.run(request);
            case "dump" -> Dump.run(request);
            case "generate" -> Generate.run(request);
            case "load" -> Load.run(request);
            case "load_timed" -> Load.runTimed(request);
            case "lookup" -> Lookup.run(request);
            case "messages" -> Messages.run(request);
            case "messages_from_json" -> Messages.fromJson(request);
            case "names" -> Names.run(request);
            case "numbers" -> Messages.numbers(request);
            case "read_checkpoint" -> Names.readCheckpoint(request);
            case "retention" -> Retention.run(request);
            case "transactions" -> ofReference("Transactions", request);
            default -> throw new IllegalArgumentException("unknown command " + command);
        };
    }

    /** Runs a command whose class compiles with the reference release only. */
    @SuppressWarnings("unchecked")
    private static Map<String, Object> ofReference(String name, JsonNode request) throws Exception {
        var run = Class.forName("sediment.oracle." + name).getDeclaredMethod("run", JsonNode.class);
        run.setAccessible(true);
        try {
            return (Map<String, Object>) run.invoke(null, request);
        } catch (InvocationTargetException failure) {
            throw failure.getCause() instanceof Exception cause ? cause : failure;
        }
    }

    private Main() {}
}
