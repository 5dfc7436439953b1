// The page's sections, in the order in which they are read. A run has some of them: one without
// communication, say, has no section about it.

const data = JSON.parse(document.getElementById("data").textContent);
const lines = data.lines || [];
const steps = lines.filter((line) => "step" in line);
const rows = lines.filter((line) => "row" in line).map((line) => line.row);
// A page without a run: only the formulas.
const isTable = data.formulas && !lines.some((line) => line.summary?.configuration?.model);
const summary = isTable ? {} : (lines.find((line) => "summary" in line) || {summary: {}}).summary;
const known = ["configuration", "verify", "memory", "memory_by_rank", "communication",
    "communication_by_group", "speed", "times_by_rank", "checksums"];

function section(title, ...children) { return h("section", {}, h("h2", {}, title), ...children); }

// ---- what ran -----------------------------------------------------------------------------------
function header() {
    const c = summary.configuration || {}, speed = summary.speed || {}, memory = summary.memory;
    const title = isTable ? "What a rank holds" : c.chapter || "ultrascale.cpp";
    document.title = title;
    const tiles = [];
    const tile = (name, value) => tiles.push(h("div", {class: "tile"}, h("b", {}, value), name));
    if (c.ranks) tile(c.ranks === 1 ? "rank" : "ranks", c.ranks);
    if (c.parameters) tile(`parameters (${c.model})`, digits(c.parameters / 1e6, 4) + " M");
    if (steps.length)  // null: it was not finite
        tile(`loss after step ${steps.at(-1).step}`, (steps.at(-1).loss ?? NaN).toFixed(4));
    if (speed.step_ms) tile("a step (median)", milliseconds(speed.step_ms));
    if (speed.tokens_per_second) tile("tokens/s, all ranks", digits(speed.tokens_per_second));
    if (speed.mfu) tile("MFU", (100 * speed.mfu).toFixed(1) + " %");
    if (memory && memory.peak) tile(memory.peak.measured ? "peak memory, rank 0" : "predicted peak",
        bytes(memory.peak.measured || memory.peak.predicted));
    return h("header", {}, h("h1", {}, title), c.technique ? h("p", {}, c.technique) : null,
        c.device ? h("p", {}, c.device) : null, h("div", {class: "tiles"}, tiles));
}

// " on n2", if the run had several hosts.
function onHost(rank) {
    const {hosts = []} = summary.configuration || {};
    return new Set(hosts).size > 1 ? ` on ${hosts[rank]}` : "";
}

function configuration() {
    const c = summary.configuration;
    if (!c) return null;
    const {options = {}, layout = {}, hosts = [], recompute = {}, ...facts} = c;
    facts.hosts = [...new Set(hosts)].join(", ");
    facts.recompute = Object.entries(recompute).filter(([, layers]) => layers > 0)
        .map(([kind, layers]) => `${kind} in ${layers} of the layers`).join(", ") || "none";
    const grid = Object.entries(layout).map(([axis, ranks]) => `${axis} ${ranks}`).join(" × ");
    return section("Configuration", pairsTable({...facts, ...(grid ? {layout: grid} : {})}),
        Object.keys(options).length ? h("details", {}, h("summary", {}, "all options"),
            pairsTable(Object.fromEntries(Object.entries(options).map(
                ([name, value]) => [name, value === "" ? "(none)" : value])))) : null);
}

function verify() {
    const v = summary.verify;
    if (!v || !v.result) return null;  // --no-verify
    const checks = {gradient: "gradient of step 1, relative L2 error",
        loss_step_1: "loss of step 1, relative difference",
        loss_later: "losses of later steps, largest difference",
        weights: "weights afterwards, relative L2 error"};
    const shown = Object.entries(checks).filter(([key]) => key in v).map(([key, what]) => ({
        what, error: v[key], bound: v[key + "_bound"], "bound is": v[key + "_bound_is"],
        result: v[key] <= v[key + "_bound"] ? "ok" : "missed"}));
    return section("Compared with one device",
        h("p", {class: v.result === "ok" || v.result.startsWith("not") ? "good" : "bad"},
            v.result === "ok" ? "The run trains as one plain device does." : `Result: ${v.result}`),
        shown.length ? table(shown) : null);
}

// ---- memory and communication -------------------------------------------------------------------
function memory() {
    if (!summary.memory) return null;
    const byRank = summary.memory_by_rank || [summary.memory], bars = h("div", {class: "keep"});
    const colours = {parameters: "parameters", gradients: "gradients", optimizer: "optimizer",
        activations: "activations", communication: "communication", "on the host": "host",
        "checkpoint copies": "host"};
    const show = (memory) => {
        const largest = Math.max(...Object.values(memory).flatMap(
            (one) => [one.predicted || 0, one.measured || 0]), 1);
        const bar = (kind, value, colour) => value === undefined ? [] : [
            h("div", {class: `track ${kind}`}, h("span", {style:
                `width: ${100 * value / largest}%; background: var(--${colour})`})),
            h("div", {class: "value"}, bytes(value))];
        bars.replaceChildren(...Object.entries(memory).map(([name, {predicted, measured}]) => {
            const colour = colours[name.split(",")[0]] || "workspace";
            return h("div", {class: "pair"}, h("div", {class: "name"}, name),
                bar("predicted", predicted, colour),
                predicted !== undefined && measured !== undefined ? h("div", {class: "name"}) : null,
                bar("measured", measured, colour));
        }));
    };
    show(byRank[0]);
    const choice = byRank.length < 2 ? null : h("div", {class: "tools"}, h("label", {}, "rank ",
        h("select", {id: "memory-rank", change: (event) => show(byRank[event.target.value])},
            byRank.map((_, rank) => h("option", {value: rank}, rank + onHost(rank))))));
    return section("Memory of a rank", h("p", {class: "soft"}, "Dashed: predicted by formula from " +
        "the configuration alone. Filled: measured."), choice, bars);
}

