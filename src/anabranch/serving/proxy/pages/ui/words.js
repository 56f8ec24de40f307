// Figures and text for people.

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Text that does nothing but stand there: control characters and switches of direction made visible. */
export function harmless(text) {
  return text.replaceAll("\r\n", "\n").replace(CONTROLS, (found) => {
    const code = found.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : "\ufffd";
  });
}

/** Harmless text on one line, its white space squeezed. */
export function oneLine(text) {
  return harmless(text).split(/\s+/).filter(Boolean).join(" ");
}

/** The text, cut to so many characters; an ellipsis says that something is missing. */
export function clip(text, most) {
  if (text.length <= most) return text;
  return `${[...text.slice(0, 2 * most)].slice(0, Math.max(0, most - 1)).join("").trimEnd()}…`;
}

/** A duration: `84 ms`, `4.2 s`, `3 min 05 s`. */
export function seconds(value) {
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
}

/** A whole number, with commas. */
export function number(value) {
  return Math.round(value).toLocaleString("en");
}

/** A number with its noun: `1 branch`, `1,204 branches`. */
export function count(value, noun) {
  const plural = noun + (/(ch|s|x)$/.test(noun) ? "es" : "s");
  return `${number(value)} ${value === 1 ? noun : plural}`;
}

/** When it was: the time of day, with the date where it was not today. `at` is Unix time in seconds. */
export function clock(at) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return date.toDateString() === new Date().toDateString() ? time : `${date.toLocaleDateString()} ${time}`;
}

/** Round times from 0 to at most `total`, in `most` even steps at most, of 1, 2 or 5 times a power of ten. */
export function ticks(total, most) {
  if (!(total > 0) || most < 1) return [0];
  const step = roundUp(total / most);
  return Array.from({ length: Math.floor(total / step + 1e-9) + 1 }, (_, index) => index * step);
}

/** The next of 1, 2 or 5 times a power of ten. */
export function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((factor) => power * factor >= value * 0.999999) ?? 10);
}

/** The ticks as text, in milliseconds where the axis is short; all with the same number of digits. */
export function tickLabels(times) {
  if (times.at(-1) < 1) return times.map((time) => `${Number((time * 1000).toFixed(3))} ms`);
  const step = times.length > 1 ? times[1] - times[0] : 1;
  const digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  return times.map((time) => `${time.toFixed(digits)} s`);
}
