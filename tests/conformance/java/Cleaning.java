package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;

/**
 * Kafka's cleaner and what it says of one log.
 *
 * <p>Fields of a request: map_bytes (per thread), load_factor, io_buffer_bytes (each of two), max_message_bytes.
 */
final class Cleaning {
    static Cleaner cleaner(JsonNode request, Time time) throws Exception {
        return new Cleaner(
                0,
                new SkimpyOffsetMap(request.path("map_bytes").asInt(128 * 1024 * 1024), "MD5"),
                request.path("io_buffer_bytes").asInt(262_144),
                request.path("max_message_bytes").asInt(1_048_588),
                request.path("load_factor").asDouble(0.9),
                new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", time),
                time,
                partition -> {});
    }

    /** Cleans one log.  `end` is null and `error` says why when the cleaner threw. */
    static Map<String, Object> clean(Cleaner cleaner, LogToClean target, long nowMs) {
        var result = new LinkedHashMap<String, Object>();
        UnifiedLog log = target.log();
        result.put("first_dirty", target.firstDirtyOffset());
        result.put("first_uncleanable", target.firstUncleanableOffset());
        result.put("ratio", target.cleanableRatio());
        result.put("size_before", log.size());
        try {
            var cleaned = cleaner.doClean(target, nowMs);
            CleanerStats stats = cleaned.getValue();
            result.put("end", cleaned.getKey());
            result.put("map_messages", stats.mapMessagesRead());
            result.put("messages_read", stats.messagesRead());
            result.put("messages_written", stats.messagesWritten());
            result.put("bytes_read", stats.bytesRead());
            result.put("bytes_written", stats.bytesWritten());
            result.put("invalid", stats.invalidMessagesRead());
            result.put("utilization", stats.bufferUtilization());
        } catch (Exception failure) {
            result.put("error", failure.toString());
        }
        result.put("size_after", log.size());
        result.put("segments", log.logSegments().stream().map(LogSegment::baseOffset).toList());
        return result;
    }

    private Cleaning() {}
}
