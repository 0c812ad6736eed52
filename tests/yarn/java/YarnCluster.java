import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * A resource manager and node managers of YARN in one process, until stdin ends.
 *
 * <p>Arguments: the folder to write the client's configuration to, and the number of nodes. The cluster keeps its files
 * in the working directory. It prints "ready" when every node has registered.
 */
public final class YarnCluster {
  public static void main(String[] arguments) {
    int status = 0;
    try {
      run(arguments);
    } catch (Throwable error) {
      error.printStackTrace();
      status = 1;
    }
    System.exit(status); // the cluster's threads would keep the process
  }

  private static void run(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[0]);
    int nodes = Integer.parseInt(arguments[1]);
    YarnConfiguration wanted = new YarnConfiguration();
    wanted.set(
        YarnConfiguration.RM_SCHEDULER,
        "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler");
    wanted.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
    // The numbers of a process with the memory of all of its forks would end containers by chance.
    wanted.setBoolean(YarnConfiguration.NM_PMEM_CHECK_ENABLED, false);
    wanted.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
    wanted.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 99);
    MiniYARNCluster cluster = new MiniYARNCluster("yarn", nodes, 1, 1);
    cluster.init(wanted);
    cluster.start();
    if (!cluster.waitForNodeManagersToConnect(120_000)) {
      throw new IllegalStateException("the nodes have not registered");
    }
    write(cluster.getConfig(), folder.resolve("yarn-site.xml"));
    Configuration files = new Configuration(false);
    files.set("fs.defaultFS", "file:///");
    write(files, folder.resolve("core-site.xml"));
    System.out.println("ready");
    while (System.in.read() >= 0) {}
    cluster.stop();
  }

  private static void write(Configuration configuration, Path file) throws Exception {
    try (OutputStream output = Files.newOutputStream(file)) {
      configuration.writeXml(output);
    }
  }
}
