"use strict";
// What the live pages do beside the report's own script. Everything works without it but watching.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const say = (text) => {
    const status = document.querySelector(".status");
    if (status.textContent !== text) status.textContent = text;
  };
  const WORDS = { queued: "waiting", running: "searching", succeeded: "done", infeasible: "nothing fits" };
  const ENDED = new Set(["succeeded", "infeasible", "failed", "cancelled", "expired"]);
  const AWAY = "The server does not answer; trying again";

  // Times in the reader's own zone, selects that send their form, a table that is narrowed by typing.
  const enliven = (root) => {
    for (const time of all("time[datetime]", root)) {
      const at = new Date(time.dateTime);
      if (!Number.isNaN(at.getTime())) time.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    }
    for (const select of all("select[data-submits]", root)) select.addEventListener("change", () => select.form.requestSubmit());
    for (const field of all("input[data-filter]", root)) {
      field.closest("p").hidden = false;
      const rows = all("tbody tr", document.getElementById(field.dataset.filter));
      field.addEventListener("input", () => {
        const wanted = field.value.trim().toLowerCase();
        for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      });
    }
    for (const area of all("[data-drop]", root)) dropping(area);
  };

  // A file that is dropped, or chosen, becomes the text of its field; it is read here and sent with the form.
  const dropping = (area) => {
    const text = area.querySelector("textarea");
    const take = async (file) => {
      if (!file) return;
      if (file.size > 4e6) return say("This file is too big");
      text.value = await file.text();
      const name = document.getElementById("launch_name");
      if (name && area.dataset.drop === "launch_text") name.value = file.name;
      say(`${file.name} was read`);
    };
    const choice = area.querySelector("input[type=file]");
    choice.closest("p").hidden = false;
    choice.addEventListener("change", () => take(choice.files[0]));
    area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("over"); });
    area.addEventListener("dragleave", () => area.classList.remove("over"));
    area.addEventListener("drop", (event) => {
      event.preventDefault();
      area.classList.remove("over");
      take(event.dataTransfer.files[0]);
    });
  };

  const seconds = (value) => value === undefined ? "–" : value >= 100 ? `${value.toFixed(0)} s` : value >= 1 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${(value * 1000).toFixed(value < 0.01 ? 2 : 0)} ms`;

  const apart = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u00a0");
  // Round figures from one value to another, about as many as wanted.
  const rounds = (low, high, wanted) => {
    const raw = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((size) => size * power).find((size) => size >= raw);
    const found = [];
    for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-9); at += 1) found.push(at * step);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) + (String(step / power) === "2.5" ? 1 : 0);
    return found.map((value) => [value, high < 1 ? `${(value * 1000).toFixed(Math.max(0, digits - 3))} ms` : `${value.toFixed(digits)} s`]);
  };

  // The course of a search: steps of the incumbent and of the bound, and what lies between them.
  class Course {
    constructor(figure) {
      this.figure = figure;
      [this.left, this.width] = window.matchMedia("(max-width: 40rem)").matches ? [80, 390] : [60, 460]; // letters are larger on a phone
      this.points = [];
    }
    add(progress) {
      if (progress.incumbent_step_time_s === undefined && progress.bound_step_time_s === undefined) return;
      const last = this.points.at(-1);
      if (last && progress.elapsed_s < last.t) this.points = [];  // another attempt begins anew
      // The last report's bound is the answer's: of every split of every row, which may be lower than that of what was
      // left to be looked at. Both hold, so that the higher one ends the course.
      const known = progress.stage === "done" ? [last?.bound, progress.bound_step_time_s] : [progress.bound_step_time_s];
      const bounds = known.filter((one) => one !== undefined);
      const bound = bounds.length ? Math.max(...bounds) : undefined;
      this.points.push({ t: progress.elapsed_s, best: progress.incumbent_step_time_s, bound });
      this.draw();
    }
    draw() {
      const values = this.points.flatMap(({ best, bound }) => [best, bound]).filter((value) => value !== undefined);
      const [from, until] = [this.points[0].t, this.points.at(-1).t];
      if (this.points.length < 2 || until <= from) return;
      this.figure.hidden = false;
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const room = Math.max((high - low) * 0.12, high * 0.01) || 1; // no narrower: labels of few digits
      const [floor, top] = [Math.max(0, low - room), high + room];
      const x = (t) => this.left + this.width * (t / until);
      const y = (value) => 225 - 200 * ((value - floor) / (top - floor));
      const steps = (name) => {
        const known = this.points.filter((point) => point[name] !== undefined);
        let path = "";
        known.forEach((point, at) => { path += at ? `H${x(point.t).toFixed(1)}V${y(point[name]).toFixed(1)}` : `M${x(point.t).toFixed(1)} ${y(point[name]).toFixed(1)}`; });
        return known.length ? `${path}H${x(until).toFixed(1)}` : "";
      };
      const set = (name, path) => this.figure.querySelector(name).setAttribute("d", path);
      set(".incumbent", steps("best"));
      set(".bound", steps("bound"));
      const both = this.points.filter(({ best, bound }) => best !== undefined && bound !== undefined);
      set(".between", both.length ? this.area(both, x, y, until) : "");
      this.grid(floor, top, until, x, y);
      this.ends(x(until), y);
    }
    area(both, x, y, until) {
      let path = `M${x(both[0].t)} ${y(both[0].best)}`;
      for (const point of both) path += `H${x(point.t)}V${y(point.best)}`;
      path += `H${x(until)}V${y(both.at(-1).bound)}`;
      for (let at = both.length - 1; at >= 0; at -= 1) path += `H${x(both[at].t)}V${y(both[Math.max(at - 1, 0)].bound)}`;
      return `${path}Z`;
    }
    grid(floor, top, until, x, y) {
      this.fill(".grid", [
        ...rounds(floor, top, 4).flatMap(([value, text]) => [["path", { d: `M${this.left} ${y(value)}H${this.left + this.width}` }], ["text", { x: this.left - 8, y: y(value) + 4, "text-anchor": "end" }, text]]),
        ...rounds(0, until, 5).map(([t, text]) => ["text", { x: x(t), y: 246, "text-anchor": "middle" }, text]),
        ["text", { x: 0, y: 10 }, floor > 0 ? "step time (not from zero)" : "step time"],
        ["text", { x: this.left + this.width, y: 274, "text-anchor": "end" }, "time since the search began"],
      ]);
    }
    ends(at, y) {
      const { best, bound } = this.points.at(-1);
      const apart = best !== undefined && bound !== undefined && Math.abs(y(best) - y(bound)) < 16 ? 8 : 0;
      const shown = [];
      if (best !== undefined) shown.push(["circle", { cx: at, cy: y(best), r: 4 }], ["text", { x: at + 10, y: y(best) + 4 - apart }, `best ${seconds(best)}`]);
      if (bound !== undefined) shown.push(["circle", { cx: at, cy: y(bound), r: 3, class: "lower" }], ["text", { x: at + 10, y: y(bound) + 4 + apart }, `bound ${seconds(bound)}`]);
      this.fill(".ends", shown);
    }
    fill(name, shapes) {
      const group = this.figure.querySelector(name);
      group.replaceChildren(...shapes.map(([tag, attributes, text]) => {
        const shape = document.createElementNS("http://www.w3.org/2000/svg", tag);
        for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
        if (text !== undefined) shape.textContent = text;
        return shape;
      }));
    }
  }

  // A job is followed by its events; where they do not come, it is looked at again and again.
  class Follower {
    constructor(id, course, panel) {
      Object.assign(this, { id, course, panel, failures: 0 });
    }
    start() {
      const source = new EventSource(`/v1/jobs/${this.id}/events`);
      const hear = (event) => { this.back(); this.news(JSON.parse(event.data), source); };
      for (const state of [...Object.keys(WORDS), "failed", "cancelled", "expired"]) source.addEventListener(state, hear);
      source.addEventListener("open", () => this.back());
      source.addEventListener("error", () => {
        if (!this.panel) return source.close();
        this.failures += 1;
        say(AWAY);
        if (source.readyState === EventSource.CLOSED || this.failures >= 2) { source.close(); this.poll(); }
      });
    }
    back() {
      if (this.failures) say("");
      this.failures = 0;
    }
    async poll() {
      try {
        const answer = await fetch(`/v1/jobs/${this.id}`, { cache: "no-store", signal: AbortSignal.timeout(10000) });
        if (answer.status === 401) return window.location.reload();
        if (!answer.ok) throw new Error(String(answer.status));
        this.back();
        if (this.news(await answer.json())) return;
      } catch {
        this.failures += 1;
        say(AWAY);
      }
      window.setTimeout(() => this.poll(), Math.min(1000 * 2 ** this.failures, 4000));
    }
    // True: the job has ended.
    news(job, source) {
      const ended = ENDED.has(job.state);
      if (job.progress) this.course?.add(job.progress);
      if (this.panel) this.show(job);
      if (ended) source?.close();
      if (ended && this.panel) window.location.reload();
      return ended;
    }
    show({ state, progress, cancel_requested: leaving }) {
      const put = (name, text) => {
        const place = this.panel.querySelector(`[data-show="${name}"]`);
        if (place && text !== undefined) place.textContent = text;
      };
      put("state", leaving ? "cancelling" : WORDS[state] ?? state);
      put("stage", state === "queued" ? "Waiting for a worker" : "Searching");
      if (!progress) return;
      put("stage", progress.stage === "done" ? "Saving the answer" : `${progress.stage.charAt(0).toUpperCase()}${progress.stage.slice(1).replaceAll("_", " ")}`);
      put("incumbent", seconds(progress.incumbent_step_time_s));
      put("bound", seconds(progress.bound_step_time_s));
      put("gap", progress.gap === undefined ? "–" : `${(progress.gap * 100).toFixed(1)} %`);
      if (progress.total) put("explored", `${Math.floor((100 * progress.explored) / progress.total)} % of ${apart(progress.total)}`);
      put("elapsed", `${progress.elapsed_s.toFixed(1)} s`);
    }
  }

  const figure = document.querySelector("figure.course");
  if (figure) new Follower(figure.dataset.job, new Course(figure), document.querySelector("[data-follow]")).start();

  enliven(document);
  document.addEventListener("htmx:afterSwap", (event) => {
    enliven(event.detail.target.isConnected ? event.detail.target : document);
    document.querySelector("[autofocus]")?.focus();
  });
  document.addEventListener("htmx:sendError", () => say(AWAY.replace("; trying again", ". Nothing was sent")));
  document.addEventListener("htmx:responseError", (event) => {
    const { status } = event.detail.xhr;
    say(status === 429 ? "Too many at once; try again in a moment" : status === 401 ? "Sign in again" : `The server answered ${status}; nothing was done`);
  });
})();
