import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.common.config.ConfigResource;

/** Sets configs on a running broker since 2.4: BOOTSTRAP TYPE|NAME|KEY=VALUE …; a broker without a name is all of them. */
public class AlterConfigs {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        Map<ConfigResource, java.util.Collection<AlterConfigOp>> wanted = new HashMap<>();
        for (int number = 1; number < arguments.length; number++) {
            String[] parts = arguments[number].split("[|=]", -1);
            wanted.put(
                new ConfigResource(ConfigResource.Type.valueOf(parts[0]), parts[1]),
                Collections.singletonList(
                    new AlterConfigOp(new ConfigEntry(parts[2], parts[3]), AlterConfigOp.OpType.SET)));
        }
        try (Admin admin = Admin.create(config)) {
            admin.incrementalAlterConfigs(wanted).all().get();
        }
    }
}
