/**
 * The server's snake_case and this package's camelCase, in types and at run time. Times become `Date`s, fields
 * that are null are left out, and maps whose keys are the caller's own keep them.
 */

import { ProtocolError } from "./errors.js";

type Name<S extends string> = S extends `${infer Head}_${infer Rest}` ? `${Head}${Capitalize<Name<Rest>>}` : S;
type TimeName = "at" | `${string}_at`;
type Value<K, T> = K extends TimeName ? Exclude<T, string | null> | Date : Camel<Exclude<T, null>>;

/** A type of the contract, as this package has it. */
export type Camel<T> = T extends readonly (infer Item)[]
  ? Camel<Item>[]
  : T extends object
    ? string extends keyof T
      ? T
      : { [K in keyof T as Name<K & string>]: Value<K, T[K]> }
    : T;

/** Fields whose value is a map with keys of the caller's own. */
const MAPS: ReadonlySet<string> = new Set(["args", "data", "env", "labels", "options", "taints", "tolerations"]);

function isTime(key: string): boolean {
  return key === "at" || key.endsWith("_at");
}

/** What the server sent, in this package's names. The caller says which type it expects. */
export function camel<T>(value: unknown): T {
  return renamed(value, (text) => text.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase()), true) as T;
}

/** An argument in this package's names, in the server's. */
export function snake(value: unknown): unknown {
  return renamed(value, (text) => text.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), false);
}

function renamed(value: unknown, rename: (text: string) => string, incoming: boolean): unknown {
  if (Array.isArray(value)) return value.map((item) => renamed(item, rename, incoming));
  if (typeof value !== "object" || value === null) return value;
  const result: Record<string, unknown> = {};
  for (const [key, item] of Object.entries(value)) {
    if (item === null || item === undefined) continue;
    if (MAPS.has(key)) result[key] = item;
    else if (incoming && isTime(key) && typeof item === "string") result[rename(key)] = moment(item);
    else result[rename(key)] = renamed(item, rename, incoming);
  }
  return result;
}

function moment(text: string): Date {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) throw new ProtocolError(`not a time: ${JSON.stringify(text)}`);
  return date;
}