function communicationTable(kinds) {
    return table(Object.entries(kinds).map(([kind, of]) => ({"": kind,
        "calls, predicted": of.predicted_calls, "calls": of.calls,
        "tensors_bytes": of.tensor_bytes, "sent, predicted_bytes": of.predicted_sent_bytes,
        "sent_bytes": of.sent_bytes,
        ...(of.seconds === undefined ? {}
            : {"takes_ms": 1e3 * of.seconds, "exposed_ms": 1e3 * of.exposed_seconds})})));
}

function communication() {
    const kinds = summary.communication, groups = summary.communication_by_group || {};
    if (!kinds || !Object.keys(kinds).length) return null;
    return section("Communication of rank 0 in a step", communicationTable(kinds),
        h("p", {class: "soft"}, "Sent: what this rank sends, by the algorithm's formula. Exposed: " +
            "the computation waits for it; the rest is hidden behind computation."),
        Object.keys(groups).length < 2 ? null : h("details", {}, h("summary", {}, "by group of ranks"),
            Object.entries(groups).map(([name, of]) => [h("h3", {}, name), communicationTable(of)])));
}

// ---- training, tables, pictures -----------------------------------------------------------------
function loss() {
    const of = (key) => steps.filter((line) => typeof line[key] === "number")
        .map((line) => [line.step, line[key]]);
    if (of("loss").length < 2) return null;
    const series = [{name: "loss", colour: "backward", points: of("loss")}];
    const validation = of("val_loss");
    if (validation.length)
        series.push({name: "validation", colour: "gradients", points: validation});
    return section("Loss", h("div", {class: "keep"}, curves(series, "step", "loss"),
        validation.length ? legend({training: "backward", validation: "gradients"}) : null),
        h("details", {}, h("summary", {}, "every step"), table(steps)));
}

// Rows with the same columns are a table; a microscope's rows are a kernel's source.
function tables() {
    const groups = new Map();
    for (const row of rows.filter((row) => row.table !== "memory_formulas")) {
        const key = row.table === "microscope" ? `microscope ${row.kernel}`
            : Object.keys(row).join();
        groups.set(key, [...(groups.get(key) || []), row]);
    }
    return groups.size ? section("Tables", ...[...groups.values()].map(tableOfRows)) : null;
}

function tableOfRows(group) {
    const shown = group.map(({table: _, ...row}) => row);
    const title = group[0].table === "microscope" ? `${group[0].kernel}, line by line`
        : group[0].table && words(group[0].table);
    return h("div", {}, title ? h("h3", {}, title) : null, table(shown));
}

function timesByRank() {
    const ranks = summary.times_by_rank || [];
    const phases = [...new Set(ranks.flatMap((rank) => Object.keys(rank)))];
    return phases.length ? section("Milliseconds a step, by rank", table(phases.map((phase) =>
        Object.fromEntries([["phase", phase], ...ranks.slice(0, 16).map((rank, i) =>
            [`rank ${i}_ms`, rank[phase]?.ms])])))) : null;
}

function checksums() {
    const of = summary.checksums;
    const first = (kind) => kind.first
        ? `step ${kind.first.step}, ${kind.first.name}: ranks ${kind.first.ranks.join(", ")}` : "";
    return of ? section("Checksums of copies", table(["data", "gradients", "weights"].map((name) =>
        ({copies: name, compared: of[name].compared, different: of[name].different,
            "first different": first(of[name])})))) : null;
}

function others() {
    const names = Object.keys(summary).filter((name) => !known.includes(name));
    const scalars = names.filter((name) => typeof summary[name] !== "object");
    const objects = names.filter((name) => typeof summary[name] === "object");
    return names.length ? section("More figures",
        pairsTable(Object.fromEntries(scalars.map((name) => [name, summary[name]]))),
        objects.map((name) => [h("h3", {}, words(name)), pairsTable(summary[name])])) : null;
}

function pictures() {
    if (!(data.pictures || []).length) return null;
    // As images, each a document of its own: their styles and textures have the same names.
    return section("Pictures", data.pictures.map(({name, svg}) => h("img", {
        alt: name, src: "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg)})));
}

document.getElementById("page").append(...[header(), verify(), memory(),
    timeline(data.timeline || []), communication(), timesByRank(), checksums(), loss(), tables(),
    pictures(), others(), configuration(), memoryFormulas(data.formulas)].filter(Boolean));
