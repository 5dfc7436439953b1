// What a rank holds: the formulas of lab/predict/memory_formulas.inc, with sliders.

const memoryBars = {parameters: ["P", "parameters", "parameters", "book_parameters"],
    gradients: ["G", "gradients", "gradients", "book_gradients"],
    states: ["S", "optimizer states", "optimizer", "book_states"],
    activations: ["A", "activations, kept", "activations", "book_activations"],
    work: ["W", "the operation at work", "workspace"],
    buffers: ["B", "ZeRO's buffers", "communication"]};
const memoryDevices = [80e9, 141e9];

// The table's rows as a function of settings. It returns {refused} or all formulas' values.
function memoryFunction({settings, refused, formulas}) {
    const names = settings.map(([, name]) => name), results = formulas.map(([, name]) => name);
    const compute = new Function("settings", "max", "min", "floor", "mod", [
        `const {${names}} = settings;`,
        ...refused.map(([condition, sentence]) =>
            `if (${condition}) return {refused: ${JSON.stringify(sentence)}};`),
        ...formulas.map(([, name, , expression]) => `const ${name} = ${expression};`),
        `return {${results}};`].join("\n"));
    const mod = (value, by) => value - by * Math.floor(value / by);
    return (chosen) => compute(chosen, Math.max, Math.min, Math.floor, mod);
}

// A large number with four digits, as in the formulas.
function short(value) {
    return Math.abs(value) < 1e6 ? String(Number(value.toPrecision(6))) : value.toPrecision(4);
}

// A slider or a choice for one setting; `changed` is called with its new value.
function memoryControl([, name, , choices, what], chosen, changed) {
    const value = chosen[name];
    const label = [h("b", {}, name), " ", h("span", {class: "soft"}, what)];
    if (choices.includes("=")) {
        const options = choices.split("|").map((choice) => choice.split(/=(.*)/));
        return h("label", {}, label, h("select", {name, change: (event) =>
            changed(name, Number(event.target.value))}, options.map(([number, words]) =>
            h("option", {value: number, selected: Number(number) === value}, words))));
    }
    const values = choices === "" ? [...Array(4096).keys()]
        : [...new Set([...choices.split(" ").map(Number), value])].sort((a, b) => a - b);
    const shown = h("output", {}, value.toLocaleString("en"));
    return h("label", {}, label, shown, h("input", {type: "range", name, min: 0,
        max: values.length - 1, step: 1, value: values.indexOf(value),
        "aria-valuetext": String(value), input: (event) => {
            const now = values[event.target.value];
            shown.textContent = now.toLocaleString("en");
            event.target.setAttribute("aria-valuetext", String(now));
            changed(name, now);
        }}));
}

// One stacked bar, ours or the book's, with letters where there is room.
function memoryBar(name, values, scale, ofBook) {
    const parts = Object.entries(memoryBars).map(([key, [letter, what, colour, book]]) =>
        ({key: ofBook ? book : key, letter, what, colour})).filter(({key}) => values[key] > 0);
    const total = values[ofBook ? "book_total" : "total"];
    return h("div", {class: "pair"}, h("div", {class: "name"}, name),
        h("div", {class: "stack", role: "img", "aria-label": name + ": " + parts.map(
            ({key, what}) => `${what} ${bytes(values[key])}`).join(", ")},
        parts.map(({key, letter, what, colour}) => h("span", {
            "data-name": key, "data-bytes": values[key], title: `${what}: ${bytes(values[key])}`,
            style: `width: ${100 * values[key] / scale}%; background: var(--${colour})`},
        values[key] > scale / 40 ? letter : "")),
        memoryDevices.filter((device) => device <= scale).map((device) => h("i", {
            style: `left: ${100 * device / scale}%`, title: `${device / 1e9} GB`}))),
        h("div", {class: "value"}, bytes(total)));
}

// The ranks of a pipeline that are shown: all, or the first ones and the last.
function memoryRanks(pp) {
    const ranks = [...Array(pp).keys()];
    return pp <= 6 ? ranks : [...ranks.slice(0, 4), pp - 2, pp - 1];
}

