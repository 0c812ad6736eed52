package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import kafka.log.LogManager;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A broker's log layer from start to stop over a whole log directory: Kafka's LogManager locks, loads and shuts down; between,
 * `tasks` run once each: "clean" (every log its cleaner would pick, each once) and "retention".
 *
 * <p>Fields of a request: log_dir, now_ms, topics (name: settings), defaults (settings of the others), tasks, and those of
 * Cleaning.  High watermarks come from the checkpoint file: no file, the log end; no entry, the log start.
 */
final class Broker {
    static Map<String, Object> run(JsonNode request) throws Exception {
        var directory = new File(request.path("log_dir").asText());
        var time = new StillTime(request.path("now_ms").asLong());
        var tasks = new Tasks();
        boolean knowsHighWatermarks = new File(directory, LogDirFiles.HIGH_WATERMARK).exists();
        LogManager manager = manager(request, directory, time, tasks);
        var answer = new LinkedHashMap<String, Object>();
        var logs = new TreeMap<String, UnifiedLog>();
        try {
            var topics = new HashSet<String>();
            request.path("topics").fieldNames().forEachRemaining(topics::add);
            manager.startup(CollectionConverters.asScala(topics), log -> false);
            for (UnifiedLog log : CollectionConverters.asJava(manager.allLogs())) {
                logs.put(log.name(), log);
            }
            applyHighWatermarks(directory, logs, knowsHighWatermarks);
            for (JsonNode task : request.path("tasks")) {
                switch (task.asText()) {
                    case "clean" -> answer.put("cleaned", clean(request, directory, time, logs));
                    case "retention" -> retain(directory, tasks, logs);
                    default -> throw new IllegalArgumentException("unknown task " + task);
                }
            }
            tasks.runDelayed();
            var states = new LinkedHashMap<String, Object>();
            var highWatermarks = new HashMap<TopicPartition, Long>();
            for (UnifiedLog log : logs.values()) {
                states.put(log.name(), OpenLog.state(log));
                highWatermarks.put(log.topicPartition(), log.highWatermark());
            }
            answer.put("partitions", states);
            LogDirFiles.put(directory, LogDirFiles.HIGH_WATERMARK, highWatermarks);
        } finally {
            manager.shutdown(0);
            logs.values().forEach(UnifiedLog::removeLogMetrics);
        }
        return answer;
    }

    private static LogManager manager(JsonNode request, File directory, StillTime time, Tasks tasks) {
        var topics = new HashMap<String, Properties>();
        request.path("topics").properties().forEach(
                topic -> topics.put(topic.getKey(), OpenLog.properties(topic.getValue())));
        return new LogManager(
                CollectionConverters.asScala(List.of(directory)),
                CollectionConverters.asScala(List.<File>of()),
                (ConfigResource resource) -> topics.getOrDefault(resource.name(), new Properties()),
                new LogConfig(OpenLog.properties(request.path("defaults"))),
                new CleanerConfig(false),
                1,
                Long.MAX_VALUE,
                60_000,
                60_000,
                300_000,
                OpenLog.MAX_TRANSACTION_TIMEOUT_MS,
                OpenLog.producerConfig(request),
                OpenLog.PRODUCER_ID_EXPIRATION_CHECK_MS,
                tasks,
                OpenLog.STATS,
                new LogDirFailureChannel(1),
                time,
                false,
                30_000,
                null);
    }

    private static void applyHighWatermarks(File directory, Map<String, UnifiedLog> logs, boolean known) throws Exception {
        Map<TopicPartition, Long> highWatermarks = LogDirFiles.read(directory, LogDirFiles.HIGH_WATERMARK);
        for (UnifiedLog log : logs.values()) {
            Long highWatermark = highWatermarks.get(log.topicPartition());
            if (!known) {
                log.updateHighWatermark(log.logEndOffset());
            } else if (highWatermark != null) {
                log.updateHighWatermark(highWatermark);
            }
        }
    }

    private static Map<String, Object> clean(JsonNode request, File directory, StillTime time, Map<String, UnifiedLog> logs)
            throws Exception {
        var cleaner = Cleaning.cleaner(request, time);
        LogCleanerManager manager = cleanerManager(directory, logs);
        var results = new LinkedHashMap<String, Object>();
        var ends = new ArrayList<Map.Entry<LogToClean, Long>>();
        try {
            // A log stays in progress until all are cleaned, so that none is picked twice.
            for (Optional<LogToClean> next = manager.grabFilthiestCompactedLog(time, new PreCleanStats());
                    next.isPresent();
                    next = manager.grabFilthiestCompactedLog(time, new PreCleanStats())) {
                LogToClean target = next.get();
                Map<String, Object> result = Cleaning.clean(cleaner, target, time.milliseconds());
                results.put(target.log().name(), result);
                ends.add(Map.entry(target, (Long) result.getOrDefault("end", target.firstDirtyOffset())));
            }
            for (var end : ends) {
                manager.doneCleaning(end.getKey().topicPartition(), directory, end.getValue());
            }
        } finally {
            manager.removeMetrics();
        }
        return results;
    }

    /** The log manager's task looks after logs that are not compacted, the cleaner after those that are. */
    private static void retain(File directory, Tasks tasks, Map<String, UnifiedLog> logs) throws Exception {
        tasks.run("kafka-log-retention");
        LogCleanerManager manager = cleanerManager(directory, logs);
        try {
            for (UnifiedLog log : manager.deletableLogs().values()) {
                log.deleteOldSegments();
            }
        } finally {
            manager.removeMetrics();
        }
    }

    private static LogCleanerManager cleanerManager(File directory, Map<String, UnifiedLog> logs) {
        var byPartition = new ConcurrentHashMap<TopicPartition, UnifiedLog>();
        logs.values().forEach(log -> byPartition.put(log.topicPartition(), log));
        return new LogCleanerManager(List.of(directory), byPartition, new LogDirFailureChannel(1));
    }

    private Broker() {}
}
