import java.time.Duration;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads from many places with one consumer: arguments bootstrap, isolation level and number of records.
 *
 * A line of standard input is "topic partition offset N" or "topic partition time MS".  The answer to a time begins
 * with what offsetsForTimes returns.  Then each record is a line: offset, time with its type, leader epoch, key, value
 * and headers.
 */
public final class Seeks {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("isolation.level", arguments[1]);
        properties.put("max.poll.records", "10");
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "none");
        int count = Integer.parseInt(arguments[2]);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, bytes, bytes)) {
            for (String line : new Scanner(System.in).useDelimiter("\n").tokens().toList()) {
                String[] choice = line.split(" ");
                System.out.println(line);
                read(consumer, new TopicPartition(choice[0], Integer.parseInt(choice[1])), choice, count);
            }
        }
    }

    private static void read(
            KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition, String[] choice, int count) {
        long offset = Long.parseLong(choice[3]);
        consumer.assign(List.of(partition));
        if (choice[2].equals("time")) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, offset)).get(partition);
            System.out.println(found);
            if (found == null) {
                return;
            }
            offset = found.offset();
        }
        consumer.seek(partition, offset);
        long end = consumer.endOffsets(List.of(partition)).get(partition);
        int printed = 0;
        while (printed < count && consumer.position(partition) < end) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(60))) {
                if (printed++ < count) {
                    System.out.println(describe(record));
                }
            }
        }
    }

    private static String describe(ConsumerRecord<byte[], byte[]> record) {
        String headers = Arrays.stream(record.headers().toArray())
                .map(header -> header.key() + "=" + hex(header.value()))
                .collect(Collectors.joining(","));
        return record.offset() + " " + record.timestampType() + " " + record.timestamp() + " " + record.leaderEpoch()
                + " " + hex(record.key()) + " " + hex(record.value()) + " " + headers;
    }

    private static String hex(byte[] value) {
        return value == null ? "null" : "0x" + HexFormat.of().formatHex(value);
    }
}
