package sediment.oracle;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.Writer;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.GZIPOutputStream;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.utils.Utils;

/**
 * Every segment, batch and record of a directory, one JSON object a line, to the file `output` (compressed when it ends
 * with .gz). Where Kafka cannot read on, the line is {"error": …} and the next segment follows.
 */
final class Dump {
    static Map<String, Object> run(JsonNode request) throws Exception {
        var directory = Path.of(request.path("directory").asText());
        String output = request.path("output").asText();
        List<Path> logs;
        try (var files = Files.list(directory)) {
            logs = files.filter(file -> file.toString().endsWith(".log")).sorted().toList();
        }
        long batches = 0;
        long records = 0;
        OutputStream bytes = new FileOutputStream(output);
        try (Writer lines = new OutputStreamWriter(
                output.endsWith(".gz") ? new GZIPOutputStream(bytes) : bytes, StandardCharsets.UTF_8)) {
            for (Path path : logs) {
                line(lines, fields("segment", path.getFileName().toString(), "bytes", Files.size(path)));
                try (var file = FileRecords.open(path.toFile(), false)) {
                    for (FileChannelRecordBatch batch : file.batches()) {
                        line(lines, header(batch));
                        batches++;
                        for (Record record : batch) {
                            line(lines, record(record));
                            records++;
                        }
                    }
                } catch (RuntimeException unreadable) {
                    line(lines, fields("error", unreadable.toString()));
                }
            }
        }
        return fields("segments", logs.size(), "batches", batches, "records", records);
    }

    private static Map<String, Object> header(FileChannelRecordBatch batch) {
        return fields(
                "base", batch.baseOffset(),
                "last", batch.lastOffset(),
                "pos", batch.position(),
                "size", batch.sizeInBytes(),
                "magic", batch.magic(),
                "codec", batch.compressionType().name,
                "tt", batch.timestampType().name,
                "pid", batch.producerId(),
                "pe", batch.producerEpoch(),
                "bs", batch.baseSequence(),
                "le", batch.partitionLeaderEpoch(),
                "txn", batch.isTransactional(),
                "control", batch.isControlBatch(),
                "horizon", batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : null,
                "maxts", batch.maxTimestamp(),
                "valid", batch.isValid());
    }

    private static Map<String, Object> record(Record record) {
        var headers = new ArrayList<List<String>>();
        for (Header header : record.headers()) {
            var pair = new ArrayList<String>();
            pair.add(header.key());
            pair.add(header.value() == null ? null : HexFormat.of().formatHex(header.value()));
            headers.add(pair);
        }
        return fields(
                "o", record.offset(),
                "ts", record.timestamp(),
                "seq", record.sequence(),
                "k", hex(record.key()),
                "v", hex(record.value()),
                "h", headers);
    }

    private static String hex(ByteBuffer bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(Utils.toArray(bytes));
    }

    private static void line(Writer lines, Map<String, Object> fields) throws Exception {
        lines.write(Main.JSON.writeValueAsString(fields));
        lines.write('\n');
    }

    private static Map<String, Object> fields(Object... namesAndValues) {
        var fields = new LinkedHashMap<String, Object>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            fields.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return fields;
    }

    private Dump() {}
}
