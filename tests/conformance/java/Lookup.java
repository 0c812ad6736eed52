package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.server.storage.log.FetchIsolation;

/**
 * What consumers find: per offset the [base, last] offsets of the first batch of a fetch from there, per timestamp the
 * [timestamp, offset] of ListOffsets; null where there is none.
 */
final class Lookup {
    static Map<String, Object> run(JsonNode request) throws Exception {
        var answer = new LinkedHashMap<String, Object>();
        try (var open = new OpenLog(request, request.path("now_ms").asLong())) {
            open.applyHighWatermark(request);
            var batches = new ArrayList<List<Long>>();
            for (JsonNode offset : request.path("offsets")) {
                var fetched = open.log.read(offset.asLong(), 1, FetchIsolation.LOG_END, true).records.batches().iterator();
                RecordBatch batch = fetched.hasNext() ? fetched.next() : null;
                batches.add(batch == null ? null : List.of(batch.baseOffset(), batch.lastOffset()));
            }
            var times = new ArrayList<List<Long>>();
            for (JsonNode timestamp : request.path("timestamps")) {
                var found = open.log.fetchOffsetByTimestamp(timestamp.asLong(), Optional.empty()).timestampAndOffsetOpt();
                times.add(found.map(at -> Arrays.asList(at.timestamp, at.offset)).orElse(null));
            }
            answer.put("batches", batches);
            answer.put("times", times);
        }
        return answer;
    }

    private Lookup() {}
}
