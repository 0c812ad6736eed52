package sediment.oracle;

import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;

/** A clock that stands still until it is set. */
final class StillTime implements Time {
    private volatile long nowMs;

    StillTime(long nowMs) {
        this.nowMs = nowMs;
    }

    void set(long nowMs) {
        this.nowMs = nowMs;
    }

    @Override
    public long milliseconds() {
        return nowMs;
    }

    @Override
    public long nanoseconds() {
        return nowMs * 1_000_000;
    }

    @Override
    public void sleep(long ms) {
        nowMs += ms;
    }

    @Override
    public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        throw new UnsupportedOperationException("nothing is waited for");
    }
}
