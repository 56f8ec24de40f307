// The proxy's endpoints for runs, asked with the key that the reader typed in, if one is wanted.

const KEY = "anabranch-key";

/** What the proxy answered instead of data. `status` says what; 401: it wants a key. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function forgetKey() {
  sessionStorage.removeItem(KEY);
}

/** The recent runs, newest first. */
export async function listRuns(limit) {
  const body = await (await get(`v1/anabranch/runs?limit=${limit}`)).json();
  return body.data;
}

/** A run: what is known of it, and its events but for the first `after`. */
export async function readRun(id, after) {
  return (await get(`v1/anabranch/runs/${encodeURIComponent(id)}?after=${after}`)).json();
}

/** A run as a trace file. */
export async function traceFile(id) {
  return (await get(`v1/anabranch/runs/${encodeURIComponent(id)}?format=jsonl`)).blob();
}

async function get(path) {
  const key = sessionStorage.getItem(KEY);
  // what a header may not hold is no key of any proxy's
  const sent = key && /^[\x21-\x7e]+$/.test(key) ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { headers: sent, cache: "no-store", credentials: "same-origin" });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refused(response.status, body?.error?.message ?? `the proxy answered ${response.status}`);
}
