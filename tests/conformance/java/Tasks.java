package sediment.oracle;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import org.apache.kafka.server.util.Scheduler;

/** Background work without threads: what is due at once runs at once, the rest waits until it is asked for. */
final class Tasks implements Scheduler {
    private static final class Task extends FutureTask<Void> implements ScheduledFuture<Void> {
        final String name;
        final boolean periodic;

        Task(String name, Runnable work, boolean periodic) {
            super(work, null);
            this.name = name;
            this.periodic = periodic;
        }

        void runNow() {
            run();
            try {
                get();
            } catch (Exception failure) {
                throw new IllegalStateException("background task " + name + " failed", failure);
            }
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return 0;
        }
    }

    private final List<Task> waiting = new ArrayList<>();

    @Override
    public synchronized ScheduledFuture<?> schedule(String name, Runnable work, long delayMs, long periodMs) {
        var task = new Task(name, work, periodMs >= 0);
        if (delayMs <= 0 && !task.periodic) {
            task.runNow();
        } else {
            waiting.add(task);
        }
        return task;
    }

    /** Runs the tasks of that name, as if their time had come. */
    void run(String name) {
        take(task -> task.name.equals(name)).forEach(Task::runNow);
    }

    /** Runs what was only put off: the deletion of files that carry `.deleted`. */
    void runDelayed() {
        take(task -> !task.periodic && !task.isCancelled()).forEach(Task::runNow);
    }

    private synchronized List<Task> take(Predicate<Task> wanted) {
        List<Task> taken = waiting.stream().filter(wanted).toList();
        waiting.removeAll(taken);
        return taken;
    }

    @Override
    public void startup() {}

    @Override
    public void shutdown() {}

    @Override
    public void resizeThreadPool(int threads) {}
}
