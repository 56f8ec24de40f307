// One run: its figures, its picture, the text of a branch, and the answer as it is being written.

import { put } from "./list.js";
import { Picture, facts, hiddenRows, legend } from "./picture.js";
import { clip, clock, count, harmless, number, oneLine, seconds } from "./words.js";

const MOST_NOTES = 8;
const FRAME_MS = 100;
const BRANCHES_A_FRAME = 100;
const NEAR_END = 24;

const $ = (id) => document.getElementById(id);

export class Detail {
  #run = null;
  #picture = new Picture($("picture"), (id) => this.#choose(id));
  #chosen = null;
  #readAt = 0;
  #timer = null;
  #told = { legend: "", figures: "" };

  constructor() {
    new ResizeObserver(() => this.#frame()).observe($("frame"));
  }

  /** Show another run, from its beginning; null for none. */
  open(run) {
    this.#run = run;
    this.#chosen = null;
    $("run").hidden = run === null;
    $("run").scrollTop = 0;
  }

  /** Its events have been read up to now, which is `now` seconds after it began. */
  update(summary, now) {
    this.#readAt = performance.now() - now * 1000;
    const run = this.#run;
    put($("question"), clip(oneLine(run.question || summary.question), 600) || "(no text)");
    const began = run.startedAt === null ? "" : clock(run.startedAt);
    const model = run.summary.model || run.model || summary.model;
    put($("facts"), [run.strategy, oneLine(run.backend), oneLine(model), began, summary.run_id.slice(0, 12)].filter(Boolean).join(" · "));
    this.#notes(summary);
    this.#legend();
    this.#texts();
    this.#frame();
  }

  #now() {
    return this.#run.finished ? this.#run.now : Math.max(this.#run.now, (performance.now() - this.#readAt) / 1000);
  }

  /** What moves with time: the picture and the seconds; again and again while the run goes on. */
  #frame() {
    clearTimeout(this.#timer);
    if (this.#run === null || $("run").hidden) return;
    const width = Math.max(300, Math.floor($("frame").clientWidth));
    this.#picture.show(this.#run, this.#now(), this.#chosen, width);
    this.#figures();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (this.#run.finished || document.hidden || still) return;
    const wait = FRAME_MS * Math.max(1, Math.ceil(this.#run.branches.size / BRANCHES_A_FRAME));
    this.#timer = setTimeout(() => this.#frame(), wait);
  }

  #choose(id) {
    this.#chosen = id;
    this.#texts();
    this.#frame();
  }

  #figures() {
    const run = this.#run;
    const usage = run.figures();
    const timing = run.summary.timing ?? {};
    const shown = [
      ["branches", number(run.finished && run.summary.usage ? usage.branches : run.branches.size)],
      ["work", `${number(usage.work)} tok`],
      ["span", `${number(usage.span)} tok`],
      ["parallelism", `${usage.parallelism.toFixed(1)}×`],
      ["cached", usage.prompt ? `${Math.round((100 * usage.cached) / usage.prompt)} %` : "0 %"],
      ["wasted", `${number(usage.wasted)} tok`],
      [run.finished ? "wall" : "so far", seconds(timing.wall_s ?? this.#now())],
    ];
    const first = timing.first_token_s ?? run.answer[0]?.[0];
    if (first !== undefined && first !== null) shown.push(["first token", seconds(first)]);
    const told = JSON.stringify(shown);
    if (told === this.#told.figures) return;
    this.#told.figures = told;
    $("figures").replaceChildren(...shown.map(([name, value]) => group("div", element("dd", value), element("dt", name))));
  }

  #legend() {
    const entries = legend(this.#run);
    const told = JSON.stringify(entries);
    if (told === this.#told.legend) return;
    this.#told.legend = told;
    const hint = element("li", "choose a branch to read its text");
    hint.className = "hint";
    const shown = entries.map(([mark, words]) => {
      const sample = element("span", "");
      sample.className = `sample ${mark}`;
      return group("li", sample, words);
    });
    $("legend").replaceChildren(...shown, ...(entries.length ? [hint] : []));
  }

  #notes(summary) {
    const run = this.#run;
    const notes = run.warnings.map((warning) => ["warn", warning]);
    if (run.summary.finish_reason === "length") notes.push(["warn", "the limit on tokens cut the answer short"]);
    if (hiddenRows(run)) notes.unshift(["warn", `${count(hiddenRows(run), "more branch")} not drawn`]);
    if (run.fellBack) notes.unshift(["warn", `${run.strategy} did not apply, so this is a plain answer: ${run.fellBack}`]);
    if (run.error) notes.unshift(["bad", summary.state === "stopped" ? "stopped: the client went away" : `failed: ${run.error}`]);
    const hidden = notes.length - MOST_NOTES;
    if (hidden > 0) notes.splice(MOST_NOTES, hidden, ["warn", `and ${count(hidden, "more note")}`]);
    const told = notes.map(([look, text]) => [look, clip(oneLine(text), 1000)]);
    if (JSON.stringify(told) === this.#told.notes) return;
    this.#told.notes = JSON.stringify(told);
    $("notes").replaceChildren(...told.map(([look, text]) => {
      const note = element("li", text);
      note.className = look;
      return note;
    }));
  }

  #texts() {
    const run = this.#run;
    const branch = run.branches.get(this.#chosen);
    $("branch").hidden = !branch;
    if (branch) {
      put($("branch-name"), branch.name);
      put($("branch-facts"), facts(branch, run.now));
      put($("branch-note"), clip(oneLine(branch.note), 1000));
      grow($("branch-reasoning"), branch.reasoning);
      grow($("branch-text"), branch.text);
    }
    put($("answer-facts"), run.finished ? (run.error ? "" : run.summary.finish_reason ?? "") : run.answerText ? "being written" : "not begun yet");
    grow($("answer-reasoning"), run.reasoning);
    grow($("answer-text"), run.answerText);
  }
}

/** Set a text that as a rule grows at its end: what the reader has marked stays marked, and the end stays in sight. */
function grow(element, text) {
  const harmlessText = harmless(text);
  const before = element.textContent;
  if (harmlessText === before) return;
  const box = element.parentElement;
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
  if (before && harmlessText.startsWith(before)) element.firstChild.appendData(harmlessText.slice(before.length));
  else element.textContent = harmlessText;
  if (before && harmlessText.startsWith(before)) {
    if (atEnd) box.scrollTop = box.scrollHeight;
  } else box.scrollTop = 0;
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function group(tag, ...children) {
  const made = document.createElement(tag);
  made.append(...children);
  return made;
}
