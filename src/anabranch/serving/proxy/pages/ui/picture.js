// The picture of a run: its branches as bars over time, forks and joins as lines between them.

import { Drawing } from "./drawing.js";
import { rows } from "./rows.js";
import { clip, count, number, oneLine, roundUp, seconds, tickLabels, ticks } from "./words.js";

const MARGIN = 20;
const TOP = 8;
const MOST_ROWS = 500;
const MOST_ANSWER_EDGES = 64;
const ROW_HEIGHTS = [[16, 27], [40, 21], [100, 16], [Infinity, 13]];
const TRUNK = 9;
const OTHER_ROLES = 4;
const KNOWN_ROLES = ["target", "draft", "judge", "scorer", "embedder"];

export class Picture {
  #svg;
  #drawing;
  #choose;
  #rows = [];
  #reached = { revision: -1, map: new Map() };
  #order = "";

  /** `choose` is called with the id of a branch that somebody picked. */
  constructor(svg, choose) {
    this.#svg = svg;
    this.#drawing = new Drawing(svg);
    this.#choose = choose;
    svg.addEventListener("click", (event) => this.#pick(event.target));
    svg.addEventListener("keydown", (event) => this.#press(event));
  }

  /** Draw a run as it stands at `now`, seconds since it began; the branch `chosen` is marked. */
  show(run, now, chosen, width) {
    if (this.#reached.revision !== run.revision) {
      this.#reached = { revision: run.revision, map: run.reached() };
      this.#rows = rows(run.branches).slice(0, MOST_ROWS);
    }
    const plan = new Plan(run, this.#rows, now, width);
    this.#svg.setAttribute("viewBox", `0 0 ${plan.width} ${plan.height}`);
    this.#svg.setAttribute("height", plan.height);
    const drawing = this.#drawing;
    drawing.begin();
    const [below, edges, bars] = ["below", "edges", "bars"].map((name) =>
      drawing.shape(`layer ${name}`, "g", { role: "presentation" }),
    );
    drawAxis(drawing, below, plan);
    for (const edge of plan.edges(this.#reached.map)) {
      drawing.shape(edge.key, "path", { class: `edge ${edge.kind} ${roleClass(edge.role)}`, d: edge.d }, { into: edges });
    }
    const entry = plan.bars.find((bar) => bar.branch.id === chosen) ?? plan.bars[0];
    for (const bar of plan.bars) drawBar(drawing, bars, plan, bar, { chosen, entry: bar === entry });
    drawAnswer(drawing, below, plan);
    drawing.end();
    this.#sort(bars, plan.bars);
  }

  /** The elements stand in the order of the rows, for those who hear them read. */
  #sort(layer, bars) {
    const order = bars.map((bar) => bar.branch.id).join();
    if (order === this.#order) return;
    this.#order = order;
    const elements = new Map([...layer.children].map((element) => [Number(element.dataset.id), element]));
    const focused = document.activeElement;
    for (const bar of bars) layer.append(elements.get(bar.branch.id));
    if (layer.contains(focused)) focused.focus({ preventScroll: true });
  }

  #pick(target) {
    const bar = target.closest("[data-id]");
    if (bar) this.#choose(Number(bar.dataset.id));
  }

  #press(event) {
    const bar = event.target.closest("[data-id]");
    if (!bar || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...bar.parentNode.children];
    const at = all.indexOf(bar);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1, Enter: at, " ": at }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = all[Math.max(0, Math.min(all.length - 1, to))];
    this.#choose(Number(next.dataset.id));
    next.focus();
  }
}

/** Where everything stands, in pixels. */
class Plan {
  constructor(run, branches, now, width) {
    Object.assign(this, { run, now, width });
    this.rowHeight = ROW_HEIGHTS.find(([most]) => branches.length <= most)[1];
    this.barHeight = Math.round(this.rowHeight * 0.52);
    this.labelSize = Math.min(12.5, this.rowHeight * 0.66);
    this.narrow = width < 640;
    const column = this.labelSize * 0.56;
    const longest = Math.max(6, ...branches.map((branch) => branch.name.length));
    this.columns = Math.max(8, Math.min(longest, Math.floor((width * (this.narrow ? 0.3 : 0.28)) / column)));
    this.left = MARGIN + 16 + this.columns * column + 12;
    this.right = Math.max(this.left + 40, width - MARGIN - (this.narrow ? 62 : 112));
    this.total = run.finished ? Math.max(run.now, 1e-9) : roundUp(Math.max(now * 1.04, 0.2));
    this.bottom = TOP + this.rowHeight * (branches.length + (run.answer.length ? 1.5 : 0));
    this.answerY = run.answer.length ? TOP + this.rowHeight * (branches.length + 0.75) : null;
    this.height = Math.round(this.bottom + 30);
    this.bars = branches.map((branch, index) => this.#bar(branch, TOP + this.rowHeight * (index + 0.5)));
    this.byId = new Map(this.bars.map((bar) => [bar.branch.id, bar]));
  }

  x(time) {
    return this.left + Math.min(1, Math.max(0, time / this.total)) * (this.right - this.left);
  }

  #bar(branch, y) {
    const end = branch.end(this.now);
    const started = branch.startedAt === null ? end : Math.min(branch.startedAt, end);
    const first = branch.firstAt === null ? end : Math.min(Math.max(branch.firstAt, started), end);
    const wasted = branch.tokens ? end - (end - first) * Math.min(1, branch.wasted / branch.tokens) : end;
    return {
      branch, y,
      queuedX: this.x(branch.queuedAt), startedX: this.x(started), firstX: this.x(first), wastedX: this.x(wasted),
      endX: Math.max(this.x(end), this.x(started) + (branch.startedAt === null ? 0 : 1.5)),
    };
  }

