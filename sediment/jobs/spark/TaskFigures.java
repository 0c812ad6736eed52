package sediment;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.executor.InputMetrics;
import org.apache.spark.executor.OutputMetrics;
import org.apache.spark.util.LongAccumulator;

/**
 * Takes the figures off the results of a Python task, and adds them to accumulators and to Spark's own metrics.
 * task_figures.py writes the figures: one long for each accumulator, in this order: bytes read and written, records
 * read, kept and dropped.
 */
public final class TaskFigures implements FlatMapFunction {
    private final LongAccumulator[] totals;

    /** A function for one job, so that the accumulators of a stage have its own figures. */
    public TaskFigures(SparkContext context, String[] names) {
        totals = new LongAccumulator[names.length];
        for (int figure = 0; figure < names.length; figure++) {
            totals[figure] = context.longAccumulator(names[figure]);
        }
    }

    public Iterator call(Object results) {
        InputMetrics input = TaskContext.get().taskMetrics().inputMetrics();
        OutputMetrics output = TaskContext.get().taskMetrics().outputMetrics();
        List plain = new ArrayList();
        for (Iterator left = (Iterator) results; left.hasNext();) {
            byte[] result = (byte[]) left.next();
            ByteBuffer figures = ByteBuffer.wrap(result);
            for (int figure = 0; figure < totals.length; figure++) {
                totals[figure].add(figures.getLong(8 * figure));
            }
            input.incBytesRead(figures.getLong(0));
            input.incRecordsRead(figures.getLong(16));
            output.setBytesWritten(output.bytesWritten() + figures.getLong(8));
            output.setRecordsWritten(output.recordsWritten() + figures.getLong(24));
            plain.add(Arrays.copyOfRange(result, 8 * totals.length, result.length));
        }
        return plain.iterator();
    }
}
