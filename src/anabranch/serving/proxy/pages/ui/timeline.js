// What the events of a run say about its branches, so far. Events in, state out: it knows no clock and no page.

import { clip, oneLine } from "./words.js";

const LONGEST_NAME = 200;
const STATE_OF_FINISH = { length: "cut", cancelled: "stopped", budget: "stopped", deadline: "stopped" };

/** A generation, as far as the events tell. Times are seconds since the run began; null for what has not happened. */
class Branch {
  constructor(id, t) {
    Object.assign(this, {
      id, parents: [], label: "", role: "target", queuedAt: t, startedAt: null, firstAt: null, endedAt: null,
      state: "waiting", attempts: 1, tokens: 0, prompt: 0, cached: 0, wasted: 0, finish: "", note: "",
      text: "", reasoning: "", pieces: 0, span: 0,
    });
  }

  get name() {
    return this.label || `branch ${this.id}`;
  }

  end(now) {
    return this.endedAt ?? Math.max(now, this.startedAt ?? 0);
  }

  /** Tokens per second of writing; null where nothing can be said. */
  rate(now) {
    if (this.pieces < 2 || this.firstAt === null || !this.tokens) return null;
    const took = this.end(now) - this.firstAt;
    return took > 0 ? this.tokens / took : null;
  }
}

/** The state of a run, built by feeding it events. */
export class Timeline {
  constructor() {
    Object.assign(this, {
      now: 0, question: "", strategy: "", backend: "", model: "", startedAt: null, branches: new Map(),
      answer: [], answerText: "", reasoning: "", warnings: [], fellBack: "", error: "", finished: false,
      summary: {}, revision: 0,
    });
  }

  feed(event) {
    this.now = Math.max(this.now, event.t);
    this.revision += 1;
    const take = TAKE[event.type];
    if (take) take(this, event);
  }

  branch(id, t) {
    if (!this.branches.has(id)) this.branches.set(id, new Branch(id, t));
    return this.branches.get(id);
  }

  /** Work, span and the others: as summed up at the end, before that as counted here. */
  figures() {
    const usage = this.summary.usage;
    if (usage) return usage;
    const sum = { branches: 0, work: 0, span: 0, wasted: 0, prompt: 0, cached: 0 };
    for (const branch of this.branches.values()) {
      // parents come before their children, so that theirs is there already
      const before = Math.max(0, ...branch.parents.map((id) => this.branches.get(id)?.span ?? 0));
      branch.span = before + branch.tokens;
      sum.span = Math.max(sum.span, branch.span);
      sum.branches += branch.startedAt === null ? 0 : 1;
      sum.work += branch.tokens;
      for (const name of ["wasted", "prompt", "cached"]) sum[name] += branch[name];
    }
    return { ...sum, parallelism: sum.span ? sum.work / sum.span : 1 };
  }

  /** For each branch whose text stands in the answer, the time at which its last character was written there. */
  reached() {
    const reached = new Map();
    for (const branch of this.branches.values()) {
      const text = branch.text.trim();
      const found = text ? this.answerText.indexOf(text) : -1;
      if (found >= 0) reached.set(branch.id, this.#writtenAt(found + text.length));
    }
    return reached;
  }

  #writtenAt(length) {
    for (const [time, piece] of this.answer) {
      length -= piece.length;
      if (length <= 0) return time;
    }
    return this.now;
  }
}

const TAKE = {
  run_started(run, event) {
    Object.assign(run, {
      question: event.question, strategy: event.strategy, backend: event.backend, startedAt: event.started_at,
    });
  },
  generation_queued(run, event) {
    const label = clip(oneLine(event.label), LONGEST_NAME);
    const role = clip(oneLine(event.role), LONGEST_NAME);
    Object.assign(run.branch(event.id, event.t), { parents: event.parents, label, role, queuedAt: event.t });
  },
  generation_started(run, event) {
    const branch = run.branch(event.id, event.t);
    Object.assign(branch, { state: "running", startedAt: event.t, attempts: event.attempt });
    run.model ||= event.model;
  },
  generation_delta(run, event) {
    const branch = run.branch(event.id, event.t);
    branch.firstAt ??= event.t;
    branch.tokens += event.tokens;
    branch.text += event.text;
    branch.reasoning += event.reasoning;
    branch.pieces += 1;
  },
  generation_retried(run, event) {
    const branch = run.branch(event.id, event.t);
    Object.assign(branch, { state: "retrying", attempts: event.attempt + 1, note: event.error });
  },
  generation_finished(run, event) {
    const branch = run.branch(event.id, event.t);
    const state = STATE_OF_FINISH[event.finish_reason] ?? "done";
    Object.assign(branch, {
      state, endedAt: event.t, finish: event.finish_reason, prompt: event.prompt, cached: event.cached,
      tokens: event.completion, note: state === "stopped" ? event.finish_reason : "",
    });
  },
  generation_failed(run, event) {
    Object.assign(run.branch(event.id, event.t), { state: "failed", endedAt: event.t, note: event.error });
  },
  generation_discarded(run, event) {
    const branch = run.branch(event.id, event.t);
    branch.wasted = Math.max(branch.wasted, event.completion);
    branch.tokens = Math.max(branch.tokens, branch.wasted);
    if (branch.state !== "failed") branch.note = event.reason || branch.note;
  },
  answer_delta(run, event) {
    if (event.text) run.answer.push([event.t, event.text]);
    run.answerText += event.text;
    run.reasoning += event.reasoning;
  },
  warned(run, event) {
    run.warnings.push(event.message);
  },
  fell_back(run, event) {
    run.fellBack = event.reason;
  },
  run_finished(run, event) {
    Object.assign(run, { finished: true, summary: event.summary, error: event.error ?? "" });
    // what a failed run leaves behind does not go on
    for (const branch of run.branches.values()) {
      if (branch.endedAt === null) Object.assign(branch, { endedAt: event.t, state: "stopped" });
    }
  },
};
