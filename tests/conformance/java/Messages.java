package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.ApiMessageType.ListenerType;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/** Kafka's generated message classes: what they read of given bytes, and what they write. */
final class Messages {
    private static final List<String> PACKAGES = List.of(
            "org.apache.kafka.common.message",
            "org.apache.kafka.common.metadata",
            "org.apache.kafka.coordinator.group.generated",
            "org.apache.kafka.coordinator.transaction.generated",
            "org.apache.kafka.coordinator.share.generated",
            "org.apache.kafka.server.log.remote.metadata.storage.generated");
    private static final Map<String, Class<?>> CLASSES = new HashMap<>();
    private static final Map<Class<?>, Method> CONVERTERS = new HashMap<>();

    /** Per message [name, version, hex, version to write]: its JSON, and its bytes in the version to write. */
    static Map<String, Object> run(JsonNode request) throws Exception {
        var answers = new ArrayList<Map<String, Object>>();
        for (JsonNode given : request.path("messages")) {
            answers.add(readAndWritten(given));
        }
        return Map.of("messages", answers);
    }

    /** The bytes that Kafka writes for each message [name, version, JSON]. */
    static Map<String, Object> fromJson(JsonNode request) throws Exception {
        var answers = new ArrayList<String>();
        for (JsonNode given : request.path("messages")) {
            short version = (short) given.get(1).asInt();
            Class<?> type = type(given.get(0).asText());
            Method read = Class.forName(type.getName() + "JsonConverter").getMethod("read", JsonNode.class, short.class);
            answers.add(hex((Message) read.invoke(null, given.get(2), version), version));
        }
        return Map.of("messages", answers);
    }

    /** Error codes as [code, name, retriable], and API keys as [id, name, lowest and highest version offered]. */
    static Map<String, Object> numbers(JsonNode request) {
        var errors = new ArrayList<List<Object>>();
        for (Errors error : Errors.values()) {
            errors.add(List.of(error.code(), error.name(), error.exception() instanceof RetriableException));
        }
        var keys = new ArrayList<List<Object>>();
        for (ApiKeys key : ApiKeys.values()) {
            key.toApiVersionForApiResponse(false, ListenerType.BROKER)
                    .ifPresent(offered -> keys.add(
                            List.of((int) key.id, key.name(), offered.minVersion(), offered.maxVersion())));
        }
        return Map.of("errors", errors, "keys", keys);
    }

    private static Map<String, Object> readAndWritten(JsonNode given) throws Exception {
        short version = (short) given.get(1).asInt();
        ByteBuffer buffer = ByteBuffer.wrap(HexFormat.of().parseHex(given.get(2).asText()));
        Message message = (Message) type(given.get(0).asText()).getConstructor().newInstance();
        var answer = new HashMap<String, Object>();
        try {
            message.read(new ByteBufferAccessor(buffer), version);
        } catch (RuntimeException refused) {
            answer.put("refused", refused.toString());
            return answer;
        }
        answer.put("left", buffer.remaining());
        answer.put("json", converter(message.getClass()).invoke(null, message, version, false));
        try {
            answer.put("written", hex(message, (short) given.get(3).asInt()));
        } catch (RuntimeException refused) {
            answer.put("unwritable", refused.toString());
        }
        return answer;
    }

    private static String hex(Message message, short version) {
        ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] bytes = new byte[written.remaining()];
        written.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static Method converter(Class<?> type) throws ReflectiveOperationException {
        Method known = CONVERTERS.get(type);
        if (known == null) {
            known = Class.forName(type.getName() + "JsonConverter")
                    .getMethod("write", type, short.class, boolean.class);
            CONVERTERS.put(type, known);
        }
        return known;
    }

    private static Class<?> type(String name) throws ClassNotFoundException {
        Class<?> known = CLASSES.get(name);
        for (String parent : PACKAGES) {
            for (String suffix : List.of("Data", "")) {
                if (known == null) {
                    try {
                        known = Class.forName(parent + "." + name + suffix);
                    } catch (ClassNotFoundException elsewhere) {
                        continue;
                    }
                }
            }
        }
        if (known == null) {
            throw new ClassNotFoundException(name);
        }
        CLASSES.put(name, known);
        return known;
    }

    private Messages() {}
}
