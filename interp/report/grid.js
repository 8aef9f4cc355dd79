"use strict";

// A table: sorted by its headers, filtered by words, a first part drawn at once.
// Whatever a cell holds is written as text, never as markup.

const FIRST_ROWS = 200;
const MINUS = "\u2212";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function data(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

// A token so that nothing in it is invisible: spaces, ends of lines, control and joining characters.
function visible(text) {
  if (text === "") return "\u2205";
  return hiddenShown(text).replace(/ /g, "\u00b7");
}

function hiddenShown(text) {
  return text
    .replace(/\r/g, "\u240d")
    .replace(/\n/g, "\u23ce")
    .replace(/\t/g, "\u21e5")
    .replace(/(?! )[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Zs}]/gu, (one) => `<U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

// [short, full] text of a value; short numbers of a column have the same places behind the point.
function written(value, column) {
  if (value === null) return ["\u2013", "undefined"];
  if (column.kind === "flag") return value ? ["yes", "true"] : ["no", "false"];
  if (column.kind === "token") return [visible(value), JSON.stringify(value)];
  if (column.kind === "text") return [value, value];
  const number = Number(value);
  if (!Number.isFinite(number)) return [number > 0 ? "\u221e" : MINUS + "\u221e", String(number)];
  let short = number.toFixed(column.places);
  if (number !== 0 && Number(short) === 0) short = number.toExponential(1);
  else if (Math.abs(number) >= 1e15) short = number.toExponential(3);
  else if (Math.abs(number) >= 1e4) short = number.toLocaleString("en", { minimumFractionDigits: column.places, maximumFractionDigits: column.places });
  return [short.replace(/-/g, MINUS), String(number)];
}

const isNumeric = (column) => column.kind === "number" || column.kind === "count";
const inOrder = new Intl.Collator("en", { numeric: true }).compare;

// Numbers as numbers, text by its words and numbers; where a value is undefined it is last either way.
function compared(a, b, column, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  return sign * (isNumeric(column) || column.kind === "flag" ? Number(a) - Number(b) || 0 : inOrder(a, b));
}

const RELATIONS = {
  "=": (order) => order === 0,
  "<": (order) => order < 0,
  ">": (order) => order > 0,
  "<=": (order) => order <= 0,
  ">=": (order) => order >= 0,
};

// Which rows a filter leaves: every word of it must be there, or hold where it is like "mass>0.5".
function condition(word, columns) {
  const [, name, relation, rest] = /^([\w.]+)(<=|>=|=|<|>)(.+)$/.exec(word) || [];
  const column = columns.find((one) => one.name === name);
  if (column === undefined) {
    const wanted = word.toLowerCase();
    return (row) => columns.some((one) => one.values[row] !== null && written(one.values[row], one).some((text) => text.toLowerCase().includes(wanted)));
  }
  const value = isNumeric(column) ? Number(rest.replace(MINUS, "-")) : rest;
  return (row) => {
    const own = column.values[row];
    if (own === null) return false;
    if (isNumeric(column)) return RELATIONS[relation](Math.sign(Number(own) - value));
    return RELATIONS[relation](inOrder(column.kind === "flag" ? (own ? "yes" : "no") : own, value));
  };
}

class Grid {
  constructor(place, label, { filter = true, first = FIRST_ROWS } = {}) {
    this.first = first;
    this.sorted = null; // [index of the column, 1 or -1]
    this.head = element("tr");
    this.body = element("tbody");
    this.status = element("span", { class: "quiet", role: "status" });
    this.more = element("button", { type: "button", class: "more" }, "show all");
    this.more.addEventListener("click", () => {
      this.all = true;
      this.draw();
    });
    const table = element("table", { "aria-label": label }, element("thead", {}, this.head), this.body);
    const scroll = element("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, table);
    if (filter) {
      this.filter = element("input", { type: "search", "aria-label": `filter ${label}`, placeholder: "filter: words, or such as layer=2 mass>0.5" });
      this.filter.addEventListener("input", () => this.draw());
      place.append(element("div", { class: "bar" }, this.filter, this.status, this.more));
    }
    place.append(scroll);
  }

  show(table) {
    const names = (columns) => (columns || []).map((one) => one.name).join();
    const same = names(this.columns) === names(table.columns);
    this.columns = table.columns;
    this.rows = table.rows;
    this.allRows = table.all_rows ?? table.rows;
    if (!same) this.drawHead();
    this.draw();
  }

  drawHead() {
    this.head.replaceChildren(
      ...this.columns.map((column, index) => {
        const button = element("button", { type: "button", title: column.about }, column.label ?? column.name);
        button.addEventListener("click", () => this.sort(index));
        return element("th", { scope: "col", class: isNumeric(column) ? "number" : column.kind, "aria-sort": "none" }, button);
      }),
    );
  }

  // Rising, falling, and then as the run wrote it.
  sort(index) {
    const [now, sign] = this.sorted ?? [];
    this.sorted = now !== index ? [index, 1] : sign === 1 ? [index, -1] : null;
    [...this.head.children].forEach((cell, place) => {
      const direction = this.sorted?.[0] === place ? (this.sorted[1] === 1 ? "ascending" : "descending") : "none";
      cell.setAttribute("aria-sort", direction);
    });
    this.draw();
  }

  draw() {
    const words = this.filter ? this.filter.value.split(/\s+/).filter(Boolean) : [];
    const conditions = words.map((word) => condition(word, this.columns));
    const rows = [...Array(this.rows).keys()].filter((row) => conditions.every((holds) => holds(row)));
    if (this.sorted) {
      const [index, sign] = this.sorted;
      const column = this.columns[index];
      rows.sort((a, b) => compared(column.values[a], column.values[b], column, sign));
    }
    const shown = this.all ? rows : rows.slice(0, this.first);
    this.body.replaceChildren(
      ...shown.map((row) => element("tr", {}, ...this.columns.map((column) => this.cell(column.values[row], column)))),
    );
    const count = (number) => number.toLocaleString("en");
    let said = `${count(shown.length)} of ${count(rows.length)} rows`;
    if (rows.length < this.rows) said += `, filtered from ${count(this.rows)}`;
    if (this.rows < this.allRows) said += `; the file has ${count(this.allRows)}, of which this page holds the first ${count(this.rows)}`;
    this.status.textContent = said;
    this.more.hidden = shown.length === rows.length;
  }

  cell(value, column) {
    const [short, full] = written(value, column);
    const cell = element("td", { class: value === null ? "undefined" : isNumeric(column) ? "number" : column.kind }, short);
    if (short !== full) cell.setAttribute("title", full);
    return cell;
  }
}

for (const place of document.querySelectorAll(".grid")) {
  const details = place.closest("details");
  const fill = () => {
    if (details.open && !place.firstChild) new Grid(place, place.dataset.name).show(data(place.dataset.from));
  };
  details.addEventListener("toggle", fill);
  fill();
}
