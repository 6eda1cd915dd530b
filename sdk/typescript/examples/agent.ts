// An agent's turn: run the code a model wrote, give it the error when it fails, and let it try again.
import { CodeFailed, Sandbox } from "cove";

/** Stands for a model: its second try is better. */
function* model(): Generator<string, string, string> {
  const complaint: string = yield "total = sum([1, 2, 3]) / cuont";
  return complaint.includes("cuont") ? "total = sum([1, 2, 3]) / 3\ntotal" : "raise SystemExit";
}

await using box = await Sandbox.create({ memory: "512M", disk: "1G" });
const turns = model();
let turn = turns.next();
for (;;) {
  try {
    const result = await box.code.run(turn.value, { timeout: 60, check: true });
    console.log("the answer is", result.text);
    break;
  } catch (error) {
    if (!(error instanceof CodeFailed) || turn.done) throw error;
    turn = turns.next(error.message);
  }
}
// prints: the answer is 2.0
