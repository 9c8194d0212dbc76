#!/usr/bin/env bash
# Reads a .hlog of notifyctl with the Java HdrHistogram, on which most tools are built, and
# compares its percentiles with those of notifyctl. It needs Java 17 or later. The jar comes
# from Maven Central with mvn, or from HDR_JAR. If Java or the jar is missing, the script is
# skipped; with NOTIFY_REQUIRE_JAVA=1 it fails.
set -euo pipefail
cd "$(dirname "$0")/.."
version=2.2.2 work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missing() {
	echo "hlog-java: skipped: $1"
	[ -z "${NOTIFY_REQUIRE_JAVA:-}" ] || exit 1
	exit 0
}
command -v java >/dev/null || missing 'no java'
jar=${HDR_JAR:-$HOME/.m2/repository/org/hdrhistogram/HdrHistogram/$version/HdrHistogram-$version.jar}
if [ ! -f "$jar" ]; then
	command -v mvn >/dev/null || missing "no $jar and no mvn to fetch it"
	mvn -q -B dependency:get -Dartifact="org.hdrhistogram:HdrHistogram:$version" -Dtransitive=false || missing 'Maven Central cannot be reached'
	[ -f "$jar" ] || missing "mvn did not leave $jar"
fi

NOTIFY_HLOG_OUT=$work/run.hlog go test -count=1 -run '^TestHLogReadsBack$' ./pkg/load/report >/dev/null
cat >"$work/Read.java" <<'JAVA'
import java.io.File;
import java.nio.file.*;
import java.util.*;
import org.HdrHistogram.*;

public class Read {
    public static void main(String[] args) throws Exception {
        Map<String, Histogram> sums = new TreeMap<>();
        HistogramLogReader in = new HistogramLogReader(new File(args[0]));
        int lines = 0;
        for (EncodableHistogram h; (h = in.nextIntervalHistogram()) != null; lines++) {
            if (h.getStartTimeStamp() < 1000000000000L) throw new Error("line " + lines + " begins in " + h.getStartTimeStamp());
            Histogram to = sums.computeIfAbsent(h.getTag(), t -> new Histogram(1000L, 3600000000000L, 3));
            to.add((AbstractHistogram) h);
        }
        int bad = 0, seen = 0;
        for (String want : Files.readAllLines(Paths.get(args[0] + ".want"))) {
            String tag = want.split(" ")[0];
            StringBuilder got = new StringBuilder(tag);
            Histogram h = sums.get(tag);
            if (h == null) throw new Error("no tag " + tag);
            for (double q : new double[] {0, 50, 90, 99, 99.9, 99.99, 100}) got.append(' ').append(h.getValueAtPercentile(q));
            got.append(' ').append(h.getTotalCount());
            seen++;
            if (!got.toString().equals(want)) {
                bad++;
                System.out.println("differs:\n  Java " + got + "\n  Go   " + want);
            }
        }
        System.out.println("hlog-java: " + lines + " lines, " + seen + " histograms, " + bad + " differ");
        if (bad > 0 || seen == 0) System.exit(1);
    }
}
JAVA
java -cp "$jar" "$work/Read.java" "$work/run.hlog"
# HistogramLogProcessor, the usual command-line tool, must read the file too: compare its
# scaled maximum.
tag=$(head -1 "$work/run.hlog.want" | cut -d' ' -f1) highest=$(head -1 "$work/run.hlog.want" | cut -d' ' -f8)
java -cp "$jar" org.HdrHistogram.HistogramLogProcessor -i "$work/run.hlog" -tag "$tag" -outputValueUnitRatio 1 >"$work/processed"
grep -q "Max *= *$highest\.*" "$work/processed" || { echo "HistogramLogProcessor does not find $highest in $tag"; tail -3 "$work/processed"; exit 1; }
echo "hlog-java: HistogramLogProcessor read $tag, highest $highest"
