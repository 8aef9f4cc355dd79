// Where heads look: a prompt twice, its tokens shaded by the weight of the token pointed at, and by the
// length of what that token fetches there. Beside it the numbers.

const SHOWN_KEYS = 12;
const floats = (text) => new Float32Array(bytes(text));
const integers = (text) => new Int32Array(bytes(text));

function bytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
}

// One head on one prompt: what interp/report/views.py describes.
class View {
  constructor(packed) {
    this.starts = integers(packed.starts);
    this.keys = packed.keys === null ? null : integers(packed.keys);
    this.undefined = packed.undefined;
    for (const name of ["weights", "lengths", "scales", "learned_sink", "others", "others_fetched"]) this[name] = floats(packed[name]);
  }

  // [{key, weight, fetched}, …] of one query, by position.
  row(query) {
    const [begin, end] = [this.starts[query], this.starts[query + 1]];
    return Array.from({ length: end - begin }, (_, place) => {
      const key = this.keys ? this.keys[begin + place] : place;
      const weight = this.weights[begin + place];
      return { key, weight, fetched: (weight * this.lengths[key]) / this.scales[query] };
    });
  }
}

const MEASURES = [
  { name: "weight", title: "weight", about: "attention weight: a share of 1" },
  { name: "fetched", title: "value-weighted", about: "\u2016weight \u00b7 value \u00b7 W_O\u2016: the length of what is fetched there, in the residual stream" },
];

class Viewer {
  constructor(place, content) {
    this.content = content;
    this.views = new Map();
    this.pinned = false;
    this.promptChoice = this.choice("prompt", content.prompts.map((one) => `${one.name} (${one.tokens.length} tokens)`));
    this.headChoice = this.choice("head", content.heads);
    this.panels = MEASURES.map((measure) => this.panel(measure));
    this.said = element("p", { class: "said" });
    const numbers = element("div", { class: "numbers" }, this.said);
    this.grid = new Grid(numbers, "the tokens looked at most", { filter: false, first: SHOWN_KEYS });
    this.rest = element("p", { class: "quiet rest" });
    numbers.append(this.rest);
    place.append(
      element("div", { class: "bar" }, this.promptChoice.label, this.headChoice.label),
      element("p", { class: "quiet" }, "Point at a token, or go there with the arrow keys, to see where it looks; a click, Enter or Space holds it."),
      element("div", { class: "panels" }, ...this.panels.map((one) => one.box)),
      numbers,
    );
    this.showPrompt();
  }

  choice(name, texts) {
    const select = element("select", {}, ...texts.map((text, value) => element("option", { value }, text)));
    select.addEventListener("change", () => (name === "prompt" ? this.showPrompt() : this.look(this.query)));
    return { select, label: element("label", {}, `${name} `, select) };
  }

  panel(measure) {
    const scale = element("span", { class: "quiet scale" });
    const tokens = element("div", { class: `tokens ${measure.name}`, role: "listbox", "aria-label": `tokens, shaded by ${measure.title}` });
    const token = (event) => event.target.closest?.("[data-token]");
    const number = (event) => Number(token(event).dataset.token);
    tokens.addEventListener("mouseover", (event) => token(event) && !this.pinned && this.look(number(event)));
    tokens.addEventListener("focusin", (event) => token(event) && this.query !== number(event) && this.look(number(event)));
    tokens.addEventListener("click", (event) => token(event) && this.pin(number(event)));
    tokens.addEventListener("keydown", (event) => token(event) && this.key(event, tokens, number(event)));
    const box = element("div", { class: "panel" }, element("h4", { title: measure.about }, measure.title, " ", scale), tokens);
    return { ...measure, box, scale, tokens };
  }

  // A token pointed at stays when it is clicked, until it is clicked again.
  pin(query) {
    this.pinned = !(this.pinned && query === this.query);
    this.look(query);
  }

