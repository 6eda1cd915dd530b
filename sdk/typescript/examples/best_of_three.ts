// Tries three ways to do the same at once, each in a fork of the same sandbox, and keeps the best.
import { Sandbox } from "cove";

const ways = ["sort -n", "sort", "cat"];

await using box = await Sandbox.create({ memory: "256M", disk: "1G" });
await box.files.write("/srv/numbers", "10\n9\n8\n");

const scores = await box.map(async (fork, way) => {
  const { stdout } = await fork.run(`${way} /srv/numbers`, { check: true, timeout: 60 });
  const numbers = stdout.trim().split("\n").map(Number);
  return numbers.filter((number, index) => index === 0 || number >= (numbers[index - 1] ?? 0)).length;
}, ways);

console.log("best:", ways[scores.indexOf(Math.max(...scores))]);
// prints: best: sort -n
