package sediment.faults;

import java.io.IOException;
import java.io.OutputStream;
import java.net.URI;
import java.util.Properties;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The local filesystem under the scheme `faulty`, whose steps are counted and of which one fails.
 *
 * A step creates, renames or removes a file.  System properties say what becomes of which, because driver and tasks may
 * see this class through different loaders: sediment.faults.step is the number, sediment.faults.kind one of
 *
 *   EIO           the step fails, the next ones work
 *   ENOSPC        a creation and all after it fail with half of their bytes there
 *   SIGKILL       the step and every one after it do nothing and fail: what lies there is what a kill would have left
 *   torn write    the same, but half of the file is there
 *   torn rename   the same, but both names are there
 */
public final class FaultyFileSystem extends RawLocalFileSystem {
    private static final String STEP = "sediment.faults.step";
    private static final String KIND = "sediment.faults.kind";
    private static final String COUNT = "sediment.faults.count";
    private static final String STEPS = "sediment.faults.steps";

    @Override
    public URI getUri() {
        return URI.create("faulty://disk/");
    }

    @Override
    public String getScheme() {
        return "faulty";
    }

    private enum Verdict { WORKS, FAILS, HALF }

    private static Verdict step(String what, Path path, boolean writes) {
        Properties state = System.getProperties();
        synchronized (state) {
            int number = Integer.getInteger(COUNT, 0) + 1;
            state.setProperty(COUNT, Integer.toString(number));
            state.setProperty(STEPS, state.getProperty(STEPS, "") + what + " " + path.getName() + "\n");
            int due = Integer.getInteger(STEP, 0);
            if (due == 0 || number < due) {
                return Verdict.WORKS;
            }
            switch (state.getProperty(KIND, "")) {
                case "EIO":
                    return number == due ? Verdict.FAILS : Verdict.WORKS;
                case "ENOSPC":
                    return writes ? Verdict.HALF : Verdict.WORKS;
                case "torn write":
                    return number == due && writes ? Verdict.HALF : Verdict.FAILS;
                case "torn rename":
                    return number == due && what.equals("rename") ? Verdict.HALF : Verdict.FAILS;
                default:
                    return Verdict.FAILS;
            }
        }
    }

    private static IOException failure(Path path) {
        boolean full = "ENOSPC".equals(System.getProperty(KIND));
        return new IOException((full ? "No space left on device" : "Input/output error") + ": " + path);
    }

    @Override
    public FSDataOutputStream create(
            Path path, boolean overwrite, int buffer, short replication, long block, Progressable progress)
            throws IOException {
        return faulty(path, step("create", path, true), () -> super.create(path, overwrite, buffer, replication, block, progress));
    }

    @Override
    public FSDataOutputStream create(
            Path path, FsPermission permission, boolean overwrite, int buffer, short replication, long block,
            Progressable progress) throws IOException {
        return create(path, overwrite, buffer, replication, block, progress);
    }

    private interface Opening {
        FSDataOutputStream open() throws IOException;
    }

    private static FSDataOutputStream faulty(Path path, Verdict verdict, Opening opening) throws IOException {
        if (verdict == Verdict.FAILS) {
            throw failure(path);
        }
        FSDataOutputStream real = opening.open();
        return verdict == Verdict.WORKS ? real : new FSDataOutputStream(new Half(path, real), null);
    }

    /** Takes half of the first write that is longer than a byte, and fails. */
    private static final class Half extends OutputStream {
        private final Path path;
        private final OutputStream real;

        Half(Path path, OutputStream real) {
            this.path = path;
            this.real = real;
        }

        @Override
        public void write(int value) throws IOException {
            real.write(value);
        }

        @Override
        public void write(byte[] bytes, int start, int count) throws IOException {
            real.write(bytes, start, count / 2);
            real.close();
            throw failure(path);
        }

        @Override
        public void close() throws IOException {
            real.close();
            throw failure(path);
        }
    }

    @Override
    public boolean rename(Path source, Path target) throws IOException {
        switch (step("rename", target, false)) {
            case WORKS:
                return super.rename(source, target);
            case HALF:
                java.nio.file.Files.copy(pathToFile(source).toPath(), pathToFile(target).toPath());
                throw failure(target);
            default:
                throw failure(target);
        }
    }

    @Override
    public boolean delete(Path path, boolean recursive) throws IOException {
        if (step("delete", path, false) != Verdict.WORKS) {
            throw failure(path);
        }
        return super.delete(path, recursive);
    }
}
