package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
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

    /** Loads all of `partitions`, each a request of OpenLog, by `threads` threads; `seconds` is the loading alone. */
    static Map<String, Object> runTimed(JsonNode request) throws Exception {
        long nowMs = request.path("now_ms").asLong();
        var pool = Executors.newFixedThreadPool(request.path("threads").asInt(1));
        var opened = new ArrayList<OpenLog>();
        try {
            var running = new ArrayList<Future<OpenLog>>();
            long started = System.nanoTime();
            request.path("partitions").forEach(partition -> running.add(pool.submit(() -> new OpenLog(partition, nowMs))));
            for (var log : running) {
                opened.add(log.get());
            }
            double seconds = (System.nanoTime() - started) / 1e9;
            List<Long> ends = opened.stream().map(open -> open.log.logEndOffset()).toList();
            return Map.of("seconds", seconds, "log_ends", ends);
        } finally {
            pool.shutdownNow();
            opened.forEach(OpenLog::close);
        }
    }

    private Load() {}
}
