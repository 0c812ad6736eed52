import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Prints the configs of brokers, topics, groups and client metrics, one per line.
 *
 * The fields of a line, separated by tabs: resource, name, type, true for a config that Kafka does not show, default in
 * the form in which Kafka prints it, documentation.  The last two are in base64, and `-` stands for no default.
 */
public final class ConfigDefinitions {
    public static void main(String[] arguments) {
        print("broker", AbstractKafkaConfig.CONFIG_DEF);
        print("topic", LogConfig.configDefCopy());
        print("group", GroupConfig.configDef());
        print("client-metrics", ClientMetricsConfigs.configDef());
    }

    private static void print(String resource, ConfigDef definition) {
        for (ConfigDef.ConfigKey key : new TreeMap<>(definition.configKeys()).values()) {
            List<String> fields = new ArrayList<>(List.of(resource, key.name, key.type.name()));
            fields.add(String.valueOf(key.internalConfig));
            String value = key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : null;
            fields.add(value == null ? "-" : encoded(value));
            fields.add(encoded(key.documentation));
            System.out.println(String.join("\t", fields));
        }
    }

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(java.nio.charset.StandardCharsets.UTF_8));
    }
}
