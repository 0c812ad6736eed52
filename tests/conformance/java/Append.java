package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.common.record.MemoryRecords;

/**
 * Times appends to one log: a batch given in hex, over and over.
 *
 * <p>With "batches" above 1 each append is a follower's, of so many batches at ascending offsets; else a leader's.  The
 * first quarter warms up and does not count.  Answers seconds of the clock and of this thread's CPU for the rest.
 */
final class Append {
    static Map<String, Object> run(JsonNode request) throws Exception {
        byte[] batch = HexFormat.of().parseHex(request.path("batch").asText());
        int batches = request.path("batches").asInt(1);
        int appends = request.path("appends").asInt();
        int counted = 0;
        long wall = 0;
        long cpu = 0;
        var threads = ManagementFactory.getThreadMXBean();
        try (var open = new OpenLog(request, request.path("now_ms").asLong())) {
            for (int number = 0; number < appends; number++) {
                byte[] data = batches > 1 ? repeated(batch, batches, open.log.logEndOffset()) : batch;
                long cpuBefore = threads.getCurrentThreadCpuTime();
                long before = System.nanoTime();
                var records = MemoryRecords.readableRecords(ByteBuffer.wrap(data.clone()));
                if (batches > 1) {
                    open.log.appendAsFollower(records, 0);
                } else {
                    open.log.appendAsLeader(records, 0);
                }
                if (number >= appends / 4) {
                    wall += System.nanoTime() - before;
                    cpu += threads.getCurrentThreadCpuTime() - cpuBefore;
                    counted++;
                }
            }
        }
        return Map.of("appends", counted, "wall_seconds", wall / 1e9, "cpu_seconds", cpu / 1e9);
    }

    private static byte[] repeated(byte[] batch, int count, long baseOffset) {
        int records = ByteBuffer.wrap(batch).getInt(57);
        ByteBuffer all = ByteBuffer.allocate(batch.length * count);
        for (int i = 0; i < count; i++) {
            int at = all.position();
            all.put(batch);
            all.putLong(at, baseOffset + i * (long) records);
        }
        return all.array();
    }

    private Append() {}
}
