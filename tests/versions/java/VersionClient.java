import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The clients of any release since 0.11; what later releases removed is called by reflection.
 *
 * BOOTSTRAP create TOPIC|PARTITIONS|KEY=VALUE;KEY=VALUE …
 * BOOTSTRAP write SEED,SEED START_MS TOPIC|PARTITIONS|KIND|CODEC,CODEC … GROUP,GROUP
 * BOOTSTRAP read TOPIC,TOPIC GROUP,GROUP
 */
public class VersionClient {
    private static final long STEP_MS = 60_000;
    private static final int KEYS = 12;
    private static final long WAIT_MS = 60_000;
    private static final String[] ISOLATIONS = {"read_committed", "read_uncommitted"};

    public static void main(String[] arguments) throws Exception {
        List<String> rest = Arrays.asList(arguments).subList(2, arguments.length);
        switch (arguments[1]) {
            case "create": create(arguments[0], rest); break;
            case "write": write(arguments[0], rest); break;
            default: read(arguments[0], rest.get(0).split(","), rest.get(1).split(","));
        }
        System.out.flush();
    }

    private static void create(String bootstrap, List<String> topics) throws Exception {
        List<NewTopic> wanted = new ArrayList<>();
        for (String topic : topics) {
            String[] parts = topic.split("\\|", -1);
            Map<String, String> configs = new HashMap<>();
            for (String each : parts[2].split(";")) {
                if (!each.isEmpty()) {
                    configs.put(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
                }
            }
            wanted.add(new NewTopic(parts[0], Integer.parseInt(parts[1]), (short) 1).configs(configs));
        }
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        try (AdminClient admin = AdminClient.create(config)) {
            admin.createTopics(wanted).all().get();
        }
    }

    // ------------------------------------------------------------------------------------------------------- writing
    private static void write(String bootstrap, List<String> rest) throws Exception {
        for (String seed : rest.get(0).split(",")) {
            write(bootstrap, rest, new Random(Long.parseLong(seed)));
        }
    }

    private static void write(String bootstrap, List<String> rest, Random random) throws Exception {
        long startMs = Long.parseLong(rest.get(1));
        List<TopicPartition> written = new ArrayList<>();
        for (String topic : rest.subList(2, rest.size() - 1)) {
            String[] parts = topic.split("\\|");
            int partitions = Integer.parseInt(parts[1]);
            String kind = parts[2];
            for (String codec : parts[3].split(",")) {
                if (kind.equals("transactional")) {
                    transactions(bootstrap, parts[0], partitions, codec, random, startMs);
                } else {
                    plain(bootstrap, parts[0], partitions, kind, codec, random, startMs);
                }
                startMs += STEP_MS;
            }
            for (int partition = 0; partition < partitions; partition++) {
                written.add(new TopicPartition(parts[0], partition));
            }
        }
        for (String group : rest.get(rest.size() - 1).split(",")) {
            commit(bootstrap, group, written, random);
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(
            String bootstrap, String codec, boolean idempotent, String transactionalId) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("acks", "all");
        config.put("linger.ms", "20");
        config.put("batch.size", "800");
        config.put("compression.type", codec);
        config.put("enable.idempotence", Boolean.toString(idempotent));
        if (idempotent) {
            config.put("retries", "100");
            config.put("max.in.flight.requests.per.connection", "1");
        }
        if (transactionalId != null) {
            config.put("transactional.id", transactionalId);
        }
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static ProducerRecord<byte[], byte[]> record(
            String topic, int partitions, long timestampMs, Random random, boolean headers, boolean tombstones) {
        byte[] key = bytes("key-" + random.nextInt(KEYS));
        StringBuilder value = new StringBuilder();
        for (int word = random.nextInt(6); word >= 0; word--) {
            value.append(topic).append(' ').append(random.nextInt(1000)).append(' ');
        }
        byte[] content = tombstones && random.nextInt(8) == 0 ? null : bytes(value.toString());
        ProducerRecord<byte[], byte[]> made =
            new ProducerRecord<>(topic, random.nextInt(partitions), timestampMs, key, content);
        if (headers && random.nextInt(4) == 0) {
            made.headers().add("h", key);
        }
        return made;
    }

    private static void plain(
            String bootstrap, String topic, int partitions, String kind, String codec, Random random, long startMs)
            throws Exception {
        boolean old = kind.equals("old");
        boolean tombstones = !kind.equals("events");
        try (KafkaProducer<byte[], byte[]> producer =
                producer(bootstrap, codec, kind.equals("idempotent"), null)) {
            for (int number = 0; number < 90; number++) {
                producer.send(record(topic, partitions, startMs + number * STEP_MS, random, !old, tombstones));
                if (random.nextInt(7) == 0) {
                    producer.flush();
                }
            }
            producer.flush();
        }
    }

    private static void transactions(
            String bootstrap, String topic, int partitions, String codec, Random random, long startMs)
            throws Exception {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int number = 0; number < 2; number++) {
            KafkaProducer<byte[], byte[]> producer = producer(bootstrap, codec, true, "writer-" + number);
            producer.initTransactions();
            producers.add(producer);
        }
        for (int number = 0; number < 12; number++) {
            for (KafkaProducer<byte[], byte[]> producer : producers) {
                producer.beginTransaction();
            }
            for (int count = 2 + random.nextInt(6); count >= 0; count--) {
                producers.get(random.nextInt(2))
                    .send(record(topic, partitions, startMs + number * 10 * STEP_MS, random, true, true));
            }
            for (int at = 0; at < 2; at++) {
                producers.get(at).flush();
                if ((number + at) % 3 == 0) {
                    producers.get(at).abortTransaction();
                } else {
                    producers.get(at).commitTransaction();
                }
            }
        }
        for (KafkaProducer<byte[], byte[]> producer : producers) {
            producer.close();
        }
    }

    private static void commit(String bootstrap, String group, List<TopicPartition> partitions, Random random) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, group, ISOLATIONS[0])) {
            consumer.assign(partitions);
            for (int number = 0; number < 8; number++) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (TopicPartition each : partitions) {
                    offsets.put(each, new OffsetAndMetadata(random.nextInt(50), group + " " + number));
                }
                consumer.commitSync(offsets);
            }
        }
    }

    // ------------------------------------------------------------------------------------------------------- reading
    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group, String isolation) {
        Properties config = new Properties();
        config.put("bootstrap.servers", bootstrap);
        config.put("group.id", group);
        config.put("enable.auto.commit", "false");
        config.put("isolation.level", isolation);
        config.put("auto.offset.reset", "earliest");
        config.put("fetch.max.wait.ms", "50");
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void read(String bootstrap, String[] topics, String[] groups) throws Exception {
        Map<TopicPartition, StringBuilder> ends = new TreeMap<>((a, b) -> a.toString().compareTo(b.toString()));
        for (String isolation : ISOLATIONS) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, "reader", isolation)) {
                List<TopicPartition> partitions = new ArrayList<>();
                for (String topic : topics) {
                    for (PartitionInfo each : partitionsOf(consumer, topic)) {
                        partitions.add(new TopicPartition(each.topic(), each.partition()));
                    }
                }
                Map<TopicPartition, Long> starts = consumer.beginningOffsets(partitions);
                Map<TopicPartition, Long> until = consumer.endOffsets(partitions);
                for (TopicPartition each : partitions) {
                    ends.computeIfAbsent(each, any -> new StringBuilder().append(starts.get(each)))
                        .append('\t').append(until.get(each));
                }
                records(consumer, isolation, partitions, until);
            }
        }
        for (Map.Entry<TopicPartition, StringBuilder> each : ends.entrySet()) {
            System.out.println("end\t" + each.getKey() + "\t" + each.getValue());
        }
        for (String group : groups) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, group, ISOLATIONS[0])) {
                for (TopicPartition each : ends.keySet()) {
                    OffsetAndMetadata found = committed(consumer, each);
                    if (found != null) {
                        System.out.println(
                            "offset\t" + each + "\t" + group + "\t" + found.offset() + "\t" + found.metadata());
                    }
                }
            }
        }
    }

    /** Asks again while a broker that has just started does not know its topics yet. */
    private static List<PartitionInfo> partitionsOf(KafkaConsumer<byte[], byte[]> consumer, String topic)
            throws Exception {
        long limit = System.currentTimeMillis() + WAIT_MS;
        while (true) {
            List<PartitionInfo> found = consumer.partitionsFor(topic);
            if (found != null && !found.isEmpty()) {
                return found;
            }
            if (System.currentTimeMillis() > limit) {
                throw new IllegalStateException("topic " + topic + " has no partitions");
            }
            Thread.sleep(200);
        }
    }

    private static void records(
            KafkaConsumer<byte[], byte[]> consumer, String isolation, List<TopicPartition> partitions,
            Map<TopicPartition, Long> until) throws Exception {
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        long limit = System.currentTimeMillis() + WAIT_MS;
        for (TopicPartition each : partitions) {
            while (consumer.position(each) < until.get(each)) {
                ConsumerRecords<byte[], byte[]> polled = poll(consumer);
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    print(isolation, record);
                }
                limit = polled.isEmpty() ? limit : System.currentTimeMillis() + WAIT_MS;
                if (System.currentTimeMillis() > limit) {
                    throw new IllegalStateException(
                        each + " is read up to " + consumer.position(each) + " of " + until.get(each));
                }
            }
        }
    }

    private static void print(String isolation, ConsumerRecord<byte[], byte[]> record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(header.key()).append('=').append(encoded(header.value())).append(' ');
        }
        System.out.println(String.join("\t", "record", record.topic() + "-" + record.partition(), isolation,
            Long.toString(record.offset()), Long.toString(record.timestamp()), record.timestampType().toString(),
            encoded(record.key()), encoded(record.value()), headers.toString().trim()));
    }

    @SuppressWarnings("unchecked")
    private static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        try {
            return (ConsumerRecords<byte[], byte[]>)
                KafkaConsumer.class.getMethod("poll", Duration.class).invoke(consumer, Duration.ofMillis(200));
        } catch (NoSuchMethodException before20) {
            return (ConsumerRecords<byte[], byte[]>)
                KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, 200L);
        }
    }

    @SuppressWarnings("unchecked")
    private static OffsetAndMetadata committed(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition)
            throws Exception {
        try {
            return ((Map<TopicPartition, OffsetAndMetadata>) KafkaConsumer.class
                .getMethod("committed", java.util.Set.class)
                .invoke(consumer, Collections.singleton(partition))).get(partition);
        } catch (NoSuchMethodException before24) {
            return (OffsetAndMetadata) KafkaConsumer.class
                .getMethod("committed", TopicPartition.class).invoke(consumer, partition);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String encoded(byte[] content) {
        return content == null ? "null" : Base64.getEncoder().encodeToString(content);
    }
}
