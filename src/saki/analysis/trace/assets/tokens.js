// Tokens as text that shows everything: control characters, spaces at edges, parts of characters.

const INVISIBLE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

function nameOfInvisible(char) {
  const code = char.codePointAt(0);
  if (char === "\n") return "⏎";
  if (char === "\t") return "⇥";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

class Tokens {
  constructor(data) {
    this.ids = data.ids;
    this.decoded = data.decoded;
    this.raw = new Map(Object.entries(data.raw).map(([index, bytes]) => [Number(index), Uint8Array.from(bytes)]));
    this.special = new Set(data.special);
    this.texts = data.decoded ? data.texts : data.ids.map((id) => `${id} `);
    this.running = this.texts.map((text, index) => this.#running(text, index));
    this.prompts = data.prompts;
    this.columns = data.columns;
    this.joined = new Map();
  }

  // In running text line breaks break the line; elsewhere a token stays on one.
  #running(text, index) {
    if (this.raw.has(index)) return this.#hex(index);
    return text.replace(INVISIBLE, (char) => nameOfInvisible(char) + (char === "\n" || char === "\t" ? char : ""));
  }

  #hex(index) {
    return `‹${[...this.raw.get(index)].map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ")}›`;
  }

  // On one line, spaces at the edges visible.
  alone(index) {
    if (this.raw.has(index)) return this.#hex(index);
    if (!this.decoded) return String(this.ids[index]);
    const text = this.texts[index].replace(INVISIBLE, nameOfInvisible);
    if (text === "") return "(empty)";
    return text.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  }

  kind(index) {
    return this.raw.has(index) ? "bytes" : this.special.has(index) ? "special" : "";
  }

  // Column indices of a prompt or a completion as text; ends[t] is where token t ends. Parts of a character count as
  // the character they make together, at the first of them.
  text(indices, ends) {
    const pieces = [];
    let length = 0;
    for (let t = 0; t < indices.length; t++) {
      let piece = this.texts[indices[t]];
      if (this.raw.has(indices[t])) piece = t && this.raw.has(indices[t - 1]) ? "" : this.character(indices, t).text;
      pieces.push(piece);
      length += piece.length;
      if (ends) ends[t] = length;
    }
    return pieces.join("");
  }

  // The characters that a run of parts around position t makes.
  character(indices, t) {
    let from = t;
    let to = t;
    while (from > 0 && this.raw.has(indices[from - 1])) from--;
    while (to + 1 < indices.length && this.raw.has(indices[to + 1])) to++;
    const bytes = [];
    for (let i = from; i <= to; i++) bytes.push(...this.raw.get(indices[i]));
    return { text: new TextDecoder().decode(Uint8Array.from(bytes)), tokens: to - from + 1 };
  }

  prompt(number) {
    const [start, length] = this.prompts[number];
    return this.columns.prompts.subarray(start, start + length);
  }

  completion(each) {
    return this.columns.committed.subarray(each.start, each.start + each.length);
  }

  // Prompt and completion as one string for the search, made once.
  searchable(each) {
    let text = this.joined.get(each.index);
    if (text === undefined) {
      text = `${this.text(this.prompt(each.prompt))}\u0000${this.text(this.completion(each))}`;
      this.joined.set(each.index, text);
    }
    return text;
  }

  // A proposal or a teacher's top token: the column holds 0 for the committed one, -1 for none, else its index + 1.
  other(column, at) {
    const value = this.columns[column][at];
    return value === 0 ? this.columns.committed[at] : value < 0 ? null : value - 1;
  }
}

function patternOf(query) {
  return query ? new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu") : null;
}