  key(event, tokens, query) {
    const last = this.prompt.tokens.length - 1;
    const to = { ArrowLeft: query - 1, ArrowRight: query + 1, ArrowUp: query - 10, ArrowDown: query + 10, Home: 0, End: last }[event.key];
    if (event.key === "Enter" || event.key === " ") this.pin(query);
    else if (to === undefined) return;
    else tokens.children[Math.min(last, Math.max(0, to))].focus();
    event.preventDefault();
  }

  get prompt() {
    return this.content.prompts[this.promptChoice.select.value];
  }

  get view() {
    const [prompt, head] = [this.promptChoice.select.value, this.headChoice.select.value];
    const name = `${prompt} ${head}`;
    if (!this.views.has(name)) this.views.set(name, new View(this.content.views[prompt][head]));
    return this.views.get(name);
  }

  showPrompt() {
    const { tokens, special } = this.prompt;
    for (const panel of this.panels)
      panel.tokens.replaceChildren(
        ...tokens.map((text, number) => {
          const blank = text.trim() === "";
          const kind = special.includes(number) ? "token special" : blank ? "token blank" : "token";
          const shown = blank || special.includes(number) ? visible(text) : hiddenShown(text);
          const made = element("span", { class: kind, role: "option", tabindex: "-1", "data-token": number, "aria-label": `${number}: ${visible(text)}` }, shown);
          made.title = `${number}: ${JSON.stringify(text)}`;
          return made;
        }),
      );
    this.pinned = false;
    this.look(tokens.length - 1);
  }

  // Show where one token looks: shades in both panels, numbers below.
  look(query) {
    const { tokens } = this.prompt;
    const row = this.view.row(query);
    for (const { name, tokens: place, scale } of this.panels) {
      const largest = Math.max(0, ...row.map((one) => one[name]).filter(Number.isFinite));
      const shade = new Map(row.map((one) => [one.key, largest > 0 ? one[name] / largest : 0]));
      [...place.children].forEach((token, number) => {
        const share = shade.get(number) || 0;
        token.style.setProperty("--share", `${(100 * share).toFixed(1)}%`);
        token.classList.toggle("query", number === query);
        token.classList.toggle("later", number > query);
        token.classList.toggle("pinned", this.pinned && number === query);
        token.setAttribute("aria-selected", number === query);
        token.tabIndex = number === query ? 0 : -1;
      });
      scale.textContent = name === "fetched" && this.view.undefined ? `undefined: ${this.view.undefined}` : `full shade: ${largest.toPrecision(3)}`;
    }
    this.query = query;
    this.said.replaceChildren(`token ${query} `, element("code", { class: "token" }, visible(tokens[query])), " looks at");
    this.number(row, tokens);
    this.sayRest(row, query);
  }

  number(row, tokens) {
    row.sort((a, b) => b.weight - a.weight || a.key - b.key);
    const undefinedAsNull = (number) => (Number.isNaN(number) ? null : number);
    const column = (name, label, kind, places, values, about) => ({ name, label, kind, places, values, about });
    this.grid.show({
      rows: row.length,
      columns: [
        column("key", "position", "count", 0, row.map((one) => one.key), "position of the token looked at"),
        column("token", "token", "token", 0, row.map((one) => tokens[one.key]), "its text"),
        column("weight", "weight", "number", 4, row.map((one) => one.weight), MEASURES[0].about),
        column("fetched", "value-weighted", "number", 4, row.map((one) => undefinedAsNull(one.fetched)), MEASURES[1].about),
      ],
    });
  }

  sayRest(row, query) {
    const parts = [];
    if (row.length > SHOWN_KEYS) parts.push(`${SHOWN_KEYS} of ${row.length} tokens`);
    const [others, fetched] = [this.view.others[query], this.view.others_fetched[query]];
    if (row.length < query + 1 && others > 0) parts.push(`others, added up: ${others.toFixed(4)}, value-weighted ${Number.isNaN(fetched) ? "undefined" : fetched.toFixed(4)}`);
    if (this.view.learned_sink[query] > 0) parts.push(`learned sink: ${this.view.learned_sink[query].toFixed(4)}`);
    this.rest.textContent = parts.join("; ");
  }
}

for (const place of document.querySelectorAll(".viewer")) new Viewer(place, data(place.dataset.from));
