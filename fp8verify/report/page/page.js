"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent.trim();
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
    });
  });
}

const table = document.getElementById("kernel-table");
if (table) {
  const find = document.getElementById("find");
  const gemms = document.getElementById("gemms");
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      const wanted = (!gemms.checked || row.className === "gemm") && words.every((w) => text.includes(w));
      row.hidden = !wanted;
      shown += wanted;
    }
    document.getElementById("count").textContent = `${shown} of ${rows.length} kinds`;
  };
  const whole = document.getElementById("whole");
  const cut = () => table.classList.toggle("short", !whole.checked);
  whole.addEventListener("change", cut);
  cut();
  find.addEventListener("input", filter);
  gemms.addEventListener("change", filter);
  filter();
}
