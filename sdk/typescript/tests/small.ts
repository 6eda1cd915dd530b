/** What the sandboxes of tests ask for: several run at once, and the server under test has little to promise. */
export const SMALL = { disk: "1G", memory: "256M" } as const;