  *edges(reached) {
    for (const bar of this.bars) {
      const parents = bar.branch.parents.map((id) => this.byId.get(id)).filter(Boolean);
      for (const parent of parents) {
        const join = parents.length > 1;
        const d = join
          ? joinPath(parent.endX, parent.y, bar.queuedX, bar.y)
          : forkPath(trunk(parent), parent.y, bar.queuedX, bar.y);
        yield { key: `edge ${parent.branch.id} ${bar.branch.id}`, kind: join ? "join" : "fork", role: parent.branch.role, d };
      }
    }
    yield* this.#answerEdges(reached);
  }

  *#answerEdges(reached) {
    if (this.answerY === null || this.bars.length > MOST_ANSWER_EDGES) return;
    const inner = new Set(this.bars.flatMap((bar) => bar.branch.parents));
    for (const { branch, endX, y } of this.bars) {
      if (!reached.has(branch.id) || inner.has(branch.id) || branch.endedAt === null) continue;
      const d = answerPath(endX, y, this.x(reached.get(branch.id)), this.answerY);
      yield { key: `edge ${branch.id} answer`, kind: "answer", role: branch.role, d };
    }
  }

  /** The answer's pieces, those that stand near one another taken together. */
  stretches() {
    const gap = Math.max(18, 0.03 * (this.right - this.left));
    const found = [];
    for (const [time] of this.run.answer) {
      const x = this.x(time);
      const last = found.at(-1);
      if (last && x - last[1] <= gap) last[1] = x;
      else found.push([x, x]);
    }
    return found.map(([begin, end]) => [begin, Math.max(end, begin + 1.5)]);
  }
}

function drawAxis(drawing, into, plan) {
  for (let row = 0; row < plan.bars.length; row += 2) {
    const y = TOP + row * plan.rowHeight;
    const room = { x: 8, y, width: plan.width - 16, height: plan.rowHeight, rx: 4 };
    drawing.shape(`band ${row}`, "rect", { class: "band", ...room }, { into });
  }
  const times = ticks(plan.total, Math.max(2, Math.floor((plan.right - plan.left) / 80)));
  tickLabels(times).forEach((text, index) => {
    const x = plan.x(times[index]);
    drawing.shape(`grid ${index}`, "line", { class: "grid", x1: x, y1: TOP, x2: x, y2: plan.bottom + 6 }, { into });
    drawing.shape(`tick ${index}`, "text", { class: "tick", x, y: plan.bottom + 21 }, { into, text });
  });
  if (!plan.run.finished) {
    const x = plan.x(plan.now);
    drawing.shape("now", "line", { class: "now", x1: x, y1: TOP, x2: x, y2: plan.bottom + 6 }, { into });
  }
}

