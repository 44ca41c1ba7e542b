"use strict";
// The map: every matrix a mark on a canvas, its colour and its shape by kind.
(() => {
  const SHAPES = [
    (p, r) => p.arc(0, 0, r * 0.95, 0, 2 * Math.PI),
    (p, r) => p.rect(-r * 0.85, -r * 0.85, r * 1.7, r * 1.7),
    (p, r) => poly(p, [[0, -r * 1.1], [r * 1.05, r * 0.8], [-r * 1.05, r * 0.8]]),
    (p, r) => poly(p, [[0, -r * 1.2], [r * 1.2, 0], [0, r * 1.2], [-r * 1.2, 0]]),
    (p, r) => poly(p, [[0, r * 1.1], [r * 1.05, -r * 0.8], [-r * 1.05, -r * 0.8]]),
    (p, r) => poly(p, plus(r * 1.15, r * 0.42)),
    (p, r) => poly(p, turned(plus(r * 1.2, r * 0.42))),
    (p, r) => poly(p, star(r * 1.35)),
    (p, r) => p.rect(-r, -r * 0.35, r * 2, r * 0.7),
  ];
  const NEAR = 14; // pixels within which a mark is meant
  const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function poly(path, corners) {
    corners.forEach(([x, y], at) => (at ? path.lineTo(x, y) : path.moveTo(x, y)));
    path.closePath();
  }
  function plus(r, t) {
    return [[-t, -r], [t, -r], [t, -t], [r, -t], [r, t], [t, t], [t, r], [-t, r], [-t, t], [-r, t], [-r, -t], [-t, -t]];
  }
  function turned(corners) {
    return corners.map(([x, y]) => [(x - y) * Math.SQRT1_2, (x + y) * Math.SQRT1_2]);
  }
  function star(r) {
    return Array.from({ length: 10 }, (_, i) => {
      const reach = i % 2 ? r * 0.45 : r;
      return [reach * Math.sin((i * Math.PI) / 5), -reach * Math.cos((i * Math.PI) / 5)];
    });
  }
  function svgPath(shape) {
    let text = "";
    const n = (v) => Number(v.toFixed(2));
    SHAPES[shape]({
      moveTo: (x, y) => (text += `M${n(x)} ${n(y)}`),
      lineTo: (x, y) => (text += `L${n(x)} ${n(y)}`),
      closePath: () => (text += "Z"),
      rect: (x, y, w, h) => (text += `M${n(x)} ${n(y)}h${n(w)}v${n(h)}h${n(-w)}Z`),
      arc: (x, y, r) => (text += `M${n(-r)} 0a${n(r)} ${n(r)} 0 1 0 ${n(2 * r)} 0a${n(r)} ${n(r)} 0 1 0 ${n(-2 * r)} 0Z`),
    }, 5);
    return text;
  }

  class Chart {
    constructor(root) {
      this.root = root;
      this.canvas = root.querySelector("canvas");
      this.context = this.canvas.getContext("2d");
      this.tip = root.querySelector(".map-tip");
      this.state = root.querySelector(".map-state");
      this.legend = root.querySelector(".legend");
      this.zoom = 1;
      this.x = 0.5; // the middle of the view, in the unit square
      this.y = 0.5;
      this.at = -1; // the mark that is pointed at
      this.alone = -1; // the kind that is shown alone
      this.waiting = false;
    }

    async load() {
      this.state.textContent = "reading the map …";
      let found;
      try {
        const reply = await fetch(this.root.dataset.src);
        found = await reply.json();
        if (!reply.ok) throw new Error(found.error);
      } catch (error) {
        this.state.textContent = `no map: ${error.message}`;
        return;
      }
      this.data = found;
      this.resting = `${found.ids.length.toLocaleString("en")} ${this.root.dataset.many || "matrices"}, ${found.op} on ${found.platform}${found.simulated ? " (simulated)" : ""}`;
      this.state.textContent = this.resting;
      this.rest = found.kinds.findIndex((kind, at) => kind.label === "other" && at === found.kinds.length - 1);
      this.fit();
      this.listLegend();
      this.listen();
      this.measure();
      this.draw();
      this.root.dataset.drawn = found.ids.length;
      this.root.dataset.ms = performance.now().toFixed(0);
    }

    // Places lie in the unit square but seldom fill it: the view starts at what is there.
    fit() {
      const { x, y } = this.data;
      const range = (v) => v.reduce(([a, b], c) => [Math.min(a, c), Math.max(b, c)], [1, 0]);
      const [left, right] = range(x);
      const [low, high] = range(y);
      this.home = { x: (left + right) / 2, y: (low + high) / 2, w: Math.max(right - left, 1e-3), h: Math.max(high - low, 1e-3) };
      this.x = this.home.x;
      this.y = this.home.y;
    }

    look(kind) {
      return kind === this.rest ? 8 : kind;
    }

    measure() {
      const box = this.canvas.getBoundingClientRect();
      this.width = box.width;
      this.height = box.height;
      this.scale = window.devicePixelRatio || 1;
      this.canvas.width = Math.round(box.width * this.scale);
      this.canvas.height = Math.round(box.height * this.scale);
      this.base = Math.min((this.width - 60) / this.home.w, (this.height - 60) / this.home.h);
      this.sprites = null;
    }

    radius() {
      const n = this.data.ids.length;
      const start = n > 4000 ? 2.6 : n > 1000 ? 3.4 : n > 300 ? 4.2 : 5.2;
      return Math.min(start * this.zoom ** 0.25, 8);
    }

    // One small picture per kind: drawing it again is far cheaper than its outline.
    makeSprites() {
      const r = this.radius();
      const style = getComputedStyle(this.root);
      this.spriteRadius = r;
      this.half = Math.ceil(r * 1.5 + 2);
      this.sprites = this.data.kinds.map((_, kind) => {
        const picture = document.createElement("canvas");
        picture.width = picture.height = Math.ceil(2 * this.half * this.scale);
        const c = picture.getContext("2d");
        c.scale(this.scale, this.scale);
        c.translate(this.half, this.half);
        c.beginPath();
        SHAPES[this.look(kind)](c, r);
        c.fillStyle = style.getPropertyValue(`--k${this.look(kind)}`);
        c.globalAlpha = 0.85;
        c.fill();
        c.globalAlpha = 1;
        c.lineWidth = 0.8;
        c.strokeStyle = style.getPropertyValue("--soft");
        c.stroke();
        return picture;
      });
    }

    place(at) {
      const k = this.base * this.zoom;
      return [
        this.width / 2 + (this.data.x[at] - this.x) * k,
        this.height / 2 - (this.data.y[at] - this.y) * k,
      ];
    }

    later() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => {
        this.waiting = false;
        this.draw();
      });
    }

    draw() {
      if (!this.sprites || this.spriteRadius !== this.radius()) this.makeSprites();
      const c = this.context;
      c.setTransform(this.scale, 0, 0, this.scale, 0, 0);
      c.clearRect(0, 0, this.width, this.height);
      const { kind } = this.data;
      // The rest lies below the named kinds.
      for (const last of [false, true]) {
        for (let at = 0; at < kind.length; at++) {
          const below = this.alone >= 0 ? kind[at] !== this.alone : kind[at] === this.rest;
          if (below === last) continue;
          const [x, y] = this.place(at);
          if (x < -9 || y < -9 || x > this.width + 9 || y > this.height + 9) continue;
          c.globalAlpha = this.alone >= 0 && kind[at] !== this.alone ? 0.13 : 1;
          c.drawImage(this.sprites[kind[at]], x - this.half, y - this.half, 2 * this.half, 2 * this.half);
        }
      }
      c.globalAlpha = 1;
      if (this.at >= 0) this.ring();
    }

    ring() {
      const [x, y] = this.place(this.at);
      const c = this.context;
      c.beginPath();
      c.arc(x, y, this.radius() + 5, 0, 2 * Math.PI);
      c.lineWidth = 2.5;
      c.strokeStyle = getComputedStyle(this.root).getPropertyValue("--ink");
      c.stroke();
    }

    listLegend() {
      this.data.kinds.forEach((kind, at) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", "false");
        const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        for (const [name, value] of [["viewBox", "-8 -8 16 16"], ["width", 16], ["height", 16], ["aria-hidden", true]]) {
          picture.setAttribute(name, value);
        }
        const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
        path.setAttribute("d", svgPath(this.look(at)));
        path.setAttribute("class", `k${this.look(at)}`);
        picture.append(path);
        const count = document.createElement("span");
        count.className = "quiet";
        count.textContent = kind.count.toLocaleString("en");
        const label = document.createElement("span");
        label.textContent = plain(kind.label, 160);
        button.append(picture, label, count);
        button.addEventListener("click", () => {
          this.alone = this.alone === at ? -1 : at;
          for (const [i, other] of [...this.legend.querySelectorAll("button")].entries()) {
            other.setAttribute("aria-pressed", String(i === this.alone));
          }
          this.later();
        });
        const row = document.createElement("li");
        row.append(button);
        this.legend.append(row);
      });
    }

    // The mark of the least cost below a limit, of the kind that is shown alone if one is.
    cheapest(cost, limit = Infinity) {
      let best = -1;
      for (let at = 0; at < this.data.x.length; at++) {
        if (this.alone >= 0 && this.data.kind[at] !== this.alone) continue;
        const [x, y] = this.place(at);
        const own = cost(x, y);
        if (own < limit) {
          limit = own;
          best = at;
        }
      }
      return best;
    }

    nearest(px, py, within = Infinity) {
      return this.cheapest((x, y) => (x - px) ** 2 + (y - py) ** 2, within * within);
    }

    // The next mark in the direction of an arrow: near, and not far off to the side.
    step([dx, dy]) {
      if (this.at < 0) {
        this.point(this.nearest(this.width / 2, this.height / 2));
        return;
      }
      const [px, py] = this.place(this.at);
      const best = this.cheapest((x, y) => {
        const ahead = (x - px) * dx + (y - py) * dy;
        const aside = Math.abs((x - px) * dy - (y - py) * dx);
        // The mark itself is not ahead.
        return ahead > 0.5 && aside <= 2 * ahead ? ahead + 2.5 * aside : Infinity;
      });
      if (best >= 0) this.point(best);
    }

    point(at) {
      this.at = at;
      if (at < 0) {
        this.tip.hidden = true;
        this.state.textContent = this.resting;
        this.later();
        return;
      }
      const [x, y] = this.place(at);
      if (x < 0 || y < 0 || x > this.width || y > this.height) {
        this.x = this.data.x[at];
        this.y = this.data.y[at];
      }
      this.showTip();
      this.state.textContent = `${this.nameOf(at)}: ${plain(this.data.kinds[this.data.kind[at]].label, 120)}. Enter opens it.`;
      this.later();
    }

    nameOf(at) {
      return plain(this.data.names[at], 80) || this.data.ids[at];
    }

    showTip() {
      const name = document.createElement("strong");
      name.textContent = this.nameOf(this.at);
      const kind = document.createElement("span");
      kind.textContent = plain(this.data.kinds[this.data.kind[this.at]].label, 140);
      const words = document.createElement("div");
      words.append(name, kind);
      this.tip.replaceChildren(words);
      if ("pictures" in this.root.dataset) this.tip.prepend(this.picture());
      this.tip.hidden = false;
      const [x, y] = this.place(this.at);
      const box = this.tip.getBoundingClientRect();
      const left = x + 16 + box.width > this.width ? x - 16 - box.width : x + 16;
      const top = Math.min(Math.max(y - box.height / 2, 4), this.height - box.height - 4);
      this.tip.style.transform = `translate(${Math.max(left, 4)}px, ${Math.max(top, 4)}px)`;
    }

    picture() {
      const picture = document.createElement("img");
      picture.width = picture.height = 84;
      picture.alt = "";
      picture.addEventListener("error", () => (picture.hidden = true));
      picture.src = `${document.body.dataset.root}/thumbs/${this.data.ids[this.at]}.svg`;
      return picture;
    }

    open() {
      if (this.at >= 0) location.assign(`${document.body.dataset.root}/patterns/${this.data.ids[this.at]}`);
    }

    // Keeps the place under (px, py) where it is.
    scaleAt(px, py, factor) {
      const before = this.base * this.zoom;
      this.zoom = Math.min(Math.max(this.zoom * factor, 0.5), 400);
      const after = this.base * this.zoom;
      this.x += (px - this.width / 2) * (1 / before - 1 / after);
      this.y -= (py - this.height / 2) * (1 / before - 1 / after);
      if (!this.tip.hidden) this.showTip();
      this.root.dataset.zoom = this.zoom.toFixed(3);
      this.later();
    }

    shift(px, py) {
      const k = this.base * this.zoom;
      this.x -= px / k;
      this.y += py / k;
      if (!this.tip.hidden) this.showTip();
      this.later();
    }

    all() {
      this.zoom = 1;
      this.x = this.home.x;
      this.y = this.home.y;
      this.root.dataset.zoom = "1.000";
      this.point(-1);
    }

    listen() {
      const canvas = this.canvas;
      const held = new Map();
      let moved = 0;
      const at = (event) => {
        const box = canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      canvas.addEventListener("wheel", (event) => {
        const meant = this.root.dataset.wheel === "always" || document.activeElement === canvas || event.ctrlKey;
        if (!meant) return; // else the page could not be scrolled past the map
        event.preventDefault();
        this.scaleAt(...at(event), Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)));
      }, { passive: false });
      canvas.addEventListener("pointerdown", (event) => {
        held.set(event.pointerId, at(event));
        moved = 0;
        canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        const [px, py] = at(event);
        const before = held.get(event.pointerId);
        if (!before) {
          const found = this.nearest(px, py, NEAR);
          canvas.classList.toggle("on-point", found >= 0);
          if (found !== this.at) this.point(found);
          return;
        }
        held.set(event.pointerId, [px, py]);
        moved += Math.hypot(px - before[0], py - before[1]);
        if (moved < 4) return;
        canvas.classList.add("moving");
        const others = [...held.entries()].filter(([id]) => id !== event.pointerId);
        if (!others.length) {
          this.shift(px - before[0], py - before[1]);
          return;
        }
        const [ox, oy] = others[0][1];
        const ratio = Math.hypot(px - ox, py - oy) / Math.max(Math.hypot(before[0] - ox, before[1] - oy), 1);
        this.scaleAt((px + ox) / 2, (py + oy) / 2, ratio);
      });
      const ended = (event) => {
        const was = held.delete(event.pointerId);
        canvas.classList.remove("moving");
        if (!was || moved >= 4 || event.type === "pointercancel" || held.size) return;
        const found = this.nearest(...at(event), NEAR);
        // A finger cannot hover: its first touch points, the second opens.
        if (event.pointerType !== "mouse" && found !== this.at) this.point(found);
        else if (found >= 0) this.open();
      };
      canvas.addEventListener("pointerup", ended);
      canvas.addEventListener("pointercancel", ended);
      canvas.addEventListener("pointerleave", () => {
        if (document.activeElement !== canvas && !held.size) this.point(-1);
      });
      canvas.addEventListener("blur", () => this.point(-1));
      canvas.addEventListener("keydown", (event) => this.key(event));
      for (const button of this.root.querySelectorAll("[data-do]")) {
        button.addEventListener("click", () => this.press(button.dataset.do));
      }
      new ResizeObserver(() => {
        this.measure();
        this.draw();
      }).observe(canvas);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        this.sprites = null;
        this.later();
      });
    }

    press(what) {
      if (what === "all") this.all();
      else this.scaleAt(this.width / 2, this.height / 2, what === "in" ? 1.6 : 1 / 1.6);
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const way = KEYS[event.key];
      if (way && event.shiftKey) this.shift(-60 * way[0], -60 * way[1]);
      else if (way) this.step(way);
      else if (event.key === "+" || event.key === "=") this.press("in");
      else if (event.key === "-") this.press("out");
      else if (event.key === "0") this.press("all");
      else if (event.key === "Enter") this.open();
      else if (event.key === "Escape") this.point(-1);
      else return;
      event.preventDefault();
    }
  }

  // Names come from files: what does not print or turns the reading direction is told by its number.
  function plain(text, most) {
    const kept = text.length > most ? `${text.slice(0, most)}…` : text;
    return kept.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `[U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}]`);
  }

  for (const root of document.querySelectorAll(".map")) new Chart(root).load();
})();
