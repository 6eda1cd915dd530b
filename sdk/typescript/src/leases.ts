/** Renews the leases of a client's sandboxes while the program runs. The timer does not keep the program running. */

import { randomUUID } from "node:crypto";
import { clearTimeout, setTimeout } from "node:timers";

import { LEASES_RENEWED_MAX } from "./limits.js";
import { type Call, wholeSeconds } from "./wire.js";

/** Renewals in the time after which a lease runs out. */
const RENEWALS = 3;
/** Milliseconds until a renewal that failed is repeated. */
const RETRY_PAUSE_MS = 5000;

/** Options of a lease. */
export interface LeaseOptions {
  /**
   * Seconds without a renewal after which the server pauses the sandbox, or stops it where it cannot be paused. This
   * client renews it while the program runs. Default: 300; `null`: no lease, the sandbox stays until it is deleted.
   */
  lease?: number | null | undefined;
  /** Seconds after that at which it is deleted. Default: a day. */
  leaseDeleteAfter?: number | undefined;
}

/** The leases that one client holds. Collecting a {@link Sandbox} as garbage never deletes anything. */
export class Leases {
  readonly holder = `typescript-${randomUUID()}`;
  readonly #ask: (call: Call) => Promise<unknown>;
  readonly #held = new Map<string, number>();
  #timer: NodeJS.Timeout | undefined;

  constructor(ask: (call: Call) => Promise<unknown>) {
    this.#ask = ask;
  }

  /** The lease in the form of the API. */
  request(within: number, deleteAfter?: number): object {
    return {
      holder: this.holder,
      renew_within_s: wholeSeconds("lease", within),
      delete_after_s: wholeSeconds("leaseDeleteAfter", deleteAfter),
    };
  }

  /** Starts to renew it. */
  hold(sandbox: string, within: number): void {
    const before = this.#pause();
    this.#held.set(sandbox, within);
    if (this.#timer === undefined || this.#pause() < before) this.#plan(this.#pause());
  }

  /** Stops renewing it. */
  drop(sandbox: string): void {
    this.#held.delete(sandbox);
    if (this.#held.size === 0) this.stop();
  }

  /** Stops all renewals. */
  stop(): void {
    this.#held.clear();
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #pause(): number {
    return Math.min(...this.#held.values()) * (1000 / RENEWALS);
  }

  #plan(pause: number): void {
    clearTimeout(this.#timer);
    // The longest time that a timer takes.
    this.#timer = setTimeout(() => void this.#renew(), Math.min(pause, 2 ** 31 - 1));
    this.#timer.unref();
  }

  async #renew(): Promise<void> {
    let pause = this.#pause();
    try {
      const held = [...this.#held.keys()];
      for (let begin = 0; begin < held.length; begin += LEASES_RENEWED_MAX) {
        const json = { holder: this.holder, sandboxes: held.slice(begin, begin + LEASES_RENEWED_MAX) };
        const answer = await this.#ask({ method: "POST", path: "/v1/leases/renew", json });
        for (const lost of (answer as { lost: string[] }).lost) this.#held.delete(lost);
      }
    } catch {
      // The server may be restarting. A lease that ran out meanwhile is renewed too.
      pause = Math.min(pause, RETRY_PAUSE_MS);
    }
    if (this.#held.size > 0) this.#plan(Math.min(pause, this.#pause()));
    else this.#timer = undefined;
  }
}
