// The page about grades: the points of one student or of a class, and each check's lines.

const data = JSON.parse(document.getElementById("data").textContent);
const sum = (grades, key) => grades.reduce((all, grade) => all + grade[key], 0);
const percent = (points, of) => of ? Math.round(100 * points / of) + " %" : "";

function tiles(entries) {
    return h("div", {class: "tiles"}, Object.entries(entries).map(
        ([name, value]) => h("div", {class: "tile"}, h("b", {}, value), name)));
}

// ---- an exercise --------------------------------------------------------------------------------
function checks(grade) {
    const names = grade.kind === "clinic" ? ["", "you said", ""]
        : grade.kind === "predict" ? ["you said", "measured", ""]
        : ["predicted", "yours", "reference"];
    const cell = (text) => h("td", {}, text);
    return h("div", {class: "scroll"}, h("table", {}, h("thead", {}, h("tr", {},
        ["check", ...names, "points"].map((name) => h("th", {scope: "col"}, name)))),
        h("tbody", {}, grade.lines.map((line) => h("tr", {},
            h("td", {class: "words" + (line.ok ? "" : " bad")},
                (line.ok ? "" : "✗ ") + line.what),
            cell(line.predicted), cell(line.yours), cell(line.reference),
            cell("of" in line ? `${line.points}/${line.of}` : ""))))));
}

// What the grader says, once each: several checks may fail for one reason.
function reasons(grade) {
    return [...new Set([...grade.lines.map((line) => line.said), ...grade.said])].filter(Boolean);
}

function exercise(grade, open) {
    return h("details", {open}, h("summary", {}, `${grade.exercise} ${grade.title} (`,
        h("b", {class: grade.solved ? "good" : "bad"}, `${grade.points} of ${grade.of}`), ")"),
        reasons(grade).map((text) => h("pre", {class: "said"}, text)),
        grade.lines.length ? checks(grade) : null,
        h("p", {class: "soft"}, `${digits(grade.seconds, 2)} s; the file's SHA-256 begins with `,
            h("code", {}, grade.sha256.slice(0, 12))));
}

// ---- a class ------------------------------------------------------------------------------------
// A mark's background is as long as its share of the points.
function mark(grade) {
    if (!grade) return h("td", {title: "not handed in"}, "–");
    return h("td", {class: "bar", title: grade.title,
        style: `background-size: ${100 * grade.points / grade.of}% 3px`},
        h("span", {class: grade.solved ? "good" : "bad"}, grade.points));
}

function classTable(students, ids) {
    return h("section", {}, h("h2", {}, "Points"), h("div", {class: "scroll"},
        h("table", {id: "class"}, h("thead", {}, h("tr", {}, ["student", ...ids, "all"].map(
            (name) => h("th", {scope: "col"}, name)))),
        h("tbody", {}, students.map(([name, grades]) => h("tr", {},
            h("td", {}, h("a", {href: "#" + encodeURIComponent(name)}, name)),
            ids.map((id) => mark(grades.find((grade) => grade.exercise === id))),
            h("td", {}, sum(grades, "points"))))))));
}

function byExercise(students, ids) {
    return h("section", {}, h("h2", {}, "Exercises"), table(ids.map((id) => {
        const all = students.flatMap(([, grades]) => grades.filter((g) => g.exercise === id));
        return {exercise: `${id} ${all[0].title}`, "handed in": all.length,
            solved: all.filter((grade) => grade.solved).length,
            "mean points": sum(all, "points") / all.length, of: all[0].of};
    })));
}

// ---- the page -----------------------------------------------------------------------------------
function studentPage() {
    const grades = data.exercises, points = sum(grades, "points"), of = sum(grades, "of");
    return [h("h1", {}, "Grades"), tiles({points: `${points} of ${of}`, "of all": percent(points, of),
        "exercises solved": `${grades.filter((g) => g.solved).length} of ${grades.length}`}),
    grades.map((grade) => exercise(grade, !grade.solved)),
    data.sources ? h("p", {class: "soft"}, `Written on ${data.on}. Graded by sources whose ` +
        "SHA-256 begins with ", h("code", {}, data.sources.slice(0, 12)), ".") : null];
}

function classPage() {
    const students = Object.entries(data.students), all = students.flatMap(([, grades]) => grades);
    const ids = [...new Set(all.map((grade) => grade.exercise))].sort();
    return [h("h1", {}, "Grades of a class"), tiles({students: students.length,
        exercises: ids.length, "handed in": all.length,
        solved: all.filter((grade) => grade.solved).length}),
    classTable(students, ids), byExercise(students, ids),
    students.map(([name, grades]) => h("section", {id: name}, h("h2", {}, name),
        grades.length ? grades.map((grade) => exercise(grade, false)) : h("p", {}, "Nothing was handed in."))),
    h("p", {class: "soft"}, `Written on ${data.on}.`)];
}

document.title = data.students ? "Grades of a class" : "Grades";
document.getElementById("page").append(
    ...(data.students ? classPage() : studentPage()).flat(Infinity).filter(Boolean));
