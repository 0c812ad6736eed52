package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Loads a partition directory, says what came of it and closes it; files renamed to `.deleted` stay. */
final class Load {
    static Map<String, Object> run(JsonNode request) throws Exception {
        try (var open = new OpenLog(request, request.path("now_ms").asLong())) {
            return OpenLog.state(open.log);
        }
    }

    private record Loaded(OpenLog open, long cpuNanos) {}

    /**
     * Loads all of `partitions`, each a request of OpenLog, by `threads` threads; `seconds` is the loading alone by the clock,
     * `cpu_seconds` that of the threads' CPU, without those that compile and collect garbage.
     */
    static Map<String, Object> runTimed(JsonNode request) throws Exception {
        long nowMs = request.path("now_ms").asLong();
        var pool = Executors.newFixedThreadPool(request.path("threads").asInt(1));
        var opened = new ArrayList<OpenLog>();
        var threads = ManagementFactory.getThreadMXBean();
        try {
            var running = new ArrayList<Future<Loaded>>();
            long started = System.nanoTime();
            request.path("partitions").forEach(partition -> running.add(pool.submit(() -> {
                long before = threads.getCurrentThreadCpuTime();
                var open = new OpenLog(partition, nowMs);
                return new Loaded(open, threads.getCurrentThreadCpuTime() - before);
            })));
            long cpuNanos = 0;
            for (var loading : running) {
                opened.add(loading.get().open);
                cpuNanos += loading.get().cpuNanos;
            }
            double seconds = (System.nanoTime() - started) / 1e9;
            List<Long> ends = opened.stream().map(open -> open.log.logEndOffset()).toList();
            return Map.of("seconds", seconds, "cpu_seconds", cpuNanos / 1e9, "log_ends", ends);
        } finally {
            pool.shutdownNow();
            opened.forEach(OpenLog::close);
        }
    }

    private Load() {}
}
