import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.List;
import java.util.Scanner;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command-line tools one after another in one process.
 *
 * A line of standard input is the class of a tool and its arguments, separated by tabs.  The answer is a line with the
 * status and the number of lines, and then the lines that the tool printed.
 */
public final class Tools {
    private static ByteArrayOutputStream printed = new ByteArrayOutputStream();
    private static Integer status;

    /** The end of a tool, in place of the end of the process. */
    private static final class Ended extends RuntimeException {
        Ended(int given) {
            super(null, null, false, false);
            if (status == null) {
                status = given;
            }
        }
    }

    /** A stream into `printed` until the tool has ended; Scala keeps the first System.out that it sees. */
    private static final class Printed extends OutputStream {
        @Override
        public void write(int given) {
            if (status == null) {
                printed.write(given);
            }
        }

        @Override
        public void write(byte[] given, int start, int count) {
            if (status == null) {
                printed.write(given, start, count);
            }
        }
    }

    public static void main(String[] arguments) {
        PrintStream out = System.out;
        System.setOut(new PrintStream(new Printed(), true));
        System.setErr(System.out);
        Exit.setExitProcedure((given, message) -> {
            throw new Ended(given);
        });
        Exit.setHaltProcedure((given, message) -> {
            throw new Ended(given);
        });
        for (String line : new Scanner(System.in).useDelimiter("\n").tokens().toList()) {
            printed = new ByteArrayOutputStream();
            status = null;
            run(line.split("\t"));
            List<String> lines = printed.toString().lines().toList();
            out.println(status + " " + lines.size());
            lines.forEach(out::println);
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] command) {
        try {
            String[] arguments = Arrays.copyOfRange(command, 1, command.length);
            Class.forName(command[0]).getMethod("main", String[].class).invoke(null, (Object) arguments);
            status = status == null ? Integer.valueOf(0) : status;
        } catch (ReflectiveOperationException failed) {
            if (status == null) {
                failed.printStackTrace(System.out);
                status = 1;
            }
        }
    }
}
