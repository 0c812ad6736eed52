import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Runs transactions of Kafka's own producer: BOOTSTRAP TRANSACTIONAL_ID FIRST COUNT.
 *
 * Each transaction writes its number to partitions 0 and 1 of topic t, and commits the next number as the offset of t-0
 * for group java.  Transactions with odd numbers are aborted.
 */
public class Transactions {
    public static void main(String[] arguments) {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("transactional.id", arguments[1]);
        StringSerializer strings = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, strings, strings)) {
            producer.initTransactions();
            int first = Integer.parseInt(arguments[2]);
            for (int number = first; number < first + Integer.parseInt(arguments[3]); number++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 2; partition++) {
                    producer.send(new ProducerRecord<>("t", partition, null, Integer.toString(number)));
                }
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition("t", 0), new OffsetAndMetadata(number + 1)),
                    new ConsumerGroupMetadata("java"));
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.flush();
                    producer.abortTransaction();
                }
            }
        }
    }
}
