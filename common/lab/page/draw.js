"use strict";
// Elements, figures in words, tables and curves: what every section of the page is made of.

// h("p", {class: "soft"}, "words", child, ...); attributes that are functions listen to events.
function h(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes))
        if (typeof value === "function") element.addEventListener(name, value);
        else if (value !== undefined && value !== false) element.setAttribute(name, value);
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
}

function s(tag, attributes = {}, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
}

function digits(value, count = 3) {
    if (!Number.isFinite(value)) return String(value);
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9))
        return value.toExponential(2);
    if (Math.abs(value) >= 10 ** (count - 1)) return Math.round(value).toLocaleString("en");
    return String(Number(value.toPrecision(count)));
}

function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(count) >= 1024 && unit < 4) [count, unit] = [count / 1024, unit + 1];
    return (unit ? Number(count.toPrecision(4)) : Math.round(count)) + " " + units[unit];
}

function milliseconds(value) {
    return value >= 1 ? digits(value) + " ms" : digits(value * 1e3) + " µs";
}

// A figure as its name says: "..._bytes", "..._ms", "..._seconds", a share.
function figure(name, value) {
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value !== "number") return Array.isArray(value) ? value.join(" × ") : String(value);
    if (/bytes$|^(host|peak)$/.test(name) && value >= 0) return bytes(value);
    if (/_ms$/.test(name)) return milliseconds(value);
    if (/seconds$/.test(name)) return milliseconds(1e3 * value);
    return digits(value, 4);
}

function words(name) { return name.replace(/_(bytes|ms)$/, "").replaceAll("_", " "); }

// A table of objects. A click on a column's name sorts by it, a second one the other way round.
// Columns of figures get bars, relative to the column's largest.
function table(rows, columns = [...new Set(rows.flatMap(Object.keys))]) {
    const largest = Object.fromEntries(columns.map((name) => [name, Math.max(
        ...rows.map((row) => typeof row[name] === "number" ? row[name] : 0))]));
    const body = h("tbody");
    let sorted = null, up = false;
    const fill = () => {
        const shown = [...rows];
        if (sorted !== null) {
            const order = (a, b) => typeof a === "number" && typeof b === "number"
                ? a - b : String(a).localeCompare(String(b));
            shown.sort((a, b) => (up ? 1 : -1) * order(a[sorted], b[sorted]));
        }
        body.replaceChildren(...shown.map((row) => h("tr", {}, columns.map((name, index) => {
            const value = row[name];
            if (value === undefined) return h("td");
            const isBar = index > 0 && typeof value === "number" && rows.length > 1 &&
                largest[name] > 0 && value >= 0;
            return h("td", {
                class: isBar ? "bar" : typeof value === "string" ? "words" : undefined,
                style: isBar ? `background-size: ${100 * value / largest[name]}% 3px` : undefined,
            }, figure(name, value));
        }))));
    };
    const head = columns.map((name) => h("th", {scope: "col"}, h("button", {
        title: "sort", click: () => {
            up = sorted === name && !up;
            sorted = name;
            fill();
        }}, words(name))));
    fill();
    return h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {}, head)), body));
}

function pairsTable(object) {
    return h("div", {class: "scroll"}, h("table", {}, Object.entries(object).map(([name, value]) =>
        h("tr", {}, h("td", {}, words(name)), h("td", {class: "words"}, figure(name, value))))));
}

function legend(entries) {
    return h("div", {class: "legend"}, Object.entries(entries).map(([name, colour]) =>
        h("span", {}, h("i", {style: `background: var(--${colour})`}), name)));
}

// Round values between two limits, about `count` of them.
function ticks(least, most, count = 5) {
    const rough = (most - least) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((by) => by * power).find((each) => each >= rough);
    const found = [];
    for (let at = Math.ceil(least / step) * step; at <= most + step / 1e6; at += step)
        found.push(Number(at.toPrecision(12)));
    return found;
}

// Curves over the steps: [{name, colour, points: [[x, y], ...]}], with marks for short ones.
function curves(series, xName, yName) {
    const width = 900, height = 300, left = 56, right = 884, top = 14, bottom = 258;
    const all = series.flatMap((one) => one.points);
    const [x0, x1] = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
    let [y0, y1] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
    if (y0 === y1) [y0, y1] = [y0 - 0.5, y1 + 0.5];
    const x = (value) => left + (right - left) * (x1 > x0 ? (value - x0) / (x1 - x0) : 0.5);
    const y = (value) => bottom - (bottom - top) * (value - y0) / (y1 - y0);
    const chart = s("svg", {class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img",
        "aria-label": `${yName} over ${xName}`});
    for (const value of ticks(y0, y1)) chart.append(
        s("line", {class: "grid", x1: left, x2: right, y1: y(value), y2: y(value)}),
        s("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"}, digits(value)));
    for (const value of ticks(x0, x1, 8).filter(Number.isInteger)) chart.append(
        s("text", {x: x(value), y: bottom + 20, "text-anchor": "middle"}, String(value)));
    chart.append(s("text", {x: (left + right) / 2, y: height - 4, "text-anchor": "middle"}, xName));
    for (const {name, colour, points} of series) {
        const line = s("polyline", {class: "curve", points: points.map(
            ([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ")});
        line.style.stroke = `var(--${colour})`;
        chart.append(line);
        if (points.length <= 60)
            for (const [a, b] of points) {
                const dot = s("circle", {cx: x(a), cy: y(b), r: 3.5},
                    s("title", {}, `${xName} ${a}: ${name} ${digits(b, 5)}`));
                dot.style.fill = `var(--${colour})`;
                chart.append(dot);
            }
    }
    return chart;
}
