"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const status = document.querySelector(".status");
  const say = (text) => {
    status.textContent = text;
    window.setTimeout(() => { if (status.textContent === text) status.textContent = ""; }, 2500);
  };

  // A heading of a sortable table sorts it; a second time the other way round.
  const order = (a, b) => {
    const [x, y] = [Number(a), Number(b)];
    if (a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y)) return x - y;
    return a < b ? -1 : a > b ? 1 : 0;
  };
  for (const table of all("table[data-sortable]")) {
    const heads = all("thead th", table);
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = table.tBodies[0];
        const key = (row) => row.cells[at].dataset.key;
        body.append(...[...body.rows].sort((a, b) => order(key(a), key(b)) * (down ? -1 : 1)));
        say(`Sorted by ${button.textContent}, ${down ? "descending" : "ascending"}`);
      });
    });
  }

  // The plan that the address names is the one that is shown; other addresses change nothing.
  const plans = all("article.plan");
  const show = () => {
    const wanted = plans.find((plan) => `#${plan.id}` === window.location.hash);
    if (!wanted) return;
    for (const plan of plans) {
      plan.classList.toggle("chosen", plan === wanted);
      plan.classList.toggle("other", plan !== wanted);
    }
    for (const link of all(".picker a")) {
      if (link.hash === window.location.hash) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    wanted.focus({ preventScroll: true });
    wanted.scrollIntoView();
  };
  window.addEventListener("hashchange", show);
  show();

  for (const button of all("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        say("Copied");
      } catch {
        window.getSelection().selectAllChildren(source);
        say("Selected: press Ctrl+C to copy");
      }
    });
  }

  for (const slider of all("input[data-zoom]")) {
    slider.closest("p").hidden = false;
    const pictures = document.getElementById(slider.dataset.zoom);
    slider.addEventListener("input", () => { pictures.style.width = `${100 * Number(slider.value)}%`; });
  }

  // Coordinates of one GPU: rank on an axis = GPU / stride mod size.
  for (const field of all("input[data-lookup]")) {
    field.closest("p").hidden = false;
    const output = document.getElementById(field.dataset.lookup);
    const axes = field.dataset.axes.trim().split(" ").filter(Boolean).map((text) => text.split(":"));
    const hosts = (field.dataset.hosts || "").split(" ");
    const find = () => {
      const gpu = Number(field.value);
      const inRange = Number.isInteger(gpu) && gpu >= 0 && gpu <= Number(field.max);
      const ranks = axes.map(([name, size, stride]) => `${name} ${Math.floor(gpu / Number(stride)) % Number(size)}`);
      const node = Math.floor(gpu / Number(field.dataset.node));
      output.textContent = inRange ? [`node ${hosts[node] || node}`, ...ranks].join(" · ") : `GPUs are 0 to ${field.max}`;
    };
    field.addEventListener("input", find);
    find();
  }

  const data = document.getElementById("sides");
  if (data) {
    const { units, sides } = JSON.parse(data.textContent);
    const digits = { s: 3, GiB: 1, "%": 1, "tokens/s": 0 };
    const shown = (value, unit) => {
      if (value === undefined) return "–";
      return typeof value === "string" ? value || "–" : value.toFixed(digits[unit] ?? 0);
    };
    const difference = (a, b, unit) => {
      if (typeof a === "string" || typeof b === "string") return a === b ? "" : "differs";
      const change = (b ?? 0) - (a ?? 0);
      const text = shown(Math.abs(change), unit);
      return Number(text) === 0 ? "" : `${change > 0 ? "+" : "−"}${text}`;
    };
    const pick = (side) => document.querySelector(`select[data-side="${side}"]`);
    const fill = () => {
      const [first, second] = ["first", "second"].map((side) => sides[pick(side).value]);
      for (const side of ["first", "second"]) {
        document.querySelector(`[data-name="${side}"]`).textContent = pick(side).selectedOptions[0].textContent;
      }
      const surplus = (key) => typeof first[key] === "string" || typeof second[key] === "string" ? 0 : (second[key] ?? 0) - (first[key] ?? 0);
      const most = {};
      for (const [key, group] of Object.entries(units)) most[group] = Math.max(most[group] ?? 0, Math.abs(surplus(key)));
      for (const row of all("tr[data-quantity]")) {
        const key = row.dataset.quantity, [unit] = units[key];
        row.cells[1].textContent = shown(first[key], unit);
        row.cells[2].textContent = shown(second[key], unit);
        row.cells[3].textContent = difference(first[key], second[key], unit);
        row.hidden = !row.cells[3].textContent;
        const bar = row.querySelector("rect");
        if (!bar) continue;
        const change = most[units[key]] ? 500 * surplus(key) / most[units[key]] : 0;
        bar.setAttribute("x", Math.min(change, 0));
        bar.setAttribute("width", Math.abs(change));
        bar.setAttribute("class", change > 0 ? "t-loss" : "t-ideal");
      }
      for (const part of all(".compare tbody")) part.hidden = ![...part.rows].some((row) => row.dataset.quantity && !row.hidden);
    };
    document.querySelector(".choose").hidden = false;
    for (const side of ["first", "second"]) pick(side).addEventListener("change", fill);
  }
})();
