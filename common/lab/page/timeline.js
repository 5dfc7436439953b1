// The timeline of all ranks: for each rank its phases, what it computes, what it communicates.
// Wheel, pinch or the buttons zoom, dragging and the arrow keys move, a click tells what is there.

const lanes = {phase: 12, compute: 18, communication: 12}, rankHeight = 56, axisHeight = 22;

function roleOf(lane, name, ranks) {
    if (ranks > 1) return lane === "compute" ? "exposed" : "communication";
    if (lane !== "compute" && !lane.startsWith("phase")) return "communication";
    if (/adamw|update/.test(name)) return "update";
    if (/backward|dX|dW|delta|^[BW]\d/.test(name)) return "backward";
    return /forward|^F\d/.test(name) ? "forward" : "workspace";
}

function readSpans(timeline) {
    const all = [];
    timeline.forEach((rank, number) => rank.spans.forEach(
        ([lane, name, begin, duration, gflop, sent, ranks]) => {
            const of = rank.lanes[lane], row = of in lanes ? of : "communication";
            all.push({rank: number, row, lane: of, name: rank.names[name], begin,
                end: begin + duration, gflop, sent, role: roleOf(of, rank.names[name], ranks)});
        }));
    const first = Math.min(...all.map((span) => span.begin));
    for (const span of all) [span.begin, span.end] = [span.begin - first, span.end - first];
    return all.sort((a, b) => (b.end - b.begin) - (a.end - a.begin));  // short ones on top
}

