package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * A partition directory opened as a broker opens it, under a clock that stands still.
 *
 * <p>Fields of a request: directory, configs, clean, recovery_point, log_start, high_watermark (absent: the log end;
 * negative: as loaded, which is the log start), producer_id_expiration_ms, topic_id.
 */
final class OpenLog implements AutoCloseable {
    static final BrokerTopicStats STATS = new BrokerTopicStats(false);
    static final int MAX_TRANSACTION_TIMEOUT_MS = 900_000;
    static final int PRODUCER_ID_EXPIRATION_CHECK_MS = 600_000;
    private static final int MIN_SEGMENT_BYTES = 1024 * 1024;

    final UnifiedLog log;
    final StillTime time;
    final Tasks tasks = new Tasks();

    OpenLog(JsonNode partition, long nowMs) throws Exception {
        time = new StillTime(nowMs);
        log = UnifiedLog.create(
                new File(partition.path("directory").asText()),
                new LogConfig(properties(partition.path("configs"))),
                partition.path("log_start").asLong(0),
                partition.path("recovery_point").asLong(0),
                tasks,
                STATS,
                time,
                MAX_TRANSACTION_TIMEOUT_MS,
                producerConfig(partition),
                PRODUCER_ID_EXPIRATION_CHECK_MS,
                new LogDirFailureChannel(1),
                partition.path("clean").asBoolean(true),
                partition.hasNonNull("topic_id")
                        ? Optional.of(Uuid.fromString(partition.get("topic_id").asText()))
                        : Optional.empty());
    }

    /** Lets the high watermark follow the request; the last stable offset follows it. */
    void applyHighWatermark(JsonNode partition) throws Exception {
        long highWatermark = partition.path("high_watermark").asLong(log.logEndOffset());
        if (highWatermark >= 0) {
            log.updateHighWatermark(highWatermark);
        }
    }

    static ProducerStateManagerConfig producerConfig(JsonNode request) {
        return new ProducerStateManagerConfig(request.path("producer_id_expiration_ms").asInt(86_400_000), false);
    }

    /** Topic settings; a segment.bytes below Kafka's minimum goes by its internal name, which has none. */
    static Properties properties(JsonNode configs) {
        var properties = new Properties();
        configs.properties().forEach(entry -> {
            String value = entry.getValue().asText();
            boolean small = entry.getKey().equals("segment.bytes") && Integer.parseInt(value) < MIN_SEGMENT_BYTES;
            properties.setProperty(small ? "internal.segment.bytes" : entry.getKey(), value);
        });
        return properties;
    }

    static Map<String, Object> state(UnifiedLog log) throws Exception {
        var segments = new ArrayList<List<Long>>();
        var aborted = new ArrayList<List<Long>>();
        for (LogSegment segment : log.logSegments()) {
            segments.add(List.of(
                    segment.baseOffset(),
                    (long) segment.size(),
                    (long) segment.offsetIndex().entries(),
                    (long) segment.timeIndex().entries(),
                    segment.readNextOffset(),
                    segment.largestTimestamp()));
            for (AbortedTxn txn : segment.txnIndex().allAbortedTxns()) {
                aborted.add(List.of(txn.producerId(), txn.firstOffset(), txn.lastOffset(), txn.lastStableOffset()));
            }
        }
        var producers = new ArrayList<List<Long>>();
        new TreeMap<>(log.activeProducersWithLastSequence())
                .forEach((id, sequence) -> producers.add(List.of(id, (long) sequence)));
        var remembered = new ArrayList<List<Long>>();
        new TreeMap<>(log.producerStateManager().activeProducers()).forEach((id, entry) -> {
            for (BatchMetadata batch : entry.batchMetadata()) {
                remembered.add(List.of(id, (long) batch.lastSeq(), batch.lastOffset(), (long) batch.offsetDelta()));
            }
        });
        var state = new LinkedHashMap<String, Object>();
        state.put("log_start", log.logStartOffset());
        state.put("log_end", log.logEndOffset());
        state.put("high_watermark", log.highWatermark());
        state.put("lso", log.lastStableOffset());
        state.put("first_unstable", log.firstUnstableOffset().orElse(null));
        state.put("recovery_point", log.recoveryPoint());
        state.put("segments", segments);
        state.put("producers", producers);
        state.put("aborted", aborted);
        state.put("remembered", remembered);
        return state;
    }

    @Override
    public void close() {
        prepareToClose();
        log.close();
        log.removeLogMetrics();
    }

    /** What closing a log did up to 4.2 is a step of its own in later releases: LogManager.shutdown takes both. */
    private void prepareToClose() {
        for (Method method : UnifiedLog.class.getMethods()) {
            if (method.getName().equals("prepareActiveSegmentForClose")) {
                try {
                    method.invoke(log);
                } catch (ReflectiveOperationException failure) {
                    throw new IllegalStateException(failure);
                }
            }
        }
    }
}
