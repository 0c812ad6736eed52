package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;

/** Deletes the segments that retention lets go. */
final class Retention {
    static Map<String, Object> run(JsonNode request) throws Exception {
        try (var open = new OpenLog(request, request.path("now_ms").asLong())) {
            open.applyHighWatermark(request);
            int deleted = open.log.deleteOldSegments();
            open.tasks.runDelayed();
            Map<String, Object> state = OpenLog.state(open.log);
            state.put("deleted", deleted);
            return state;
        }
    }

    private Retention() {}
}