function drawBar(drawing, layer, plan, bar, { chosen, entry }) {
  const { branch, y } = bar;
  const key = (part) => `bar ${branch.id} ${part}`;
  const role = roleClass(branch.role);
  const into = drawing.shape(key("group"), "g", {
    class: `bar ${branch.state}${branch.wasted ? " wasted" : ""}`,
    "data-id": String(branch.id), role: "option", tabindex: entry ? "0" : "-1",
    "aria-selected": String(branch.id === chosen), "aria-label": `${branch.name}: ${facts(branch, plan.now)}`,
  }, { into: layer });
  const draw = (part, tag, attributes, text = null) => drawing.shape(key(part), tag, attributes, { into, text });
  const strip = (part, look, from, to) =>
    draw(part, "rect", { class: look, x: from, y: y - plan.barHeight / 2, width: Math.max(0, to - from), height: plan.barHeight, rx: 3 });

  draw("hit", "rect", { class: "hit", x: 8, y: y - plan.rowHeight / 2, width: plan.width - 16, height: plan.rowHeight, rx: 4 });
  draw("dot", "circle", { class: role, cx: MARGIN, cy: y, r: plan.labelSize * 0.28 });
  const at = { y: y + plan.labelSize * 0.35, "font-size": plan.labelSize };
  draw("label", "text", { class: "label", x: MARGIN + 12, ...at }, clip(branch.name, plan.columns));
  if (bar.startedX - bar.queuedX > 0.5) draw("wait", "line", { class: "wait", x1: bar.queuedX, y1: y, x2: bar.startedX, y2: y });
  if (branch.startedAt !== null) {
    strip("prefill", `prefill ${role}`, bar.startedX, bar.endX);
    if (bar.wastedX > bar.firstX) strip("written", role, bar.firstX, bar.wastedX);
    if (bar.endX > bar.wastedX && branch.wasted) {
      strip("spoilt", `spoilt ${role}`, bar.wastedX, bar.endX);
      strip("hatch", "hatched", bar.wastedX, bar.endX).setAttribute("fill", "url(#hatch)");
    }
    if (branch.firstAt !== null) {
      draw("first", "rect", { class: "first", x: bar.firstX - 0.75, y: y - plan.barHeight / 2 - 1, width: 1.5, height: plan.barHeight + 2, rx: 0.75 });
    }
    if (branch.state === "running") draw("head", "circle", { class: `head ${role}`, cx: bar.endX, cy: y, r: plan.barHeight * 0.42 });
  }
  if (branch.state === "failed") draw("failed", "path", { class: "mark bad", d: cross(bar.endX + 4, y) });
  else if (branch.state === "stopped") draw("stopped", "path", { class: "mark warn", d: `M${bar.endX + 4} ${y - plan.barHeight / 2 - 1}v${plan.barHeight + 2}` });
  const look = branch.state === "failed" ? "bad" : branch.wasted ? "warn" : "";
  draw("caption", "text", { class: `caption ${look}`, x: plan.width - MARGIN, ...at, "font-size": plan.labelSize * 0.92 }, caption(branch, plan));
}

function drawAnswer(drawing, into, plan) {
  if (plan.answerY === null) return;
  drawing.shape("answer", "text", { class: "answer", x: MARGIN + 12, y: plan.answerY + 4.2 }, { into, text: "answer" });
  plan.stretches().forEach(([begin, end], index) => {
    const room = { x: begin, y: plan.answerY - 3, width: end - begin, height: 6, rx: 3 };
    drawing.shape(`answer ${index}`, "rect", { class: "written", ...room }, { into });
  });
}

