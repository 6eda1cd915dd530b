/** Measures create + run against the server the environment names, as a user of the package sees it. */

import { Sandbox } from "cove";

const rounds = Number(process.argv[2] ?? 100);

await Sandbox.with((box) => box.run(["true"]));
const times: number[] = [];
for (let round = 0; round < rounds; round++) {
  const begun = performance.now();
  await Sandbox.with(async (box) => {
    await box.run(["true"]);
    times.push(performance.now() - begun);
  });
}
times.sort((a, b) => a - b);
const at = (share: number) => (times[Math.min(times.length - 1, Math.floor(times.length * share))] ?? 0).toFixed(1);
console.log(`create + run, ${rounds} rounds: median ${at(0.5)} ms, best ${at(0)} ms, 90th percentile ${at(0.9)} ms`);
