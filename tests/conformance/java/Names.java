package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.internals.Topic;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** What directory names mean to a broker, and what it reads back of an offset checkpoint with such partitions. */
final class Names {
    /** Per name topic, partition and whether Kafka allows such a topic; null where a broker refuses to start on it. */
    static Map<String, Object> run(JsonNode request) throws Exception {
        var answers = new ArrayList<Map<String, Object>>();
        for (JsonNode name : request.path("names")) {
            answers.add(parsed(name.asText()));
        }
        return Map.of("partitions", answers);
    }

    /** The entries of a checkpoint file as OffsetCheckpointFile reads them. */
    static Map<String, Object> readCheckpoint(JsonNode request) throws Exception {
        File file = new File(request.path("file").asText());
        var entries = new ArrayList<List<Object>>();
        LogDirFiles.read(file.getParentFile(), file.getName())
                .forEach((partition, offset) -> entries.add(List.of(partition.topic(), partition.partition(), offset)));
        return Map.of("entries", entries);
    }

    private static Map<String, Object> parsed(String name) throws Exception {
        var answer = new HashMap<String, Object>();
        try {
            TopicPartition partition = UnifiedLog.parseTopicPartitionName(new File("/logs", name));
            answer.put("topic", partition.topic());
            answer.put("partition", partition.partition());
            answer.put("allowed", Topic.isValid(partition.topic()));
        } catch (KafkaException refused) {
            answer.put("refused", refused.getMessage());
        }
        return answer;
    }

    private Names() {}
}
