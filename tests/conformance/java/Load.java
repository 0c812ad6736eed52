package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;

/** Loads a partition directory, says what came of it and closes it; files renamed to `.deleted` stay. */
final class Load {
    static Map<String, Object> run(JsonNode request) throws Exception {
        try (var open = new OpenLog(request, request.path("now_ms").asLong())) {
            return OpenLog.state(open.log);
        }
    }

    private Load() {}
}
