import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Takes the lock of the file named, as Kafka's FileLock does, says whether it got it and holds it until stdin ends. */
final class HoldLock {
    public static void main(String[] arguments) throws Exception {
        try (FileChannel channel = FileChannel.open(
                Path.of(arguments[0]), StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            FileLock lock = channel.tryLock();
            System.out.println(lock == null ? "refused" : "locked");
            System.out.flush();
            while (System.in.read() >= 0) {}
        }
    }
}
