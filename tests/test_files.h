// Shared by tests that use files: a temporary folder, files written and read in one line, and the
// message of a UserError.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "core/error.h"

namespace ultrascale::test {

class TempDir {
public:
    TempDir() {
        std::string pattern =
            (std::filesystem::temp_directory_path() / "ultrascale-XXXXXX").string();
        path_ = mkdtemp(pattern.data());
    }
    ~TempDir() { std::filesystem::remove_all(path_); }
    TempDir(const TempDir&) = delete;
    std::string operator/(const std::string& name) const { return path_ + "/" + name; }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

inline void put(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string slurp(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

inline std::string reference(const std::string& name) {  // tests/reference/NAME
    return (std::filesystem::path(__FILE__).parent_path() / "reference" / name).string();
}

// Returns the message of the UserError that `action` throws. The test fails if there is none, or if
// the message has several lines.
inline std::string error_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const UserError& e) {
        EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
        return e.what();
    }
    ADD_FAILURE() << "no UserError";
    return "";
}

inline void expect_error(const std::function<void()>& action, const std::string& part) {
    std::string message = error_of(action);
    EXPECT_NE(message.find(part), std::string::npos)
        << "message: " << message << "\ndoes not contain: " << part;
}

}  // namespace ultrascale::test
