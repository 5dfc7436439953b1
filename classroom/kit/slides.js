// Arrow keys, page keys and the space bar go from slide to slide; N shows the speaker's notes.
const slides = [...document.querySelectorAll("section")];
const shown = () => Math.round(window.scrollY / window.innerHeight);
document.addEventListener("keydown", (event) => {
    const by = {ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1,
        PageUp: -1, Home: -slides.length, End: slides.length}[event.key];
    if (event.key === "n") document.body.classList.toggle("notes");
    if (!by || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    slides[Math.max(0, Math.min(slides.length - 1, shown() + by))].scrollIntoView();
});
