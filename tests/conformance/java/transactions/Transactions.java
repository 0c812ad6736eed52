package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import kafka.coordinator.transaction.CoordinatorEpochAndTxnMetadata;
import kafka.coordinator.transaction.TransactionConfig;
import kafka.coordinator.transaction.TransactionCoordinator;
import kafka.coordinator.transaction.TransactionLog;
import kafka.coordinator.transaction.TransactionMarkerChannelManager;
import kafka.coordinator.transaction.TransactionStateManager;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.TransactionResult;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.ProducerIdAndEpoch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.transaction.ProducerIdManager;
import org.apache.kafka.coordinator.transaction.TransactionMetadata;
import org.apache.kafka.coordinator.transaction.TransactionState;
import org.apache.kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.common.TransactionVersion;
import scala.Function1;
import scala.Option;
import scala.runtime.BoxedUnit;

/**
 * Kafka's transaction coordinator for one transactional id, step by step.
 *
 * The log and the senders of markers are replaced: an append ends at once, or when a step releases it, and the markers
 * are written when a step says so.
 */
final class Transactions {
    private static final String ID = "x";
    private static final int MAX_TIMEOUT_MS = 900_000;
    private static final long FIRST_PRODUCER_ID = 1000;

    private static Transactions current;

    private final StillTime time;
    private final TransactionVersion version;
    private final Manager manager;
    private final Markers markers;
    private final TransactionCoordinator coordinator;
    private final Deque<Runnable> completions = new ArrayDeque<>();
    private final Deque<Held> held = new ArrayDeque<>();
    private boolean holds;
    private byte[] stored;
    private List<List<Object>> answers = new ArrayList<>();

    /** An append that has not ended. */
    private record Held(
            TxnTransitMetadata after, Function1<Errors, BoxedUnit> callback, Function1<Errors, Object> retries) {}

    /** With `begin`, start a sequence; take the steps, and return what each of them answered and left. */
    static Map<String, Object> run(JsonNode request) throws Exception {
        if (request.has("begin")) {
            current = new Transactions(request.path("begin"));
        }
        var results = new ArrayList<Map<String, Object>>();
        for (JsonNode step : request.path("steps")) {
            results.add(current.take(step));
        }
        return Map.of("results", results);
    }

    private Transactions(JsonNode begin) {
        time = new StillTime(begin.path("now_ms").asLong());
        version = TransactionVersion.fromFeatureLevel((short) begin.path("version").asInt());
        var config = new TransactionConfig(
                604_800_000, MAX_TIMEOUT_MS, 1, (short) 1, 1 << 20, 1 << 20, 1, 10_000, 3_600_000, false, 30_000);
        manager = new Manager(config, time);
        manager.startup(() -> 1, false);
        markers = new Markers(manager, time);
        var ids = new ProducerIdManager() {
            private long next = FIRST_PRODUCER_ID;

            @Override
            public long generateProducerId() {
                return next++;
            }
        };
        coordinator = new TransactionCoordinator(config, null, () -> ids, manager, markers, time, new LogContext());
        load(begin.has("stored") ? metadata(begin.path("stored")) : null);
    }

    /** Replace the state by what a coordinator finds in its log when it starts. */
    private void load(TransactionMetadata metadata) {
        held.clear();
        completions.clear();
        var loaded = new ConcurrentHashMap<String, TransactionMetadata>();
        if (metadata != null) {
            loaded.put(ID, metadata);
        }
        manager.addLoadedTransactionsToCache(0, 0, loaded);
        if (metadata != null
                && (metadata.state() == TransactionState.PREPARE_COMMIT
                        || metadata.state() == TransactionState.PREPARE_ABORT)) {
            markers.addTxnMarkersToSend(0, null, metadata, metadata.prepareComplete(time.milliseconds()));
        }
    }

    private Map<String, Object> take(JsonNode step) {
        answers = new ArrayList<>();
        String request = step.path("request").asText();
        try {
            take(step.path("op").asText(), step, request);
        } catch (IllegalStateException | IllegalArgumentException thrown) {
            answer(request, Errors.UNKNOWN_SERVER_ERROR, -1, -1);
        }
        var result = new HashMap<String, Object>();
        result.put("answers", answers);
        result.put("state", state());
        return result;
    }

