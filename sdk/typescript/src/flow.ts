/** Waiting, working on several things at once, and undoing what was given up. */

/** The symbol of `await using`, also where the runtime does not have it yet. */
export const asyncDispose: typeof Symbol.asyncDispose =
  (Symbol.asyncDispose as typeof Symbol.asyncDispose | undefined) ??
  (Symbol.for("Symbol.asyncDispose") as typeof Symbol.asyncDispose);

/** Waits; rejects with the signal's reason when that is aborted first. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/**
 * The result of work that makes something. When the signal is aborted meanwhile, this rejects at once, and what
 * was made is undone when its making has ended, so that nobody has to find it.
 */
export async function undoing<T>(
  signal: AbortSignal | undefined,
  work: () => Promise<T>,
  undo: (made: T) => Promise<void>,
): Promise<T> {
  if (signal === undefined) return work();
  signal.throwIfAborted();
  const made = work();
  let stop = () => {};
  const aborted = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop, { once: true });
  });
  try {
    return await Promise.race([made, aborted]);
  } catch (error) {
    if (signal.aborted) made.then(undo).catch(() => {});
    throw error;
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/** The work on each item, some at once; results and errors in the order of the items. */
export async function each<T, R>(
  items: readonly T[],
  concurrency: number,
  work: (item: T) => Promise<R>,
): Promise<PromiseSettledResult<R>[]> {
  const outcomes: PromiseSettledResult<R>[] = new Array(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const index = next++;
      [outcomes[index]] = (await Promise.allSettled([work(items[index] as T)])) as [PromiseSettledResult<R>];
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, items.length) }, worker));
  return outcomes;
}

/** The values, or the first error. */
export function values<R>(outcomes: readonly PromiseSettledResult<R>[]): R[] {
  return outcomes.map((outcome) => {
    if (outcome.status === "rejected") throw outcome.reason;
    return outcome.value;
  });
}
