import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** HdfsCluster DIRECTORY [FROM TO]...: a name node and a data node on loopback, with copies of local directories.
 *  Prints the port of the name node, and lives until its input ends. */
public final class HdfsCluster {
    public static void main(String[] words) throws Exception {
        Configuration settings = new Configuration();
        settings.setInt("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5); // for each file's end
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings, new File(words[0])).build();
        cluster.waitActive();
        FileSystem files = cluster.getFileSystem();
        for (int i = 1; i < words.length; i += 2) {
            files.copyFromLocalFile(new Path(words[i]), new Path(words[i + 1]));
        }
        System.out.println(cluster.getNameNodePort());
        System.in.read();
        Runtime.getRuntime().halt(0); // nothing of it is needed again
    }
}
