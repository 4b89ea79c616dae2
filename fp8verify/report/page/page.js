"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    if ("v" in cell.dataset) return Number(cell.dataset.v);
    const text = cell.textContent.trim();
    return cell.className === "n" ? parseFloat(text) || 0 : text;
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b));
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const first = body.rows[0];
      const number = first && typeof value(first, column) === "number";
      const before = head.getAttribute("aria-sort");
      // Figures first show their largest, words their first.
      const rising = before ? before === "descending" : !number;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      rows.sort((a, b) => (rising ? compare(a[0], b[0]) : compare(b[0], a[0])));
      body.append(...rows.map((pair) => pair[1]));
      table.dispatchEvent(new Event("sorted"));
    });
  });
}

const table = document.getElementById("kernel-table");
if (table) {
  const find = document.getElementById("find");
  const gemms = document.getElementById("gemms");
  const every = document.getElementById("every");
  const most = 25;
  const body = table.tBodies[0];
  const texts = new Map([...body.rows].map((row) => [row, row.textContent.toLowerCase()]));
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = texts.get(row);
      const wanted = (!gemms.checked || row.className === "gemm") && words.every((w) => text.includes(w));
      shown += wanted;
      row.hidden = !wanted || (shown > most && !every.checked && !words.length);
    }
    const seen = every.checked || words.length ? shown : Math.min(shown, most);
    document.getElementById("count").textContent = `${seen} of ${texts.size} kinds`;
  };
  const whole = document.getElementById("whole");
  const cut = () => table.classList.toggle("short", !whole.checked);
  whole.addEventListener("change", cut);
  cut();
  table.addEventListener("sorted", filter);
  find.addEventListener("input", filter);
  gemms.addEventListener("change", filter);
  every.addEventListener("change", filter);
  filter();
}

// A link to an explanation unfolds it, also where the page is opened at it.
const unfold = () => {
  const about = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (about && about.tagName === "DETAILS") about.open = true;
};
addEventListener("hashchange", unfold);
unfold();

const tip = document.getElementById("tip");
const show = (text, x, y) => {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.max(4, Math.min(x + 12, innerWidth - box.width - 4));
  tip.style.left = `${left}px`;
  tip.style.top = `${y + box.height + 20 > innerHeight ? Math.max(4, y - box.height - 12) : y + 16}px`;
};
const hide = () => { tip.hidden = true; };
document.addEventListener("pointermove", (event) => {
  const said = event.target.closest("[data-tip]");
  if (said) show(said.dataset.tip, event.clientX, event.clientY);
  else if (!event.target.closest(".hover")) hide();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
document.addEventListener("scroll", hide, { passive: true });

// The cells of the ledger say in a title what they hold, for readers without a script.
for (const title of document.querySelectorAll(".cell > title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
for (const region of document.querySelectorAll(".ledger")) {
  const rows = [...region.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll(".cell")]);
  let at = [0, -1];
  const leave = () => {
    const cell = (rows[at[0]] || [])[at[1]];
    if (cell) cell.classList.remove("at");
    hide();
  };
  region.addEventListener("blur", leave);
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  region.addEventListener("keydown", (event) => {
    if (!(event.key in moves)) return;
    event.preventDefault();
    leave();
    const [down, right] = moves[event.key];
    const row = Math.max(0, Math.min(rows.length - 1, at[0] + down));
    at = [row, Math.max(0, Math.min(rows[row].length - 1, at[1] + right))];
    const cell = rows[row][at[1]];
    cell.classList.add("at");
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = cell.getBoundingClientRect();
    show(cell.dataset.tip, box.right, box.bottom);
  });
}

const data = document.getElementById("timeline-data");
const pictures = data ? JSON.parse(data.textContent) : [];
const classes = ["FP8 GEMMs", "GEMMs in higher precision", "GEMMs of unknown precision", "other kernels"];
const describe = (picture, place) => {
  const from = (picture.bucket * place) / 1000;
  const to = (picture.bucket * (place + 1)) / 1000;
  const inside = picture.steps.filter(([, begin, end]) => begin / 1000 < to && end / 1000 > from);
  const lines = [`${from.toFixed(3)} to ${to.toFixed(3)} ms${inside.length ? ", step " + inside.map((s) => s[0]).join(", ") : ""}`];
  picture.times[place].forEach((us, kind) => { if (us) lines.push(`${classes[kind]}: ${us.toFixed(1)} µs`); });
  if (lines.length === 1) lines.push("idle");
  return lines.join("\n");
};
for (const box of document.querySelectorAll(".hover")) {
  const picture = pictures[Number(box.dataset.timeline)];
  const cursor = box.querySelector(".cursor");
  const count = picture.times.length;
  const point = (place, x, y) => {
    const text = describe(picture, place);
    box.setAttribute("aria-valuenow", place);
    box.setAttribute("aria-valuetext", text);
    cursor.setAttribute("x", place);
    show(text, x, y);
  };
  box.addEventListener("pointermove", (event) => {
    const edge = box.getBoundingClientRect();
    const place = Math.floor(((event.clientX - edge.left) / edge.width) * count);
    point(Math.max(0, Math.min(count - 1, place)), event.clientX, event.clientY);
  });
  const leave = () => { cursor.setAttribute("x", -2); hide(); };
  box.addEventListener("pointerleave", leave);
  box.addEventListener("blur", leave);
  const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 24, PageDown: -24, Home: -1e9, End: 1e9 };
  box.addEventListener("keydown", (event) => {
    if (!(event.key in moves)) return;
    event.preventDefault();
    const now = Number(box.getAttribute("aria-valuenow"));
    const place = Math.max(0, Math.min(count - 1, now + moves[event.key]));
    const edge = box.getBoundingClientRect();
    point(place, edge.left + ((place + 0.5) / count) * edge.width, edge.bottom);
  });
}
