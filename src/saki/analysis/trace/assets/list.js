// The list of completions: filters, search and order, and rows of which only those in sight exist.

const ROW_HEIGHT = 66; // as in trace.css
const SPARE_ROWS = 6;

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

const byId = (id) => document.getElementById(id);
const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

const ORDERS = {
  file: () => 0,
  corrections: (a, b) => b.corrections.length - a.corrections.length,
  rate: (a, b) => b.corrections.length / (b.length || 1) - a.corrections.length / (a.length || 1),
  long: (a, b) => b.length - a.length,
  short: (a, b) => a.length - b.length,
  doubt: (a, b) => (Number.isFinite(b.doubt) ? b.doubt : -1) - (Number.isFinite(a.doubt) ? a.doubt : -1),
};

const ANSWERS = { true: "right", false: "wrong", null: "not known" };

class List {
  constructor(all, tokens, onOpen) {
    Object.assign(this, { all, tokens, onOpen, shown: all, current: null, rows: new Map() });
    this.box = byId("rows");
    this.box.addEventListener("scroll", () => this.#render(), { passive: true });
    this.box.addEventListener("click", (event) => {
      const row = event.target.closest("[role=option]");
      if (row) this.onOpen(this.all[Number(row.dataset.index)]);
    });
    new ResizeObserver(() => this.refresh()).observe(this.box);
    this.#fillFilters();
    const form = byId("filters");
    form.addEventListener("input", () => this.apply());
    form.addEventListener("reset", () => setTimeout(() => this.apply()));
    form.addEventListener("submit", (event) => event.preventDefault());
    this.pattern = null;
  }

  #fillFilters() {
    const options = (id, first, values, label = String) => {
      const select = byId(id);
      const counts = new Map();
      for (const each of this.all) counts.set(values(each), (counts.get(values(each)) ?? 0) + 1);
      const found = [...counts.keys()].sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))));
      if (first) select.append(new Option(first, ""));
      for (const value of found) {
        select.append(new Option(first ? `${label(value)} (${counts.get(value)})` : label(value), String(value)));
      }
      return found;
    };
    const several = {
      method: options("f-method", "any", (each) => each.method, (method) => method ?? "not recorded").length > 1,
      finish: options("f-finish", "any", (each) => each.finish).length > 1,
      correct: options("f-correct", "any", (each) => each.correct, (correct) => ANSWERS[correct]).length > 1,
    };
    this.severalMethods = several.method;
    const steps = options("f-step-from", "", (each) => each.step ?? -1, (step) => (step < 0 ? "none" : step));
    options("f-step-to", "", (each) => each.step ?? -1, (step) => (step < 0 ? "none" : step));
    for (const option of [...byId("f-step-to").options].slice(-1)) option.defaultSelected = option.selected = true;
    several.step = steps.length > 1;
    // A filter without a choice stays in its place, switched off, so that the reader sees what the data cannot tell.
    for (const box of document.querySelectorAll("[data-filter]")) {
      for (const select of box.querySelectorAll("select")) select.disabled = !several[box.dataset.filter];
    }
  }

  apply() {
    const value = (id) => byId(id).value;
    const number = (id) => (value(id) === "" ? null : Number(value(id)));
    const least = number("f-min");
    const most = number("f-max");
    const [from, to] = [Number(value("f-step-from")), Number(value("f-step-to"))];
    const same = (id, found) => value(id) === "" || value(id) === String(found);
    const order = ORDERS[value("f-order")];
    this.shown = this.all
      .filter((each) => {
        const step = each.step ?? -1;
        const count = each.corrections.length;
        return (
          same("f-method", each.method) &&
          same("f-finish", each.finish) &&
          same("f-correct", each.correct) &&
          step >= from &&
          step <= to &&
          (least === null || count >= least) &&
          (most === null || count <= most) &&
          this.#matches(each)
        );
      })
      .sort((a, b) => order(a, b) || a.index - b.index);
    this.#summarise();
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    byId("spacer").style.height = `${this.shown.length * ROW_HEIGHT}px`;
    this.box.scrollTop = 0;
    this.#render();
    this.#point();
  }

  search(pattern) {
    this.pattern = pattern;
    this.apply();
  }

  #matches(each) {
    if (!this.pattern) return true;
    this.pattern.lastIndex = 0;
    return this.pattern.test(this.tokens.searchable(each));
  }

  #summarise() {
    let corrections = 0;
    let tokens = 0;
    for (const each of this.shown) {
      corrections += each.corrections.length;
      tokens += each.length;
    }
    const share = tokens ? ` (${((100 * corrections) / tokens).toFixed(2)} %)` : "";
    const of = this.shown.length < this.all.length ? ` of ${this.all.length.toLocaleString("en")}` : "";
    byId("summary").textContent = this.shown.length
      ? `${this.shown.length.toLocaleString("en")}${of} ${this.all.length === 1 ? "completion" : "completions"}, ` +
        `${counted(corrections, "correction")} in ${counted(tokens, "token")}${share}`
      : "No completion matches; clear a filter or the search.";
  }

  refresh() {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.#render();
  }

  #render() {
    const first = Math.max(Math.floor(this.box.scrollTop / ROW_HEIGHT) - SPARE_ROWS, 0);
    const last = Math.min(Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW_HEIGHT) + SPARE_ROWS, this.shown.length);
    for (const [position, row] of this.rows) {
      if (position >= first && position < last) continue;
      row.remove();
      this.rows.delete(position);
    }
    for (let position = first; position < last; position++) {
      if (!this.rows.has(position)) this.rows.set(position, this.#row(position));
    }
  }

  #row(position) {
    const each = this.shown[position];
    const row = element("div", "row");
    row.id = `row-${each.index}`;
    row.dataset.index = each.index;
    row.setAttribute("role", "option");
    row.setAttribute("aria-setsize", this.shown.length);
    row.setAttribute("aria-posinset", position + 1);
    row.setAttribute("aria-selected", each === this.current);
    row.style.top = `${position * ROW_HEIGHT}px`;
    const head = element("div", "row-head");
    head.append(element("span", "row-name", nameOf(each)));
    if (this.severalMethods && each.method) head.append(element("span", "mark method", each.method));
    if (each.correct !== null) {
      head.append(element("span", each.correct ? "mark right" : "mark wrong", each.correct ? "✓ right" : "✗ wrong"));
    }
    if (each.finish !== "stop") head.append(element("span", "mark cut", each.finish === "length" ? "cut" : each.finish));
    const prompt = this.tokens.prompt(each.prompt).slice(-60);
    const preview = this.tokens.text(prompt).replace(/\s+/g, " ").slice(-80).trim();
    const line = element("div", "row-line");
    line.append(element("bdi", "row-preview", preview.replace(INVISIBLE, nameOfInvisible)));
    const count = element("span", "row-count", `${each.corrections.length} / ${each.length}`);
    count.title = "corrections / tokens";
    line.append(count);
    const canvas = element("canvas", "row-strip");
    canvas.setAttribute("aria-hidden", "true");
    row.append(head, line, canvas);
    byId("spacer").append(row);
    drawStrip(canvas, each);
    return row;
  }

  select(each) {
    this.current = each;
    for (const row of this.rows.values()) row.setAttribute("aria-selected", Number(row.dataset.index) === each.index);
    const position = this.shown.indexOf(each);
    if (position < 0) return this.#point();
    const top = position * ROW_HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    const bottom = top + ROW_HEIGHT - this.box.clientHeight;
    if (bottom > this.box.scrollTop) this.box.scrollTop = bottom;
    this.#render();
    return this.#point();
  }

  // Tells assistive technology which row is the open one, as long as that row exists.
  #point() {
    const row = this.current && this.rows.get(this.shown.indexOf(this.current));
    if (row) this.box.setAttribute("aria-activedescendant", row.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  // The completion so many places further down; from one that does not match, the first that does.
  neighbour(step) {
    const position = this.shown.indexOf(this.current);
    if (position < 0) return this.shown[0] ?? null;
    return this.shown[position + step] ?? null;
  }
}

function nameOf(each) {
  const step = each.step === null ? "" : `step ${each.step} · `;
  return `${step}prompt ${each.prompt_key} · sample ${each.sample}`;
}