/** What there is to say about a branch, on one line. */
export function facts(branch, now) {
  const said = [branch.role, oneLine(branch.finish || branch.state), count(branch.tokens, "token")];
  if (branch.prompt) said.push(`prompt ${number(branch.prompt)}, of which ${number(branch.cached)} cached`);
  if (branch.wasted) said.push(`${number(branch.wasted)} wasted`);
  said.push(`${seconds(branch.queuedAt)} to ${branch.endedAt === null ? "now" : seconds(branch.end(now))}`);
  if (branch.attempts > 1) said.push(`attempt ${branch.attempts}`);
  return said.join(" · ");
}

/** Entries of the legend, `[mark, words]`: only what a picture of this run shows. */
export function legend(run) {
  const branches = [...run.branches.values()];
  const entries = [...new Set(branches.map((branch) => branch.role))].map((role) => [`role ${roleClass(role)}`, clip(role, 30)]);
  if (branches.some((branch) => (branch.startedAt ?? run.now) - branch.queuedAt > 0.02 * run.now)) entries.push(["wait", "waiting for a slot"]);
  if (branches.length) entries.push(["prefill", "reading the prompt"], ["first", "first token"]);
  if (branches.some((branch) => branch.wasted)) entries.push(["spoilt", "wasted"]);
  if (branches.some((branch) => branch.state === "failed")) entries.push(["failed", "failed"]);
  if (branches.some((branch) => branch.state === "stopped")) entries.push(["stopped", "stopped"]);
  return entries;
}

export const hiddenRows = (run) => Math.max(0, run.branches.size - MOST_ROWS);

function caption(branch, plan) {
  if (branch.state === "failed") return "failed";
  if (branch.state === "retrying") return `retry ${branch.attempts - 1}`;
  if (branch.startedAt === null) return branch.endedAt === null ? "waiting" : "never started";
  const rate = branch.rate(plan.now);
  const speed = rate === null || plan.narrow ? "" : ` · ${number(rate)}/s`;
  return `${number(branch.tokens)} tok${speed}`;
}

/** The colour of a role as a class; one that is not known always gets the same one of a few. */
function roleClass(role) {
  return KNOWN_ROLES.includes(role) ? `role-${role}` : `role-other-${crc32(role) % OTHER_ROLES}`;
}

function crc32(text) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}

const px = (value) => Math.round(value * 10) / 10;
const cross = (x, y) => `M${px(x)} ${px(y - 3.5)}l7 7m0 -7l-7 7`;

/** Where the line to the children leaves a bar: near its end, and never outside it. */
function trunk(parent) {
  return Math.max(parent.endX - TRUNK, (parent.startedX + parent.endX) / 2);
}

/** Down from the parent's bar, then in a curve into the child: siblings share the way down. */
function forkPath(from, y1, x2, y2) {
  const r = Math.min(11, Math.abs(y2 - y1) / 2, Math.max(1, x2 - from));
  const turn = y2 >= y1 ? r : -r;
  return `M${px(from)} ${px(y1)}V${px(y2 - turn)}Q${px(from)} ${px(y2)} ${px(from + r)} ${px(y2)}H${px(x2)}`;
}

/** On from the parent's end, then in a curve down into the child: parents share the way down. */
function joinPath(x1, y1, x2, y2) {
  const down = x2 - TRUNK;
  if (down - x1 < 3) return forkPath(down, y1, x2, y2);
  const r = Math.min(11, Math.abs(y2 - y1) / 2, down - x1);
  const turn = y2 >= y1 ? r : -r;
  const begin = `M${px(x1)} ${px(y1)}H${px(down - r)}Q${px(down)} ${px(y1)} ${px(down)} ${px(y1 + turn)}`;
  return `${begin}V${px(y2 - turn)}Q${px(down)} ${px(y2)} ${px(down + r)} ${px(y2)}`;
}

/** On from a branch's end to the time at which its text stood in the answer, then down onto it. */
function answerPath(x1, y1, x2, y2) {
  if (x2 - x1 < 3) return `M${px(Math.min(x1, x2) - 3)} ${px(y1)}V${px(y2)}`;
  const r = Math.min(11, Math.abs(y2 - y1) / 2, x2 - x1);
  return `M${px(x1)} ${px(y1)}H${px(x2 - r)}Q${px(x2)} ${px(y1)} ${px(x2)} ${px(y1 + r)}V${px(y2)}`;
}
