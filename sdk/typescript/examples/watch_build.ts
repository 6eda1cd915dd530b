// Follows a long command live, and stops it when enough was seen.
import { Sandbox } from "cove";

await using box = await Sandbox.create({ memory: "256M", disk: "1G" });
const control = new AbortController();
let seen = 0;
try {
  await box.run("i=0; while true; do i=$((i+1)); echo step $i; sleep 0.01; done", {
    signal: control.signal,
    onStdout: (text) => {
      seen += text.split("\n").length - 1;
      if (seen >= 3) control.abort();
    },
  });
} catch (error) {
  if (!control.signal.aborted) throw error;
}
const left = (await box.processes()).filter((one) => one.running);
console.log("commands that still run:", left.length);
// prints: commands that still run: 0
