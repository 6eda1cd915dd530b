// Compiled against the package alone, strictly and without the types of Node.
import { type Event, type FileInfo, type Result, Sandbox, type SandboxInfo } from "cove";

export async function use(): Promise<Date> {
  await using box: Sandbox = await Sandbox.create({ memory: "1G", env: { A: "b" }, network: ["pypi.org"] });
  const result: Result = await box.run("true", { signal: AbortSignal.timeout(1000), check: true });
  const code: number = result.exitCode;
  const info: SandboxInfo = box.info;
  const memory: number = info.resources.memoryMb;
  const name: string | undefined = info.name;
  for (const event of await box.events()) {
    const one: Event = event;
    if (one.type === "oom") console.log(one.limitMb, one.at.getTime());
  }
  const files: FileInfo[] = await box.files.list("/");
  for await (const out of box.stream(["ls"])) console.log(out.text, out.stream);
  // @ts-expect-error: the types say what an option is
  await box.run("true", { timeout: "soon" });
  // @ts-expect-error: internals are not part of the package
  box.files._call("GET");
  console.log(code, memory, name, files.length);
  return info.createdAt;
}
