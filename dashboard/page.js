// Draws the picture of a federation. From a running one it comes over HTTP, anew whenever something has happened; in a report it stands in the
// page. Everything that is shown goes through text nodes and attributes: names and reasons are data, never markup.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const REFRESH_MS = 250; // the picture is asked for at most so often
  const RETRY_MS = 2000;
  const REPLAY_MS = 400;
  const NODES_DRAWN = 400; // beyond that the map and the tables show the ones that need a look first
  const byId = (id) => document.getElementById(id);
  let picture = null;
  let chosenNode = null;
  let chosenRound = null; // null: the newest

  // Builds an element; children are elements or text.
  function element(space, name, attributes, children) {
    const made = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value !== null && value !== undefined) made.setAttribute(key, value);
    }
    for (const child of [].concat(children ?? [])) made.append(child);
    return made;
  }
  const html = (name, attributes, children) => element(null, name, attributes, children);
  const svg = (name, attributes, children) => element(SVG, name, attributes, children);
  const titled = (made, text) => (made.append(svg("title", {}, text)), made);

  const number = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (count >= 1024 && unit < units.length - 1) [count, unit] = [count / 1024, unit + 1];
    return `${count.toFixed(unit ? 1 : 0)} ${units[unit]}`;
  }
  function seconds(value) {
    if (value === null || value === undefined) return "–";
    if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
    return value < 120 ? `${value.toFixed(1)} s` : `${(value / 60).toFixed(1)} min`;
  }

  const STATES = {
    active: ["good", "takes part"],
    joining: ["idle", "not heard yet"],
    suspect: ["warn", "silent"],
    restoring: ["bad", "lost, may come back"],
    evicted: ["gone", "evicted"],
    left: ["gone", "left"],
  };
  const PHASES = {
    idle: "idle", asked: "idle", training: "busy", trained: "busy", reported: "busy",
    counted: "good", late: "warn", refused: "bad", failed: "bad",
  };
  const LINKS = { up: "good", connecting: "gone", suspect: "warn", lost: "bad" };
  const OUTCOMES = { committed: "good", degraded: "warn", aborted: "bad" };
  const domainOf = (node) => node.split("/")[0];
  const shortName = (node) => node.split("/")[1];
  const nodeClass = (node) => (node.state === "active" && ["bad", "warn"].includes(PHASES[node.phase]) ? PHASES[node.phase] : STATES[node.state][0]);

  // How a node is drawn: as it stands, or if an earlier round is looked at as it ended for that one.
  function shownClass(id, node) {
    const round = chosenRound === null ? null : roundAt();
    if (!round || !Object.keys(round.spans).length) return nodeClass(node);
    const span = round.spans[id];
    return span ? PHASES[span.phase] : "gone";
  }

  // The nodes that need a look come first when they are too many to show all.
  function shownNodes() {
    const all = Object.entries(picture.nodes);
    if (all.length <= NODES_DRAWN) return all;
    const calm = (entry) => (nodeClass(entry[1]) === "good" ? 1 : 0);
    return all.sort((a, b) => calm(a) - calm(b)).slice(0, NODES_DRAWN).sort((a, b) => (a[0] < b[0] ? -1 : 1));
  }

  function drawMap() {
    const nodes = shownNodes();
    const names = Object.keys(picture.domains).filter((name) => nodes.some(([node]) => domainOf(node) === name));
    const home = picture.coordinator ? domainOf(picture.coordinator) : names[0];
    const others = names.filter((name) => name !== home);
    const most = Math.max(1, ...names.map((name) => nodes.filter(([node]) => domainOf(node) === name).length));
    // A site is a box of rows of nodes; the coordinator's stands on the left, the others below each other on the right.
    const perRow = Math.min(most, 6);
    const width = Math.max(110, perRow * 42 + 24);
    const height = (name) => Math.ceil(nodes.filter(([node]) => domainOf(node) === name).length / perRow) * 46 + 36;
    const gap = 170;
    const places = {};
    let y = 8;
    for (const name of others) {
      places[name] = { x: width + gap + 8, y };
      y += height(name) + 16;
    }
    const rightHeight = Math.max(0, y - 16);
    if (home !== undefined) places[home] = { x: 8, y: Math.max(8, (rightHeight - height(home)) / 2 + 4) };
    const total = Math.max(rightHeight, home === undefined ? 0 : places[home].y + height(home)) + 8;
    const spots = {};
    for (const name of names) {
      nodes.filter(([node]) => domainOf(node) === name).forEach(([node], index) => {
        spots[node] = { x: places[name].x + 33 + (index % perRow) * 42, y: places[name].y + 42 + Math.floor(index / perRow) * 46 };
      });
    }
    const parts = [];
    // Two sites are joined by one line, whatever number of links their gateways and successors keep; it tells of the one in use.
    const joined = new Map();
    for (const link of picture.links) {
      const key = `${domainOf(link.a)} ${domainOf(link.b)}`;
      joined.set(key, [...(joined.get(key) || []), link]);
    }
    const acts = (node) => node === picture.coordinator || picture.domains[domainOf(node)]?.gateway === node;
    for (const links of joined.values()) {
      const link = links.find((each) => acts(each.a) && acts(each.b)) || links[0];
      const [one, two] = [places[domainOf(link.a)], places[domainOf(link.b)]];
      if (!one || !two) continue;
      const [left, right] = one.x <= two.x ? [domainOf(link.a), domainOf(link.b)] : [domainOf(link.b), domainOf(link.a)];
      const from = { x: places[left].x + width, y: places[left].y + height(left) / 2 };
      // Two sites on the same side meet around the outside.
      const same = places[left].x === places[right].x;
      const to = { x: places[right].x + (same ? width : 0), y: places[right].y + height(right) / 2 };
      const bend = same ? from.x + 40 : (from.x + to.x) / 2;
      const path = `M${from.x},${from.y} C${bend},${from.y} ${bend},${to.y} ${to.x},${to.y}`;
      const told = (each) => [
        each.state === "up" ? null : each.state,
        each.round_trip_ms === null ? null : `${each.round_trip_ms.toFixed(each.round_trip_ms < 10 ? 1 : 0)} ms`,
        each.heartbeat_loss ? `${(each.heartbeat_loss * 100).toFixed(1)} % lost` : null,
      ].filter(Boolean).join(", ");
      const about = links.map((each) => `${each.a} – ${each.b}: ${each.state}${each.reason ? `, ${each.reason}` : ""}; ${told(each)}`).join("\n");
      parts.push(titled(svg("path", { d: path, class: `link ${LINKS[link.state]}` }), about));
      if (!same && others.length <= 12) {
        const codec = link.codec && link.codec !== "none" ? ` · ${link.codec}` : "";
        parts.push(svg("text", { class: "soft", x: to.x - 8, y: to.y - 8, "text-anchor": "end" }, told(link) + codec));
      }
    }
    for (const name of names) {
      const { x, y: top } = places[name];
      const reason = picture.domains[name].reason;
      const box = svg("rect", { class: `site${reason ? " bad" : ""}`, x, y: top, width, height: height(name), rx: 8 });
      parts.push(reason ? titled(box, reason) : box);
      parts.push(svg("text", { x: x + 10, y: top + 17 }, name));
    }
    for (const [id, node] of nodes) {
      const { x, y: middle } = spots[id];
      const roles = [
        id === picture.coordinator ? "coordinator" : null,
        picture.domains[domainOf(id)].gateway === id ? "gateway" : null,
      ].filter(Boolean);
      const about = `${id}: ${STATES[node.state][1]}, ${node.phase}${roles.length ? `, ${roles.join(", ")}` : ""}${node.reason ? `: ${node.reason}` : ""}`;
      const circle = svg("circle", { class: ["node", shownClass(id, node), ...roles].join(" "), cx: x, cy: middle, r: 11, tabindex: 0, role: "button", "aria-label": about, "data-node": id });
      parts.push(titled(circle, about));
      parts.push(svg("text", { class: "soft", x, y: middle + 24, "text-anchor": "middle" }, shortName(id).slice(0, 7)));
    }
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.node : null;
    const whole = others.length ? 2 * width + gap + 60 : width + 16;
    const drawing = svg("svg", { viewBox: `0 0 ${whole} ${Math.max(total, 60)}`, role: "group", "aria-label": "sites, nodes and links" }, parts);
    byId("map").replaceChildren(drawing);
    // Whoever walks through the nodes with the keyboard stays where they are.
    if (focused) [...drawing.querySelectorAll("circle")].find((circle) => circle.dataset.node === focused)?.focus({ preventScroll: true });
    const counts = {};
    for (const node of Object.values(picture.nodes)) counts[node.state] = (counts[node.state] || 0) + 1;
    byId("legend").replaceChildren(...Object.entries(STATES).filter(([state]) => counts[state]).map(([state, [color]]) =>
      html("span", {}, [html("span", { class: `dot ${color}` }), `${counts[state]} ${state}`])));
  }

  // A node's clock beside the coordinator's, if they are two.
  const clock = (of) => (!of ? "–" : `${of.offset_ms === null ? "" : `${of.offset_ms.toFixed(3)} ms `}± ${of.bound_ms.toFixed(3)} ms`);
  function left(seconds) {
    if (seconds >= 2 * 86400) return `${Math.floor(seconds / 86400)} d`;
    return seconds >= 7200 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 60)} min`;
  }
  const CERTIFICATE_SOON_S = 86400; // those that we issue are good for a week
  // What a queue and a link hold at most, as the shell and the link have it.
  const QUEUE = 1024;
  const OUTBOX = 64 * 1024 * 1024;
  const OUTBOX_MESSAGES = 4096;
  const vitals = (of) => (of ? [
    `its process has ${bytes(of.memory)} of memory; the longest queue holds ${of.queued} of ${QUEUE} messages; ${of.unacknowledged} messages (${bytes(of.unacknowledged_bytes)} of ${bytes(OUTBOX)}) wait for a peer`,
    of.certificate_s ? `its certificate is good for ${left(of.certificate_s)}` : "its certificate is not good any more",
  ] : []);

  function drawNode() {
    const node = chosenNode && picture.nodes[chosenNode];
    if (!node) return byId("node").replaceChildren();
    const lines = [
      `${STATES[node.state][1]} (${node.rung}) since ${seconds(node.since)}; in its round: ${node.phase}`,
      node.reason ? `because: ${node.reason}` : null,
      `counted ${node.counted}, late ${node.late}, refused ${node.refused}, made shorter ${node.clipped}, failed ${node.failed}; last counted in round ${node.counted_in}`,
      `holds model ${node.model}; last training: loss ${number(node.loss, 4)} on ${node.samples} rows`,
      node.steps ? `given ${node.steps} local steps in the last round; ${number(node.step_s * 1000, 3)} ms each` : null,
      node.diverged ? `${node.diverged} times its copy of a model had changed in its memory` : null,
      node.clock ? `its clock is ${clock(node.clock)} from the coordinator's` : null,
      ...vitals(node.vitals),
    ].filter(Boolean);
    byId("node").replaceChildren(html("strong", {}, chosenNode), ...lines.map((line) => html("div", {}, line)));
  }

  const roundAt = () => {
    const rounds = picture.rounds;
    if (chosenRound === null) return rounds[rounds.length - 1];
    return rounds.find((round) => round.round === chosenRound) || rounds[rounds.length - 1];
  };

  function drawRound() {
    const round = roundAt();
    const pick = byId("pick");
    if (!round) {
      byId("outcome").replaceChildren("no round has been opened");
      return byId("timeline").replaceChildren();
    }
    pick.min = picture.rounds[0].round;
    pick.max = picture.rounds[picture.rounds.length - 1].round;
    pick.value = round.round;
    pick.setAttribute("aria-valuetext", `round ${round.round}`);
    byId("newest").checked = chosenRound === null;
    const words = round.state === null
      ? [html("span", { class: "dot busy" }), `round ${round.round} is open: ${Object.values(round.spans).filter((span) => span.reported !== null).length} of ${round.asked} reports`]
      : [html("span", { class: `dot ${OUTCOMES[round.state]}` }), `round ${round.round} ${round.state} after ${seconds(round.elapsed_s)}: ${round.counted} of ${round.asked} counted${round.reason && round.state === "aborted" ? `; ${round.reason}` : ""}`];
    if (round.late.length) words.push(`; late: ${round.late.join(", ")}`);
    for (const [node, why] of round.refused) words.push(`; ${node} refused: ${why}`);
    if (round.limit) words.push(html("div", {}, round.limit));
    byId("outcome").replaceChildren(...words);
    const spans = Object.entries(round.spans);
    if (!spans.length) return byId("timeline").replaceChildren(html("p", { class: "legend" }, "what nodes did in this round is not kept any more"));
    const end = Math.max(round.elapsed_s ?? picture.at - round.opened, ...spans.map(([, span]) => span.reported ?? span.trained ?? 0), 1e-3);
    const [labels, wide, line] = [110, 480, 18];
    const x = (at) => labels + (Math.min(Math.max(at, 0), end) / end) * (wide - 8);
    const tall = spans.length * line + 34;
    const parts = [];
    for (const mark of round.marks) {
      parts.push(titled(svg("line", { class: "cursor", x1: x(mark.at), x2: x(mark.at), y1: 4, y2: tall - 26 }), `${mark.what} after ${seconds(mark.at)}`));
    }
    spans.forEach(([id, span], row) => {
      const top = 6 + row * line;
      const done = span.trained ?? span.reported ?? (round.state === null && span.began !== null ? end : null);
      const about = `${id}: ${span.phase}; began after ${seconds(span.began)}, trained after ${seconds(span.trained)}, reported after ${seconds(span.reported)}`;
      const bars = [titled(svg("rect", { class: "wait", x: x(0), y: top + 5, width: x(end) - x(0), height: 3 }), about)];
      if (done !== null) {
        const from = span.began ?? 0;
        bars.push(titled(svg("rect", { class: PHASES[span.phase], x: x(from), y: top + 1, width: Math.max(2, x(done) - x(from)), height: 11, rx: 2 }), about));
      }
      if (span.reported !== null) bars.push(titled(svg("circle", { class: PHASES[span.phase], cx: x(span.reported), cy: top + 6.5, r: 4 }), about));
      const shown = id.length > 17 ? `${id.slice(0, 16)}…` : id;
      parts.push(titled(svg("text", { class: "soft", x: labels - 6, y: top + 10, "text-anchor": "end" }, shown), about), ...bars);
    });
    for (const share of [0, 0.5, 1]) {
      parts.push(svg("text", { class: "soft", x: x(end * share), y: tall - 8, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, seconds(end * share)));
    }
    byId("timeline").replaceChildren(svg("svg", { viewBox: `0 0 ${labels + wide} ${tall}`, role: "img", "aria-label": `what each node did in round ${round.round}` }, parts));
  }

  // A chart of one or two series over rounds; arrow keys and the pointer move through it.
  const cursors = {};
  function drawChart(id, title, series, format) {
    const rounds = picture.rounds.filter((round) => round.state !== null && series.some(({ of }) => of(round) !== null));
    const place = byId(id);
    if (!rounds.length) return place.replaceChildren(html("p", { class: "legend" }, `${title}: no round has ended`));
    const [left, wide, tall] = [64, 520, 150];
    const values = rounds.flatMap((round) => series.map(({ of }) => of(round))).filter((value) => value !== null);
    let [low, high] = [Math.min(0, ...values), Math.max(...values)];
    if (high <= low) high = low + 1;
    const [first, last] = [rounds[0].round, rounds[rounds.length - 1].round];
    const x = (round) => left + (last === first ? 0.5 : (round - first) / (last - first)) * (wide - left - 10);
    const y = (value) => 24 + (1 - (value - low) / (high - low)) * (tall - 48);
    const parts = [svg("path", { class: "axis", d: `M${left},20 V${tall - 24} H${wide - 10}` })];
    for (const value of [low, (low + high) / 2, high]) parts.push(svg("text", { class: "soft", x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
    parts.push(svg("text", { class: "soft", x: left, y: tall - 8 }, `round ${first}`));
    if (last !== first) parts.push(svg("text", { class: "soft", x: wide - 10, y: tall - 8, "text-anchor": "end" }, `${last}`));
    series.forEach(({ of }, index) => {
      const shown = rounds.filter((round) => of(round) !== null);
      const points = shown.map((round) => `${x(round.round).toFixed(1)},${y(of(round)).toFixed(1)}`);
      parts.push(svg("polyline", { class: index ? "second" : "curve", points: points.join(" ") }));
      if (shown.length === 1) parts.push(svg("circle", { class: "busy", cx: x(shown[0].round), cy: y(of(shown[0])), r: 3 }));
    });
    for (const round of rounds.filter((round) => round.state !== "committed").slice(-200)) {
      const told = `round ${round.round} ${round.state}: ${round.reason}`;
      parts.push(titled(svg("circle", { class: OUTCOMES[round.state], cx: x(round.round), cy: tall - 24, r: 3 }), told));
    }
    const at = rounds.find((round) => round.round === cursors[id]) || rounds[rounds.length - 1];
    if (cursors[id] !== undefined) parts.push(svg("line", { class: "cursor", x1: x(at.round), x2: x(at.round), y1: 20, y2: tall - 24 }));
    const told = series.map(({ name, of }) => `${name} ${of(at) === null ? "–" : format(of(at))}`).join(", ");
    parts.push(svg("text", { x: left, y: 13 }, `${title} – round ${at.round}: ${told}`));
    const move = (round) => { cursors[id] = round; drawCharts(); };
    const drawing = svg("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `${title} by round; round ${at.round}: ${told}` }, parts);
    drawing.onpointermove = (event) => {
      const box = drawing.getBoundingClientRect();
      const near = ((event.clientX - box.left) / box.width) * wide;
      const best = rounds.reduce((a, b) => (Math.abs(x(b.round) - near) < Math.abs(x(a.round) - near) ? b : a));
      if (best.round !== cursors[id]) move(best.round);
    };
    place.onpointerleave = () => { delete cursors[id]; drawCharts(); };
    place.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      move(rounds[Math.min(Math.max(rounds.indexOf(at) + step, 0), rounds.length - 1)].round);
    };
    place.replaceChildren(drawing);
  }

  function drawCharts() {
    drawChart("accuracy", "Accuracy", [{ name: "accuracy", of: (round) => round.accuracy }], (value) => value.toFixed(3));
    drawChart("loss", "Loss", [{ name: "loss", of: (round) => round.loss }], (value) => value.toFixed(3));
    drawChart("bytes", "Bytes", [
      { name: "to the coordinator", of: (round) => round.bytes_up },
      { name: "from it", of: (round) => round.bytes_down },
    ], bytes);
    drawChart("seconds", "Time", [{ name: "took", of: (round) => round.elapsed_s }], seconds);
  }

  function fillTable(id, heads, rows) {
    const cell = (kind, [text, style, title]) => html(kind, { class: style, title, scope: kind === "th" ? "col" : null }, text);
    const head = html("thead", {}, html("tr", {}, heads.map((entry) => cell("th", entry))));
    const body = html("tbody", {}, rows.map((row) => html("tr", {}, row.map((entry) => cell("td", entry)))));
    byId(id).replaceChildren(head, body);
  }

  function measured(of) {
    if (!of) return [["–", "number"], ["–", "number"], ["–", "number"]];
    const soon = of.certificate_s < CERTIFICATE_SOON_S;
    return [
      [bytes(of.memory), "number"],
      [`${of.queued}`, of.queued > QUEUE / 2 ? "number warn" : "number"],
      [left(of.certificate_s), of.certificate_s === 0 ? "number bad" : soon ? "number warn" : "number"],
    ];
  }

  // What a codec or a lossless stage makes of what goes one way over a link.
  function smaller({ sums, models }) {
    const of = (name, { plain, travelled }) => (plain ? `${name} ${bytes(plain)} as ${bytes(travelled)}` : null);
    const [plain, travelled] = [sums.plain + models.plain, sums.travelled + models.travelled];
    const told = [of("sums", sums), of("models", models)].filter(Boolean).join("; ");
    return [plain && travelled ? `${(plain / travelled).toFixed(1)} times` : "–", "number", told || null];
  }
  // How full the queue is that a link keeps until the other end has it.
  const waits = (way) => (way.unacknowledged === null ? ["–", "number"] : [
    `${Math.round((100 * way.unacknowledged_bytes) / OUTBOX)} %`,
    way.unacknowledged_bytes > OUTBOX / 2 || way.unacknowledged > OUTBOX_MESSAGES / 2 ? "number warn" : "number",
    `${way.unacknowledged} of ${OUTBOX_MESSAGES} messages, ${bytes(way.unacknowledged_bytes)} of ${bytes(OUTBOX)} are not acknowledged`,
  ]);

  function drawTables() {
    fillTable("links", [["link"], ["state"], ["round trip", "number"], ["heartbeats lost", "number"], ["a to b", "number"], ["b to a", "number"], ["codec"], ["a to b smaller", "number"], ["b to a smaller", "number"], ["a to b queue", "number"], ["b to a queue", "number"], ["went down", "number"], ["why"]],
      picture.links.slice(0, NODES_DRAWN).map((link) => [
        [`${link.a} – ${link.b}`], [link.state, LINKS[link.state]],
        [link.round_trip_ms === null ? "–" : `${link.round_trip_ms.toFixed(1)} ms`, "number"],
        [link.heartbeat_loss === null ? "–" : `${(link.heartbeat_loss * 100).toFixed(1)} %`, "number"],
        [bytes(link.a_to_b.bytes), "number"], [bytes(link.b_to_a.bytes), "number"], [link.codec || "–"],
        smaller(link.a_to_b), smaller(link.b_to_a), waits(link.a_to_b), waits(link.b_to_a),
        [String(link.downs), "number"], [link.reason, "why"],
      ]));
    fillTable("nodes", [["node"], ["state"], ["rung"], ["in its round"], ["counted", "number"], ["late", "number"], ["refused", "number"], ["made shorter", "number"], ["changed", "number"], ["last in", "number"], ["loss", "number"], ["clock", "number"], ["memory", "number"], ["queue", "number"], ["certificate", "number"], ["why"]],
      shownNodes().map(([id, node]) => [
        [id], [node.state, STATES[node.state][0]], [node.rung], [node.phase, PHASES[node.phase]],
        [String(node.counted), "number"], [String(node.late), "number"], [String(node.refused), "number"], [String(node.clipped), "number"],
        [String(node.diverged), node.diverged ? "number bad" : "number"],
        [String(node.counted_in), "number"], [number(node.loss, 4), "number"], [clock(node.clock), "number"],
        ...measured(node.vitals), [node.reason, "why"],
      ]));
    byId("notices").replaceChildren(...[...picture.notices].reverse().map((notice) => html("li", {}, [html("time", {}, seconds(notice.at)), notice.what])));
    if (!picture.notices.length) byId("notices").replaceChildren(html("li", {}, "nothing went wrong"));
  }

  function draw() {
    const { totals, finished, paused } = picture;
    const name = picture.federation || "a federation";
    byId("name").replaceChildren(`Tombolo: ${name}`);
    document.title = `${name} – Tombolo`;
    const ended = totals.committed + totals.degraded + totals.aborted;
    const words = [
      `${ended}${picture.planned ? ` of ${picture.planned}` : ""} rounds: ${totals.committed} committed, ${totals.degraded} degraded, ${totals.aborted} aborted`,
      `${bytes(totals.bytes)} between sites`, `view ${picture.epoch}`, seconds(picture.at),
    ];
    const watched = [
      [totals.diverged, "copies of models had changed"], [totals.deadlocks, "deadlocks"], [totals.stalls, "stalls"],
    ].filter(([count]) => count).map(([count, what]) => `${count} ${what}`);
    if (watched.length) words.push(`the watch: ${watched.join(", ")}`);
    if (totals.missed) words.push(`${totals.missed} events missed`);
    if (paused) words.push(`paused by ${paused.by} since ${new Date(paused.since * 1000).toISOString()}`);
    if (finished) words.push(finished.reason ? `over: ${finished.reason}` : "the run is over");
    byId("summary").replaceChildren(words.join(" · "));
    const record = picture.record;
    byId("record").replaceChildren(!record ? "" : `record: ${record.size} leaves, to round ${record.round}; its last head is cosigned by ${record.by.join(", ") || "nobody else"}${record.behind.length ? `, not yet by ${record.behind.join(", ")}` : ""}`);
    drawMap(); drawNode(); drawRound(); drawCharts(); drawTables();
  }

  function choose(round) {
    chosenRound = round;
    drawRound();
    drawMap();
  }
  // A run is shown again round by round, from the one that is chosen on, or from the first.
  let replay = null;
  function play(on) {
    clearInterval(replay);
    replay = null;
    byId("play").setAttribute("aria-pressed", String(on));
    byId("play").replaceChildren(on ? "stop" : "replay");
    if (!on || !picture || !picture.rounds.length) return;
    if (chosenRound === null) choose(picture.rounds[0].round);
    replay = setInterval(() => {
      const next = picture.rounds[picture.rounds.indexOf(roundAt()) + 1];
      if (!next) { play(false); return choose(null); }
      choose(next.round);
    }, REPLAY_MS);
  }
  byId("play").addEventListener("click", () => play(replay === null));
  byId("pick").addEventListener("input", (event) => choose(Number(event.target.value)));
  byId("newest").addEventListener("change", (event) => choose(event.target.checked ? null : roundAt()?.round ?? null));
  const stepRound = (step) => {
    const at = picture ? picture.rounds.indexOf(roundAt()) : -1;
    const next = at < 0 ? null : picture.rounds[at + step];
    if (next) choose(next.round);
  };
  byId("earlier").addEventListener("click", () => stepRound(-1));
  byId("later").addEventListener("click", () => stepRound(1));
  const pickNode = (event) => {
    const id = event.target.dataset ? event.target.dataset.node : null;
    if (!id) return;
    chosenNode = chosenNode === id ? null : id;
    drawNode();
  };
  byId("map").addEventListener("click", pickNode);
  byId("map").addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pickNode(event); }
  });

  const inlined = byId("picture");
  if (inlined) {
    picture = JSON.parse(inlined.textContent);
    byId("connection").replaceChildren("from the record of the run");
    draw();
    return;
  }

  // Live. The token stands behind the #, which a browser sends to nobody.
  const token = new URLSearchParams(location.hash.slice(1)).get("token") || "";
  const say = (text, bad) => {
    byId("connection").replaceChildren(text);
    byId("connection").classList.toggle("bad", Boolean(bad));
  };
  async function ask(path) {
    const answer = await fetch(path, { headers: { authorization: `Bearer ${token}` }, cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer;
  }
  let [due, running] = [false, false];
  async function refresh() {
    due = true;
    if (running) return;
    running = true;
    while (due) {
      due = false;
      try {
        picture = await (await ask("state.json")).json();
        draw();
      } catch (error) {
        say(String(error.message || error), true);
      }
      await new Promise((wake) => setTimeout(wake, REFRESH_MS));
    }
    running = false;
  }
  // Reads the stream of events; fetch can send the token in a header, EventSource cannot.
  async function listen() {
    const reader = (await ask("events")).body.pipeThrough(new TextDecoderStream()).getReader();
    say("live");
    refresh();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "the run's process is gone; this is what it showed last";
      const messages = (rest + value).split("\n\n");
      rest = messages.pop();
      for (const message of messages) {
        if (message.startsWith("event: past")) refresh();
        if (message.startsWith("event: end")) { refresh(); return "the run is over; this is its end"; }
        if (message.startsWith("event: dropped")) return "this page did not keep up; it begins anew";
      }
    }
  }
  (async () => {
    for (;;) {
      try {
        const why = await listen();
        say(why, !why.startsWith("the run is over"));
        if (why.startsWith("the run is over")) return;
      } catch (error) {
        say(`${error.message || error}${picture ? "; this is what it showed last" : ""}`, true);
      }
      await new Promise((wake) => setTimeout(wake, RETRY_MS));
    }
  })();
})();
