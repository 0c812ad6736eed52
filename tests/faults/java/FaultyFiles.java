package sediment.faults;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;

/** The same filesystem for a FileContext, by which Delta writes its log. */
public final class FaultyFiles extends DelegateToFileSystem {
    public FaultyFiles(URI uri, Configuration conf) throws IOException, URISyntaxException {
        super(uri, new FaultyFileSystem(), conf, "faulty", false);
    }

    @Override
    public int getUriDefaultPort() {
        return -1;
    }
}