function memoryFormulas(table) {
    if (!table) return null;
    const evaluate = memoryFunction(table), chosen = {};
    for (const [, name, start] of table.settings) chosen[name] = start;
    const bars = h("div", {class: "bars"}), controls = h("div"), shown = h("div");
    const command = h("pre");
    const filled = (expression, values) => expression.replace(/[A-Za-z_]\w*/g, (name) =>
        name in chosen ? short(chosen[name]) : name in values ? short(values[name]) : name);
    const formula = ([unit, name, what, expression], values) => h("div", {class: "formula"},
        h("p", {}, h("b", {}, name), ` ${what ? what + " " : ""}`, h("span", {class: "soft"},
            unit === "bytes" ? bytes(values[name]) : `${short(values[name])} ${unit}`)),
        h("pre", {}, `${name} = ${expression}\n= ${filled(expression, values)}\n= ` +
            short(values[name])));

    function draw() {
        const place = controls.querySelector("[name=r]");  // its choices depend on pp
        place.max = chosen.pp - 1;
        place.value = place.previousSibling.textContent = chosen.r =
            Math.min(chosen.r, chosen.pp - 1);
        command.textContent = 'make run CHAPTER=00_single_gpu ARGS="--demo memory --settings ' +
            table.settings.map(([, name]) => `${name}=${chosen[name]}`).join() + '"';
        const at = evaluate(chosen);
        if (at.refused) {
            bars.replaceChildren(h("p", {class: "bad", role: "status"}, at.refused));
            return shown.replaceChildren();
        }
        const ranks = memoryRanks(chosen.pp).map((r) => [r, evaluate({...chosen, r})]);
        const most = Math.max(...ranks.flatMap(([, of]) => [of.total, of.book_total]));
        const next = memoryDevices.find((device) => device >= most);
        const scale = next && most > next / 8 ? next : most;
        const open = [...shown.querySelectorAll("details")].map((each) => each.open);
        const isMain = ([, name]) => name in memoryBars || name === "total";
        bars.replaceChildren(
            h("div", {class: "legend"}, Object.values(memoryBars).map(([letter, what, colour]) =>
                h("span", {}, h("i", {style: `background: var(--${colour})`}, letter), what))),
            h("p", {class: "soft"}, "Lines: " + memoryDevices.map((device) =>
                `${device / 1e9} GB${device > scale ? " (beyond the end)" : ""}`).join(", ") + "."),
            ...ranks.flatMap(([r, of]) => [
                memoryBar(`rank ${r}: ${of.layers} layers`, of, scale, false),
                memoryBar("the book's formula", of, scale, true)]));
        shown.replaceChildren(
            h("h3", {}, `Rank ${chosen.r} of the pipeline, with the numbers filled in`),
            ...table.formulas.filter(isMain).map((row) => formula(row, at)),
            h("details", {open: open[0]}, h("summary", {}, "all other formulas, in their order"),
                table.formulas.filter((row) => !isMain(row)).map((row) => formula(row, at))));
    }

    function set(values) {
        Object.assign(chosen, values);
        const open = [...controls.querySelectorAll("details")].map((each) => each.open);
        const groups = [...new Set(table.settings.map(([group]) => group))];
        controls.replaceChildren(...groups.map((group, i) =>
            h("details", {open: open[i] ?? (group !== "experts" || chosen.E > 0)},
                h("summary", {}, group), h("div", {class: "tools"}, Object.entries(
                    table.presets[group] || {}).map(([name, preset]) =>
                    h("button", {click: () => set(preset)}, name))),
                h("div", {class: "sliders"}, table.settings.filter((row) => row[0] === group).map(
                    (row) => memoryControl(row, chosen, (name, value) => {
                        chosen[name] = value;
                        draw();
                    }))))));
        draw();
    }

    set({});
    const part = section("Memory by formula", h("p", {}, "What one rank holds, by the formulas of ",
        h("code", {}, "common/lab/predict/memory_formulas.inc"), ". It says what they leave " +
        "out. The book's are for a GPT: with a feed-forward of 4 h, and without experts."),
        bars, controls, shown, h("p", {class: "soft"}, "The same on a command line:"),
        h("div", {class: "scroll"}, command));
    part.id = "memory-formulas", part.set = set;
    return part;
}
