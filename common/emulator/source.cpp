#include "source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

extern "C" const char __executable_start[] __attribute__((weak));  // the linker's

namespace simt {

namespace {

using Known = std::map<const void*, std::vector<Frame>>;

std::string next_line(FILE* pipe) {
    std::string text;
    for (int c; (c = std::fgetc(pipe)) != EOF && c != '\n';) text += char(c);
    return text;
}

// Looks up all addresses at once and adds the answers to `known`. A return address lies after the
// call: one byte before it is inside the call.
void look_up(Known& known, const std::vector<const void*>& addresses) {
    std::string command = fmt::format("addr2line -a -f -C -i -e /proc/{}/exe", getpid());
    for (const void* address : addresses)
        command += fmt::format(" {:#x}", in_executable(address) - 1);
    FILE* const pipe = popen((command + " 2>/dev/null").c_str(), "r");
    if (!pipe) return;
    // For each address: "0x12ab", then for each function its name and "file:line".
    std::vector<Frame>* frames = nullptr;
    size_t count = 0;
    for (std::string text; !(text = next_line(pipe)).empty();) {
        if (text.starts_with("0x")) {
            frames = count < addresses.size() ? &known[addresses[count++]] : nullptr;
            continue;
        }
        const std::string location = next_line(pipe);
        const size_t colon = location.rfind(':');
        if (!frames || colon == std::string::npos || location.starts_with("??")) continue;
        frames->push_back({text,
                           std::filesystem::path(location.substr(0, colon)).lexically_normal(),
                           std::atoi(&location[colon + 1])});
    }
    pclose(pipe);
}

}  // namespace

std::vector<std::vector<Frame>> source_frames(std::span<const void* const> addresses) {
    constexpr size_t at_once = 4000;  // as many as fit on a command line
    static std::mutex mutex;
    static auto& known = *new Known;
    std::lock_guard lock(mutex);
    std::vector<const void*> unknown;
    const auto ask = [&] {
        if (!unknown.empty()) look_up(known, unknown);
        unknown.clear();
    };
    for (const void* address : addresses)
        if (known.try_emplace(address).second) {
            unknown.push_back(address);
            if (unknown.size() == at_once) ask();
        }
    ask();
    std::vector<std::vector<Frame>> frames;
    for (const void* address : addresses) frames.push_back(known.at(address));
    return frames;
}

size_t in_executable(const void* address) {
    return size_t(static_cast<const char*>(address) - __executable_start);
}

std::string source_line(const void* code) {
    const std::vector<Frame> frames = source_frames({&code, 1}).front();
    for (const Frame& frame : frames)
        if (!frame.stand_in()) return fmt::format("{}:{}", frame.file(), frame.line);
    return "an unknown place";
}

}  // namespace simt
