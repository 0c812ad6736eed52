package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** The checkpoint files of a log directory, as a broker's shutdown leaves them. */
final class LogDirFiles {
    static final String RECOVERY_POINT = "recovery-point-offset-checkpoint";
    static final String LOG_START = "log-start-offset-checkpoint";
    static final String HIGH_WATERMARK = "replication-offset-checkpoint";
    static final String CLEANER = "cleaner-offset-checkpoint";

    /** Adds one closed log to its parent's files; other partitions' entries stay. */
    static void write(JsonNode request, UnifiedLog log) throws Exception {
        File directory = log.parentDirFile();
        TopicPartition partition = log.topicPartition();
        put(directory, RECOVERY_POINT, Map.of(partition, log.recoveryPoint()));
        boolean startsInside = log.logStartOffset() > log.logSegments().get(0).baseOffset();
        put(directory, LOG_START, startsInside ? Map.of(partition, log.logStartOffset()) : Map.of());
        put(directory, HIGH_WATERMARK, Map.of(partition, request.path("high_watermark").asLong(log.highWatermark())));
        if (request.hasNonNull("first_dirty")) {
            put(directory, CLEANER, Map.of(partition, request.get("first_dirty").asLong()));
        }
        new CleanShutdownFileHandler(directory.getPath()).write(0);
    }

    static Map<TopicPartition, Long> read(File directory, String name) throws Exception {
        return checkpoint(directory, name).read();
    }

    static void put(File directory, String name, Map<TopicPartition, Long> entries) throws Exception {
        OffsetCheckpointFile checkpoint = checkpoint(directory, name);
        var merged = new HashMap<>(checkpoint.read());
        merged.putAll(entries);
        checkpoint.write(merged);
    }

    private static OffsetCheckpointFile checkpoint(File directory, String name) throws Exception {
        return new OffsetCheckpointFile(new File(directory, name), new LogDirFailureChannel(1));
    }

    private LogDirFiles() {}
}