function timeline(timelineOfRanks) {
    const spans = timelineOfRanks.some((rank) => rank.spans.length) ? readSpans(timelineOfRanks) : [];
    if (!spans.length) return null;
    const last = spans.reduce((most, span) => Math.max(most, span.end), 0);
    const height = axisHeight + rankHeight * timelineOfRanks.length;
    const canvas = h("canvas", {id: "timeline", tabindex: 0, role: "img",
        "aria-label": "Timeline of all ranks", style: `height: ${height}px`});
    const told = h("output", {id: "told"}, "Click on the timeline to see what ran there.");
    let from = 0, until = last, chosen = null;
    const top = {phase: 4, compute: 17, communication: 37}, label = 44;
    const widthOf = () => canvas.clientWidth || 900;
    const xOf = (time, width) => label + (width - label) * (time - from) / (until - from);
    const timeOf = (x) => from + (until - from) * (x - label) / (widthOf() - label);

    const draw = () => {
        const scale = window.devicePixelRatio || 1, width = widthOf();
        [canvas.width, canvas.height] = [width * scale, height * scale];
        const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
        const colour = (name) => style.getPropertyValue("--" + name);
        pen.scale(scale, scale);
        pen.font = "12px system-ui, sans-serif";
        for (const at of ticks(from / 1e3, until / 1e3, Math.max(2, width / 150))) {
            pen.fillStyle = colour("faint");
            pen.fillRect(xOf(at * 1e3, width), axisHeight, 1, height);
            pen.fillStyle = colour("soft");
            pen.fillText(`${at} ms`, xOf(at * 1e3, width) + 3, 14);
        }
        pen.save();
        pen.beginPath();
        pen.rect(label, 0, width, height);
        pen.clip();
        for (const span of spans) {
            if (span.end < from || span.begin > until) continue;
            const x = xOf(span.begin, width), wide = Math.max(xOf(span.end, width) - x, 0.5);
            const y = axisHeight + rankHeight * span.rank + top[span.row];
            pen.fillStyle = colour(span.role);
            pen.fillRect(x, y, wide, lanes[span.row]);
            if (wide > 4) {
                pen.strokeStyle = colour(span === chosen ? "bad" : "paper");
                pen.strokeRect(x, y, wide, lanes[span.row]);
            }
            if (wide > 46) {
                const shown = Math.max(x, label) + 3, room = x + wide - shown - 2;
                pen.fillStyle = colour("on-fill");
                const fits = span.name.slice(0, Math.max(0, Math.floor(room / 6.5)));
                pen.fillText(fits, shown, y + lanes[span.row] - (span.row === "compute" ? 5 : 2));
            }
        }
        pen.restore();
        pen.fillStyle = colour("ink");
        timelineOfRanks.forEach((_, rank) =>
            pen.fillText(`rank ${rank}`, 0, axisHeight + rankHeight * rank + 30));
    };
    const show = (begin, end) => {
        const length = Math.min(Math.max(end - begin, 1), last);
        from = Math.min(Math.max(begin, 0), last - length);
        until = from + length;
        draw();
    };
    const zoom = (by, around = (from + until) / 2) =>
        show(around - (around - from) * by, around + (until - around) * by);
    const tell = (x, y) => {
        const time = timeOf(x), rank = Math.floor((y - axisHeight) / rankHeight);
        const inside = (y - axisHeight) % rankHeight;
        const row = inside >= 36 ? "communication" : inside >= 16 ? "compute" : "phase";
        const near = 3 * (until - from) / widthOf();
        chosen = spans.findLast((span) => span.rank === rank && span.row === row &&
            span.begin - near <= time && time <= span.end + near) || null;
        const more = chosen && [chosen.gflop ? `${digits(chosen.gflop)} GFLOP` : "",
            chosen.sent ? bytes(chosen.sent) : ""].filter(Boolean).join(", ");
        told.textContent = !chosen ? "Nothing runs there: the rank waits."
            : `rank ${rank}, ${chosen.lane}: ${chosen.name}, ` +
              `${milliseconds((chosen.end - chosen.begin) / 1e3)}${more ? ", " + more : ""}`;
        draw();
    };

    canvas.addEventListener("wheel", (event) => {
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, timeOf(event.offsetX));
    }, {passive: false});
    const fingers = new Map();
    let moved = 0;
    canvas.addEventListener("pointerdown", (event) => {
        canvas.setPointerCapture(event.pointerId);
        fingers.set(event.pointerId, event.offsetX);
        moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
        if (!fingers.has(event.pointerId)) return;
        const before = fingers.get(event.pointerId), by = event.offsetX - before;
        const others = [...fingers].filter(([id]) => id !== event.pointerId);
        fingers.set(event.pointerId, event.offsetX);
        moved += Math.abs(by);
        if (others.length === 0) {
            const shift = -by * (until - from) / (widthOf() - label);
            show(from + shift, until + shift);
        } else {
            const other = others[0][1], wide = Math.max(Math.abs(event.offsetX - other), 10);
            zoom(Math.max(Math.abs(before - other), 10) / wide, timeOf(other));
        }
    });
    for (const name of ["pointerup", "pointercancel"])
        canvas.addEventListener(name, (event) => {
            const wasOne = fingers.size === 1;
            fingers.delete(event.pointerId);
            if (name === "pointerup" && wasOne && moved < 4) tell(event.offsetX, event.offsetY);
        });
    canvas.addEventListener("keydown", (event) => {
        const step = (until - from) / 5;
        const does = {ArrowLeft: () => show(from - step, until - step), "+": () => zoom(0.5),
            ArrowRight: () => show(from + step, until + step), "-": () => zoom(2)}[event.key];
        if (does) event.preventDefault(), does();
    });
    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    for (const name of ["beforeprint", "afterprint"]) window.addEventListener(name, draw);

    const left = timelineOfRanks.reduce((sum, rank) => sum + rank.left_out, 0);
    return section("Timeline of all ranks", h("p", {class: "soft"}, "Two steps after warm-up. In " +
        "each rank: phases, what is computed, what is communicated. Where the middle row is empty, " +
        "the rank waits." + (left ? ` ${left} later events are left out.` : "")),
        h("div", {class: "tools"},
            h("button", {id: "zoom-in", click: () => zoom(0.5)}, "zoom in"),
            h("button", {id: "zoom-out", click: () => zoom(2)}, "zoom out"),
            h("button", {id: "left", click: () => show(2 * from - until, from)}, "←"),
            h("button", {id: "right", click: () => show(until, 2 * until - from)}, "→"),
            h("button", {id: "whole", click: () => show(0, last)}, "all")),
        h("div", {class: "keep"}, canvas), told,
        legend({forward: "forward", backward: "backward", update: "update",
            communication: "communication", "communication that computation waits for": "exposed",
            other: "workspace"}));
}
