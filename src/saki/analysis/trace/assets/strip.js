// What a token can be shaded by, and the strip that shows it along a completion.

const QUANTITIES = [
  { key: "tv", name: "TV(p, q)", value: (c, i) => c.tv[i] },
  { key: "kl", name: "KL(q‖p), nats", value: (c, i) => c.kl[i] },
  { key: "beta", name: "beta", value: (c, i) => c.beta[i], most: 1 },
  { key: "rejection", name: "chance that the proposal is rejected", value: (c, i) => 1 - c.acceptance_probability[i], most: 1 },
  { key: "teacher", name: "surprise to the teacher, −log T", value: (c, i) => -c.teacher_logprobs[i], most: 8 },
  { key: "student", name: "surprise to the student, −log p", value: (c, i) => -c.student_logprobs[i], most: 8 },
  { key: "none", name: "nothing", value: () => NaN, most: 1 },
];

const LEVELS = 5;

class Shading {
  constructor(columns) {
    this.columns = columns;
    this.use("tv");
  }

  use(key) {
    this.quantity = QUANTITIES.find((each) => each.key === key);
    this.most = this.quantity.most ?? this.#largest();
  }

  #largest() {
    let largest = 0;
    const { value } = this.quantity;
    for (let i = 0; i < this.columns.committed.length; i++) {
      const found = value(this.columns, i);
      if (found > largest) largest = found;
    }
    return largest;
  }

  // 0 for next to nothing or unknown, up to 1.
  share(at) {
    const value = this.quantity.value(this.columns, at);
    return value > 0 && this.most > 0 ? Math.min(value / this.most, 1) : 0;
  }

  level(at) {
    return Math.round(this.share(at) * LEVELS);
  }
}

// Draws into a canvas at the resolution of the screen. Options: shading, selected (a position), ticks (their height).
function drawStrip(canvas, each, options = {}) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const base = height - 1;
  const length = Math.max(each.length, 1);
  pen.fillStyle = colour("--grid");
  pen.fillRect(0, base, width, 1);
  if (options.shading) {
    pen.fillStyle = colour("--orange");
    const peaks = new Float32Array(Math.ceil(width));
    for (let t = 0; t < each.length; t++) {
      const share = options.shading.share(each.start + t);
      const to = Math.max(Math.floor(((t + 1) * width) / length), Math.floor((t * width) / length) + 1);
      for (let x = Math.floor((t * width) / length); x < to && x < peaks.length; x++) peaks[x] = Math.max(peaks[x], share);
    }
    pen.globalAlpha = 0.55;
    peaks.forEach((peak, x) => pen.fillRect(x, base - peak * (base - 6), 1, peak * (base - 6)));
    pen.globalAlpha = 1;
  }
  pen.fillStyle = colour("--blue");
  const top = options.shading ? 0 : 1;
  for (const t of each.corrections) {
    const x = ((t + 0.5) * width) / length;
    pen.fillRect(x - 0.75, top, 1.5, options.shading ? 6 : base - 2);
    if (options.shading) {
      pen.beginPath();
      pen.moveTo(x - 3.5, 0);
      pen.lineTo(x + 3.5, 0);
      pen.lineTo(x, 6);
      pen.fill();
    }
  }
  if (options.selected !== undefined && options.selected !== null) {
    pen.fillStyle = colour("--ink");
    pen.fillRect(((options.selected + 0.5) * width) / length - 1, 0, 2, height);
  }
}
