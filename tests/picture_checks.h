// Reads a picture (lab/pictures/svg.h) as strictly as XML requires, and checks what is drawn.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ultrascale::test {

struct Drawn {
    std::string name;  // "rect"
    std::map<std::string, std::string> attributes;
    std::string words;  // the text in it
    std::string hint;   // the text in its <title>

    double number(const std::string& attribute) const {
        return std::stod(attributes.at(attribute));
    }
    double right() const { return number("x") + number("width"); }
    bool is(const std::string& role) const {
        const auto its = attributes.find("class");
        return its != attributes.end() &&
               (" " + its->second + " ").find(" " + role + " ") != std::string::npos;
    }
    std::vector<std::pair<double, double>> points() const {
        std::vector<std::pair<double, double>> all;
        std::istringstream in(attributes.at("points"));
        char comma;
        for (double x, y; in >> x >> comma >> y;) all.emplace_back(x, y);
        return all;
    }
};

// Reads all elements in the order in which they begin. Throws std::runtime_error if the text is not
// well-formed XML (only the part of XML that pictures need: no comments, one document).
class PictureReader {
public:
    explicit PictureReader(const std::string& text) : text_(text) {
        element();
        if (text_.substr(at_) != "\n") fail("something follows the document");
    }
    std::vector<Drawn> all;

private:
    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error(what + " at: " + text_.substr(at_, 60));
    }
    bool take(const std::string& expected) {
        if (text_.compare(at_, expected.size(), expected) != 0) return false;
        at_ += expected.size();
        return true;
    }
    void need(const std::string& expected) {
        if (!take(expected)) fail("no " + expected);
    }
    std::string name() {
        const size_t begin = at_;
        while (at_ < text_.size() && (std::isalnum(text_[at_]) || text_[at_] == '-')) ++at_;
        if (at_ == begin) fail("no name");
        return text_.substr(begin, at_ - begin);
    }
    std::string words_until(char end) {
        std::string words;
        for (; at_ < text_.size() && text_[at_] != end; ++at_) {
            const char c = text_[at_];
            if (c == '<' || (uint8_t(c) < ' ' && c != '\n')) fail("a forbidden character");
            if (c != '&') {
                words += c;
                continue;
            }
            bool known = false;
            for (const auto& [entity, means] : std::map<std::string, char>{
                     {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}})
                if (!known && (known = take(entity))) words += means;
            if (!known) fail("no entity");
            --at_;
        }
        return words;
    }
    void element() {
        const size_t index = all.size();
        need("<");
        all.push_back({.name = name()});
        while (take(" ")) {
            const std::string attribute = name();
            need("=\"");
            if (!all[index].attributes.try_emplace(attribute, words_until('"')).second)
                fail(attribute + " twice");
            need("\"");
        }
        if (take("/>")) return;
        need(">");
        while (true) {
            all[index].words += words_until('<');
            if (text_.compare(at_, 2, "</") == 0) break;
            const size_t child = all.size();
            element();
            if (all[child].name == "title") all[index].hint = all[child].words;
        }
        need("</" + all[index].name + ">");
    }
    std::string text_;
    size_t at_ = 0;
};

inline std::vector<Drawn> read_picture(const std::string& svg) { return PictureReader(svg).all; }

// Returns the elements with this name and role whose hint or words begin with `begin`.
inline std::vector<Drawn> drawn_as(const std::vector<Drawn>& all, const std::string& name,
                                   const std::string& role, const std::string& begin = "") {
    std::vector<Drawn> found;
    std::ranges::copy_if(all, std::back_inserter(found), [&](const Drawn& d) {
        return d.name == name && d.is(role) &&
               (d.hint.starts_with(begin) || d.words.starts_with(begin));
    });
    return found;
}
inline bool has_words(const std::vector<Drawn>& all, const std::string& words) {
    return std::ranges::any_of(
        all, [&](const Drawn& d) { return d.name == "text" && d.words == words; });
}

// Nothing is drawn outside of the picture, no words overlap others, and a screen reader gets a
// description. Wider than 900 pixels is only a poster.
inline void expect_readable(const std::vector<Drawn>& all, double widest = 900) {
    const Drawn& svg = all.at(0);
    EXPECT_EQ(svg.attributes.at("role"), "img");
    EXPECT_EQ(svg.attributes.at("xmlns"), "http://www.w3.org/2000/svg");
    EXPECT_FALSE(svg.hint.empty());
    EXPECT_TRUE(all.at(2).name == "desc" && !all[2].words.empty());
    double width = 0, height = 0;
    EXPECT_EQ(std::sscanf(svg.attributes.at("viewBox").c_str(), "0 0 %lf %lf", &width, &height), 2);
    EXPECT_LE(width, widest);
    const auto expect_inside = [&](const Drawn& d, double x, double y) {
        EXPECT_TRUE(x >= -0.01 && x <= width + 0.01 && y >= -0.01 && y <= height + 0.01)
            << d.name << " " << d.words << d.hint << " at " << x << ", " << y;
    };
    struct Words {
        const Drawn* text;
        double left, right, top, bottom;
    };
    std::vector<Words> words;
    for (const Drawn& d : all) {
        EXPECT_NE(d.name, "script");
        if (d.name == "rect")
            expect_inside(d, d.number("x"), d.number("y")),
                expect_inside(d, d.right(), d.number("y") + d.number("height"));
        if (d.attributes.count("points"))
            for (const auto& [x, y] : d.points()) expect_inside(d, x, y);
        if (d.name != "text") continue;
        const double size = d.number("font-size"), x = d.number("x"), y = d.number("y");
        EXPECT_GE(size, 12);
        const auto letters =
            std::ranges::count_if(d.words, [](char c) { return (c & 0xc0) != 0x80; });
        const double wide = 0.53 * size * double(letters);
        const std::string anchor = d.attributes.at("text-anchor");
        const double left = anchor == "start" ? x : anchor == "end" ? x - wide : x - wide / 2;
        words.push_back({&d, left, left + wide, y - 0.75 * size, y + 0.2 * size});
        expect_inside(d, left, words.back().top), expect_inside(d, left + wide, y);
    }
    for (size_t i = 0; i < words.size(); ++i)
        for (size_t j = 0; j < i; ++j)
            EXPECT_FALSE(words[i].left < words[j].right && words[j].left < words[i].right &&
                         words[i].top < words[j].bottom && words[j].top < words[i].bottom)
                << words[i].text->words << " over " << words[j].text->words;
}

}  // namespace ultrascale::test
