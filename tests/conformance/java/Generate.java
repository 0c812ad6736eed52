package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.ByteBufferOutputStream;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;

/**
 * Writes a partition directory step by step, then closes it as a broker that shuts down does.
 *
 * <p>Steps, each {"do": name, "now_ms": clock from here on, …}:
 * <ul>
 *   <li>append: a leader's append of one batch: records, codec, leader_epoch, producer [id, epoch, sequence], transactional
 *   <li>replicate: a follower's, as append, and base_offset, last_offset (beyond the last record), magic, log_append_time
 *   <li>end_transaction: producer_id, producer_epoch, commit, coordinator_epoch, leader_epoch, transaction_version
 *   <li>roll; log_start: offset; truncate: offset
 * </ul>
 * A record is {"ts", "k", "v", "h": [[name, value]], "o": offset (replicate only)}, bytes in hex.  Segment files get the clock of
 * their last append as modification time.
 */
final class Generate {
    private final OpenLog open;
    private final UnifiedLog log;
    private final Map<Long, Long> writtenMs = new TreeMap<>();

    private Generate(OpenLog open) {
        this.open = open;
        this.log = open.log;
    }

    static Map<String, Object> run(JsonNode request) throws Exception {
        Map<String, Object> state;
        var open = new OpenLog(request, request.path("now_ms").asLong());
        var generate = new Generate(open);
        try (open) {
            for (JsonNode step : request.path("steps")) {
                generate.step(step);
            }
            open.log.flush(true);
            open.tasks.runDelayed();
            state = OpenLog.state(open.log);
        }
        generate.setModificationTimes();
        if (request.path("checkpoints").asBoolean(false)) {
            LogDirFiles.write(request, open.log);
        }
        return state;
    }

    private void step(JsonNode step) throws Exception {
        if (step.has("now_ms")) {
            open.time.set(step.get("now_ms").asLong());
        }
        int leaderEpoch = step.path("leader_epoch").asInt(0);
        switch (step.path("do").asText()) {
            case "append" -> log.appendAsLeader(batch(step, RecordBatch.CURRENT_MAGIC_VALUE, leaderEpoch), leaderEpoch);
            case "replicate" -> log.appendAsFollower(batch(step, (byte) step.path("magic").asInt(2), leaderEpoch), leaderEpoch);
            case "end_transaction" -> log.appendAsLeader(
                    marker(step),
                    leaderEpoch,
                    AppendOrigin.COORDINATOR,
                    RequestLocal.noCaching(),
                    VerificationGuard.SENTINEL,
                    (short) step.path("transaction_version").asInt(1));
            case "roll" -> log.roll(Optional.empty());
            case "log_start" -> log.maybeIncrementLogStartOffset(
                    step.path("offset").asLong(), LogStartOffsetIncrementReason.ClientRecordDeletion);
            case "truncate" -> log.truncateTo(step.path("offset").asLong());
            default -> throw new IllegalArgumentException("unknown step " + step);
        }
        log.updateHighWatermark(log.logEndOffset());
        writtenMs.put(log.activeSegment().baseOffset(), open.time.milliseconds());
    }

    private static MemoryRecords batch(JsonNode step, byte magic, int leaderEpoch) {
        JsonNode producer = step.path("producer");
        long baseOffset = step.path("base_offset").asLong(0);
        long logAppendTime = step.path("log_append_time").asLong(RecordBatch.NO_TIMESTAMP);
        var stream = new ByteBufferOutputStream(1024);
        try (var builder = new MemoryRecordsBuilder(
                stream,
                magic,
                Compression.of(step.path("codec").asText("none")).build(),
                timestampType(magic, logAppendTime),
                baseOffset,
                logAppendTime,
                producer.path(0).asLong(RecordBatch.NO_PRODUCER_ID),
                (short) producer.path(1).asInt(RecordBatch.NO_PRODUCER_EPOCH),
                producer.path(2).asInt(RecordBatch.NO_SEQUENCE),
                step.path("transactional").asBoolean(false),
                false,
                leaderEpoch,
                Integer.MAX_VALUE)) {
            long offset = baseOffset;
            for (JsonNode record : step.path("records")) {
                offset = record.path("o").asLong(offset);
                builder.appendWithOffset(offset++, record(record));
            }
            if (step.has("last_offset")) {
                builder.overrideLastOffset(step.get("last_offset").asLong());
            }
            return builder.build();
        }
    }

    private static TimestampType timestampType(byte magic, long logAppendTime) {
        if (magic == RecordBatch.MAGIC_VALUE_V0) {
            return TimestampType.NO_TIMESTAMP_TYPE;
        }
        return logAppendTime < 0 ? TimestampType.CREATE_TIME : TimestampType.LOG_APPEND_TIME;
    }

    private static SimpleRecord record(JsonNode record) {
        JsonNode headers = record.path("h");
        var parsed = new Header[headers.size()];
        for (int i = 0; i < parsed.length; i++) {
            parsed[i] = new RecordHeader(headers.get(i).get(0).asText(), bytes(headers.get(i).path(1)));
        }
        return new SimpleRecord(
                record.path("ts").asLong(RecordBatch.NO_TIMESTAMP), bytes(record.path("k")), bytes(record.path("v")), parsed);
    }

    private static byte[] bytes(JsonNode hex) {
        return hex.isTextual() ? HexFormat.of().parseHex(hex.asText()) : null;
    }

    private MemoryRecords marker(JsonNode step) {
        ControlRecordType type = step.path("commit").asBoolean() ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        return MemoryRecords.withEndTransactionMarker(
                0,
                open.time.milliseconds(),
                step.path("leader_epoch").asInt(0),
                step.path("producer_id").asLong(),
                (short) step.path("producer_epoch").asInt(),
                new EndTransactionMarker(type, step.path("coordinator_epoch").asInt(0)));
    }

    private void setModificationTimes() throws Exception {
        for (var written : writtenMs.entrySet()) {
            for (String suffix : new String[] {".log", ".index", ".timeindex"}) {
                Path file = Path.of(log.dir().getPath(), "%020d%s".formatted(written.getKey(), suffix));
                if (Files.exists(file)) {
                    Files.setLastModifiedTime(file, FileTime.fromMillis(written.getValue()));
                }
            }
        }
    }
}