    private void take(String op, JsonNode step, String request) {
        long producerId = step.path("producer_id").asLong();
        short epoch = (short) step.path("epoch").asInt();
        TransactionVersion client = TransactionVersion.fromFeatureLevel((short) step.path("version").asInt());
        switch (op) {
            case "init" -> coordinator.handleInitProducerId(
                    ID,
                    step.path("timeout_ms").asInt(),
                    false,
                    false,
                    step.has("producer_id") ? Option.apply(new ProducerIdAndEpoch(producerId, epoch)) : Option.empty(),
                    result -> {
                        answer(request, result.error(), result.producerId(), result.producerEpoch());
                        return BoxedUnit.UNIT;
                    },
                    RequestLocal.noCaching());
            case "add" -> coordinator.handleAddPartitionsToTransaction(
                    ID,
                    producerId,
                    epoch,
                    partitions(step),
                    error -> {
                        answer(request, error, -1, -1);
                        return BoxedUnit.UNIT;
                    },
                    client,
                    RequestLocal.noCaching());
            case "verify" -> coordinator.handleVerifyPartitionsInTransaction(
                    ID, producerId, epoch, partitions(step), result -> {
                        result.topicResults().forEach(topic -> topic.resultsByPartition()
                                .forEach(each -> answer(
                                        request,
                                        Errors.forCode(each.partitionErrorCode()),
                                        each.partitionIndex(),
                                        -1)));
                        return BoxedUnit.UNIT;
                    });
            case "end" -> coordinator.handleEndTransaction(
                    ID,
                    producerId,
                    epoch,
                    step.path("commit").asBoolean() ? TransactionResult.COMMIT : TransactionResult.ABORT,
                    client,
                    (error, newId, newEpoch) -> {
                        // A client of an earlier version gets no producer in the answer.
                        boolean isKnown = client.supportsEpochBump();
                        answer(request, error, isKnown ? (Long) newId : -1, isKnown ? (Short) newEpoch : -1);
                        return BoxedUnit.UNIT;
                    },
                    RequestLocal.noCaching());
            case "time_out" -> coordinator.abortTimedOutTransactions(
                    ignored -> (error, newId, newEpoch) -> BoxedUnit.UNIT);
            case "wait" -> time.sleep(step.path("ms").asLong());
            case "hold" -> holds = true;
            case "release" -> release(Errors.valueOf(step.path("code").asText()));
            case "markers" -> {
                if (!completions.isEmpty()) {
                    completions.remove().run();
                }
            }
            case "crash" -> {
                holds = false;
                load(stored == null ? null : TransactionLog.readTxnRecordValue(ID, ByteBuffer.wrap(stored)).get());
            }
            default -> throw new UnsupportedOperationException(op);
        }
    }

    private void release(Errors code) {
        holds = false;
        if (!held.isEmpty()) {
            end(held.remove(), code);
        }
    }

    private void end(Held append, Errors code) {
        TransactionMetadata metadata = known().get().transactionMetadata();
        if (code == Errors.NONE) {
            stored = TransactionLog.valueToBytes(append.after(), version);
            metadata.completeTransitionTo(append.after());
        } else if (!(Boolean) append.retries().apply(code)) {
            metadata.pendingState(Optional.empty());
        }
        append.callback().apply(code);
    }

    private Option<CoordinatorEpochAndTxnMetadata> known() {
        return manager.getTransactionState(ID).toOption().get();
    }

    private void answer(String request, Errors error, long number, int epoch) {
        answers.add(List.of(request, error.name(), number, epoch));
    }

    private List<Object> state() {
        if (known().isEmpty()) {
            return null;
        }
        TransactionMetadata metadata = known().get().transactionMetadata();
        var numbers = new TreeSet<Integer>();
        metadata.topicPartitions().forEach(each -> numbers.add(each.partition()));
        return List.of(
                metadata.state().stateName(),
                metadata.producerId(),
                metadata.producerEpoch(),
                metadata.lastProducerEpoch(),
                metadata.prevProducerId(),
                metadata.prepareNoTransit().nextProducerId(),
                metadata.txnTimeoutMs(),
                numbers,
                metadata.txnStartTimestamp(),
                metadata.txnLastUpdateTimestamp(),
                metadata.clientTransactionVersion().featureLevel(),
                metadata.pendingTransitionInProgress());
    }

    private static Set<TopicPartition> partitions(JsonNode step) {
        var partitions = new HashSet<TopicPartition>();
        step.path("partitions").forEach(each -> partitions.add(new TopicPartition("t", each.asInt())));
        return partitions;
    }

    private static TransactionMetadata metadata(JsonNode stored) {
        return new TransactionMetadata(
                ID,
                stored.path("producer_id").asLong(),
                -1,
                -1,
                (short) stored.path("epoch").asInt(),
                (short) -1,
                stored.path("timeout_ms").asInt(),
                TransactionState.fromId((byte) stored.path("state").asInt()),
                partitions(stored),
                stored.path("start_ms").asLong(),
                stored.path("update_ms").asLong(),
                TransactionVersion.fromFeatureLevel((short) stored.path("version").asInt()));
    }

    /** The states in memory, with a log that the steps rule. */
    private final class Manager extends TransactionStateManager {
        Manager(TransactionConfig config, Time time) {
            super(0, null, null, null, config, time, new Metrics());
        }

        @Override
        public TransactionVersion transactionVersionLevel() {
            return version;
        }

        @Override
        public void appendTransactionToLog(
                String id,
                int epoch,
                TxnTransitMetadata after,
                Function1<Errors, BoxedUnit> callback,
                Function1<Errors, Object> retries,
                RequestLocal local) {
            var append = new Held(after, callback, retries);
            if (holds) {
                held.add(append);
            } else {
                end(append, Errors.NONE);
            }
        }
    }

    /** Senders of markers that wait for a step. */
    private final class Markers extends TransactionMarkerChannelManager {
        Markers(TransactionStateManager manager, Time time) {
            super(
                    new KafkaConfig(Map.of(
                            "node.id", "1",
                            "process.roles", "broker",
                            "controller.quorum.voters", "2@localhost:9093",
                            "controller.listener.names", "CONTROLLER",
                            "log.dirs", "/nowhere")),
                    null,
                    null,
                    manager,
                    time);
        }

        @Override
        public void addTxnMarkersToSend(
                int epoch, TransactionResult result, TransactionMetadata metadata, TxnTransitMetadata after) {
            completions.add(() -> manager.appendTransactionToLog(
                    ID, epoch, after, error -> BoxedUnit.UNIT, error -> true, RequestLocal.noCaching()));
        }
    }
}
