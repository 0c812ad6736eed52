import java.time.Duration;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A static member of a group of the new protocol: arguments bootstrap, group, instance id, regular expression and number
 * of records.
 *
 * It prints a line for each record, commits, prints "committed" with its partitions, and polls until a byte of standard input comes.
 */
public final class GroupMember {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1]);
        properties.put("group.instance.id", arguments[2]);
        properties.put("group.protocol", "consumer");
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        int expected = Integer.parseInt(arguments[4]);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, bytes, bytes)) {
            consumer.subscribe(new SubscriptionPattern(arguments[3]));
            int found = 0;
            while (found < expected) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    System.out.println(record.topic() + "-" + record.partition() + " " + record.offset());
                    found++;
                }
            }
            consumer.commitSync();
            TreeSet<String> assigned = new TreeSet<>();
            for (TopicPartition partition : consumer.assignment()) {
                assigned.add(partition.toString());
            }
            System.out.println("committed " + String.join(" ", assigned));
            System.out.flush();
            while (System.in.available() == 0) {
                consumer.poll(Duration.ofMillis(100));
            }
        }
    }
}
