import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Sends records with a producer whose settings are Kafka's defaults, or begins a transaction, at a server that refuses.
 *
 * Arguments: bootstrap servers, topic, transactional id or an empty string.  Prints the class of the error for each
 * attempt, waits for two seconds, in which the producer may ask again, and closes the producer.
 */
public final class Refused {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        if (!arguments[2].isEmpty()) {
            properties.put("transactional.id", arguments[2]);
        }
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, text, text)) {
            for (int number = 0; number < 3; number++) {
                try {
                    if (arguments[2].isEmpty()) {
                        producer.send(new ProducerRecord<>(arguments[1], "value")).get(20, TimeUnit.SECONDS);
                    } else {
                        producer.initTransactions();
                    }
                    System.out.println("no error");
                } catch (ExecutionException error) {
                    System.out.println(error.getCause().getClass().getSimpleName());
                } catch (RuntimeException error) {
                    System.out.println(error.getClass().getSimpleName());
                }
            }
            Thread.sleep(2000);
            producer.close(Duration.ofSeconds(20));
        }
    }
}
