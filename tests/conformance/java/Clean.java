package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * One cleaning round of each of `partitions`, by `threads` threads, at `now_ms`, whatever the dirty ratio unless `only_chosen`;
 * an empty dirty range is left alone.  A partition is a request of OpenLog with first_dirty, the cleaner checkpoint (absent:
 * none).  `seconds` is the time of the cleaning alone, logs already open.
 */
final class Clean {
    private record Job(OpenLog open, boolean chosen, LogToClean target, long uncleanable) {}

    static Map<String, Object> run(JsonNode request) throws Exception {
        long nowMs = request.path("now_ms").asLong();
        var jobs = new ArrayList<Job>();
        try {
            for (JsonNode partition : request.path("partitions")) {
                jobs.add(job(partition, nowMs));
            }
            return clean(jobs, request, nowMs);
        } finally {
            for (Job job : jobs) {
                job.open.tasks.runDelayed();
                job.open.close();
            }
        }
    }

    private static Job job(JsonNode partition, long nowMs) throws Exception {
        var open = new OpenLog(partition, nowMs);
        open.applyHighWatermark(partition);
        Optional<Long> checkpoint =
                partition.hasNonNull("first_dirty") ? Optional.of(partition.get("first_dirty").asLong()) : Optional.empty();
        // Later releases hide them.
        Method cleanable = LogCleanerManager.class.getDeclaredMethod(
                "cleanableOffsets", UnifiedLog.class, Optional.class, long.class);
        cleanable.setAccessible(true);
        Object offsets = cleanable.invoke(null, open.log, checkpoint, nowMs);
        long uncleanable = offset(offsets, "firstUncleanableDirtyOffset");
        var target = new LogToClean(open.log, offset(offsets, "firstDirtyOffset"), uncleanable, false);
        return new Job(open, chosen(open, checkpoint), target, uncleanable);
    }

    private static long offset(Object offsets, String name) throws Exception {
        Method found = offsets.getClass().getDeclaredMethod(name);
        found.setAccessible(true);
        return (long) found.invoke(offsets);
    }

    /** Whether Kafka's manager would pick this log, with the checkpoint in a directory of its own. */
    private static boolean chosen(OpenLog open, Optional<Long> checkpoint) throws Exception {
        File directory = Files.createTempDirectory("oracle").toFile();
        var logs = new ConcurrentHashMap<TopicPartition, UnifiedLog>(Map.of(open.log.topicPartition(), open.log));
        var manager = new LogCleanerManager(List.of(directory), logs, new LogDirFailureChannel(1));
        try {
            if (checkpoint.isPresent()) {
                LogDirFiles.put(directory, LogDirFiles.CLEANER, Map.of(open.log.topicPartition(), checkpoint.get()));
            }
            return manager.grabFilthiestCompactedLog(open.time, new PreCleanStats()).isPresent();
        } finally {
            manager.removeMetrics();
            Utils.delete(directory);
        }
    }

    private static Map<String, Object> clean(List<Job> jobs, JsonNode request, long nowMs) throws Exception {
        int threads = request.path("threads").asInt(1);
        boolean onlyChosen = request.path("only_chosen").asBoolean(false);
        var cleaners = new LinkedBlockingQueue<Cleaner>();
        for (int i = 0; i < threads; i++) {
            cleaners.add(Cleaning.cleaner(request, new StillTime(nowMs)));
        }
        var pool = Executors.newFixedThreadPool(threads);
        var results = new ArrayList<Map<String, Object>>();
        long started = System.nanoTime();
        double seconds;
        try {
            var running = new ArrayList<Future<Map<String, Object>>>();
            for (Job job : jobs) {
                running.add(pool.submit(() -> {
                    var result = new LinkedHashMap<String, Object>();
                    result.put("chosen", job.chosen);
                    result.put("upper", job.uncleanable);
                    if (job.chosen || !onlyChosen && job.target.cleanableBytes() > 0) {
                        Cleaner cleaner = cleaners.take();
                        result.putAll(Cleaning.clean(cleaner, job.target, nowMs));
                        cleaners.add(cleaner);
                    }
                    return result;
                }));
            }
            for (var result : running) {
                results.add(result.get());
            }
            seconds = (System.nanoTime() - started) / 1e9;
        } finally {
            pool.shutdownNow();
        }
        var answer = new LinkedHashMap<String, Object>();
        answer.put("seconds", seconds);
        answer.put("partitions", results);
        return answer;
    }

    private Clean() {}
}
