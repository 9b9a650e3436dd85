// Puts the parts together: keys, search, theme, and links that open one completion.

const THEMES = ["system", "light", "dark"];

function linkOf(reader) {
  const { open, chosen } = reader;
  return `#${encodeURIComponent(open.file)}/${open.row}${chosen === null ? "" : `/${chosen}`}`;
}

async function start() {
  const data = await readPayload(byId("payload"));
  const all = completionsOf(data);
  const tokens = new Tokens(data);
  const shading = new Shading(data.columns);
  const reader = new Reader(tokens, shading, () => history.replaceState(null, "", linkOf(reader)));
  const list = new List(all, tokens, (each) => open(each));

  function open(each, t = null) {
    reader.show(each);
    list.select(each);
    if (t !== null) reader.choose(t);
    else history.replaceState(null, "", linkOf(reader));
  }

  function notes(...more) {
    const told = [...data.notes, ...more];
    if (!data.decoded) told.unshift("Token ids are shown, since no tokenizer was given: saki view --model MODEL.");
    byId("notes").replaceChildren(...told.map((text) => element("p", "note", text)));
  }

  function follow() {
    const parts = location.hash.slice(1).split("/");
    if (parts.length < 2) return false;
    const file = decodeURIComponent(parts[0]);
    const found = all.find((each) => each.file === file && each.row === Number(parts[1]));
    notes(...(found ? [] : [`Row ${parts[1]} of ${file}, to which the link leads, is not in this page.`]));
    if (found) open(found, parts.length > 2 ? Number(parts[2]) : null);
    return Boolean(found);
  }

  function jumpBetween(positionsOf, step) {
    if (reader.jump(positionsOf(), step)) return;
    // Nothing further here: on to the next completion that has something.
    for (let next = list.neighbour(step); next; next = list.neighbour(step)) {
      open(next);
      if (reader.jump(positionsOf(), step)) return;
    }
  }
  const correction = (step) => jumpBetween(() => reader.open.corrections, step);
  const hit = (step) => jumpBetween(() => reader.hits, step);

  const search = byId("search");
  let waiting = 0;
  function find() {
    clearTimeout(waiting);
    const pattern = patternOf(search.value);
    list.search(pattern);
    reader.mark(pattern);
  }
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(find, 120);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      find();
      if (list.shown.length && !list.shown.includes(reader.open)) open(list.shown[0]);
      hit(event.shiftKey ? -1 : 1);
      search.focus(); // so that Enter goes on
    } else if (event.key === "Escape") {
      search.value = "";
      find();
      search.blur();
    }
    event.stopPropagation();
  });

  const shade = byId("shade");
  for (const each of QUANTITIES) shade.append(new Option(each.name, each.key));
  function reshade() {
    shading.use(shade.value);
    const bare = shade.value === "none";
    const boxes = Array.from({ length: LEVELS }, (_, level) => element("span", `s${level + 1}`, "\u00a0\u00a0"));
    const end = `${number(shading.most, 3)}${shading.quantity.most > 1 ? "+" : ""}`;
    byId("scale").replaceChildren(...(bare ? [] : [element("span", "faint", "0 "), ...boxes, element("span", "faint", ` ${end}`)]));
    if (reader.open) reader.reshade();
  }
  shade.addEventListener("change", reshade);

  const toggles = { r: byId("show-rejected"), m: byId("show-modes") };
  const showWhatIsChecked = () => {
    byId("text").classList.toggle("hide-rejected", !toggles.r.checked);
    byId("text").classList.toggle("show-modes", toggles.m.checked);
  };
  for (const box of Object.values(toggles)) box.addEventListener("change", showWhatIsChecked);

  let theme = 0;
  function nextTheme() {
    theme = (theme + 1) % THEMES.length;
    if (theme) document.documentElement.dataset.theme = THEMES[theme];
    else delete document.documentElement.dataset.theme;
    byId("theme").textContent = `Theme: ${THEMES[theme]}`;
    repaint();
  }
  function repaint() {
    list.refresh();
    reader.redraw();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  const help = byId("help");
  const step = (by) => {
    const next = list.neighbour(by);
    if (next) open(next);
  };
  const keys = {
    n: () => correction(1),
    p: () => correction(-1),
    j: () => step(1),
    k: () => step(-1),
    ArrowRight: () => reader.move(1),
    ArrowLeft: () => reader.move(-1),
    Home: () => reader.choose(0),
    End: () => reader.choose(reader.open.length - 1),
    "/": () => search.select(),
    "?": () => help.showModal(),
    t: nextTheme,
    s: () => {
      shade.selectedIndex = (shade.selectedIndex + 1) % shade.options.length;
      reshade();
    },
    r: () => toggles.r.click(),
    m: () => toggles.m.click(),
    Escape: () => reader.letGo(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.matches("select, input:not([type=checkbox]), textarea")) return;
    let run = keys[event.key];
    if (document.activeElement === list.box) run = { ArrowDown: keys.j, ArrowUp: keys.k }[event.key] ?? run;
    if (event.key === "Enter" && event.target === list.box) run = () => reader.choose(0);
    if (!run || !reader.open) return;
    event.preventDefault();
    run();
  });
  byId("theme").addEventListener("click", nextTheme);
  byId("help-open").addEventListener("click", keys["?"]);
  byId("prev-correction").addEventListener("click", keys.p);
  byId("next-correction").addEventListener("click", keys.n);

  notes();
  list.apply();
  reshade();
  if (!follow() && list.shown.length) open(list.shown[0]);
  window.addEventListener("hashchange", follow);
  performance.mark("ready");
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  byId("notes").replaceChildren(element("p", "note", `The data of this page cannot be shown (${error.message}); write it again.`));
  throw error;
});
