#include "file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

#include "core/error.h"

namespace ultrascale {
namespace {

namespace fs = std::filesystem;

// Makes renames in `dir` durable. Not every file system supports that; the data has been synced
// before.
void sync_directory(const std::string& dir) {
    int descriptor = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    fsync(descriptor);
    close(descriptor);
}

std::string parent(const std::string& path) {
    std::string dir = fs::path(path).parent_path();
    return dir.empty() ? "." : dir;
}

bool plain_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

}  // namespace

std::string printable(std::string_view text) {
    constexpr size_t most = 120;
    std::string line;
    for (unsigned char c : text.substr(0, most)) {
        if (c < 0x20 || c == 0x7f)
            line += fmt::format("\\x{:02x}", c);
        else
            line += char(c);
    }
    return text.size() > most ? line + "..." : line;
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
    int descriptor =
        open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // do not wait on a pipe
    if (descriptor < 0) user_error("{}: cannot be read: {}", path, std::strerror(errno));
    struct stat status;
    const char* wrong = nullptr;
    if (fstat(descriptor, &status) != 0)
        wrong = std::strerror(errno);
    else if (!S_ISREG(status.st_mode))
        wrong = S_ISDIR(status.st_mode) ? "it is a directory" : "it is not a regular file";
    else if (status.st_size > 0) {
        size_ = status.st_size;
        void* address = mmap(nullptr, size_t(size_), PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (address == MAP_FAILED)
            wrong = std::strerror(errno);
        else
            data_ = static_cast<const unsigned char*>(address);
    }
    close(descriptor);
    if (wrong) user_error("{}: cannot be read: {}", path, wrong);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
    if (data_) munmap(const_cast<unsigned char*>(data_), size_t(size_));
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
    std::error_code ignored;
    const fs::path target = fs::weakly_canonical(path, ignored);  // empty: a cycle of links
    if (fs::is_symlink(path, ignored) && !target.empty())
        path_ = target;  // replace the link's target, not the link
    if (fs::is_directory(path_, ignored))
        user_error("{}: cannot be written: it is a directory", path);
    if (fs::exists(path_, ignored) && !fs::is_regular_file(path_, ignored))
        user_error("{}: cannot be written: it is not a regular file", path);
    temporary_ = fmt::format("{}.{}.tmp", path_, getpid());
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) user_error("{}: cannot be written: {}", path, std::strerror(errno));
}

AtomicFile::~AtomicFile() {
    if (descriptor_ < 0) return;
    close(descriptor_);
    unlink(temporary_.c_str());
}

void AtomicFile::write(const void* bytes, int64_t count) {
    const char* from = static_cast<const char*>(bytes);
    while (count > 0) {
        ssize_t written = ::write(descriptor_, from, size_t(count));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) user_error("{}: cannot be written: {}", path_, std::strerror(errno));
        from += written;
        count -= written;
    }
}

void AtomicFile::commit() {
    bool synced =
        fsync(descriptor_) == 0 || errno == EINVAL;  // EINVAL: a file system without fsync
    if (!synced || rename(temporary_.c_str(), path_.c_str()) != 0)
        user_error("{}: cannot be written: {}", path_, std::strerror(errno));
    close(std::exchange(descriptor_, -1));
    sync_directory(parent(path_));
}

void write_file(const std::string& path, std::string_view text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
}

void make_directories(const std::string& dir) {
    std::error_code error;
    fs::create_directories(dir, error);
    if (error || !fs::is_directory(dir))
        user_error("{}: the directory cannot be made: {}", dir,
                   error ? error.message() : "something else has that name");
}

StagedFiles::StagedFiles(const std::string& dir) : dir_(dir), staging_(dir + "/.saving") {
    make_directories(dir);
    recover(dir);
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
    make_directories(staging_);
}

StagedFiles::~StagedFiles() {
    std::error_code ignored;
    if (!committed_) fs::remove_all(staging_, ignored);
}

void StagedFiles::commit(const std::vector<std::string>& stale) {
    std::string list;
    for (const auto& file : fs::directory_iterator(staging_))
        list += "move " + file.path().filename().string() + "\n";
    for (const std::string& name : stale) list += "remove " + name + "\n";
    write_file(staging_ + "/commit", list);
    committed_ = true;
    recover(dir_);
}

void StagedFiles::recover(const std::string& dir) {
    std::string staging = dir + "/.saving", commit = staging + "/commit";
    std::error_code ignored;
    if (!fs::exists(commit, ignored)) return;
    std::istringstream lines;
    try {
        lines.str(std::string(MappedFile(commit).text()));
    } catch (const UserError&) {
        if (!fs::exists(commit, ignored)) return;  // another rank has just finished it
        throw;
    }
    for (std::string action, name; lines >> action && std::getline(lines >> std::ws, name);) {
        if (!plain_name(name))
            user_error("{}: names a file outside the directory: {}", commit, printable(name));
        std::string from = staging + "/" + name, to = dir + "/" + name;
        bool done =
            action == "move" ? rename(from.c_str(), to.c_str()) == 0 : unlink(to.c_str()) == 0;
        if (!done && errno != ENOENT)
            user_error("{}: cannot be replaced: {}", to, std::strerror(errno));
    }
    sync_directory(dir);
    unlink(commit.c_str());
    fs::remove_all(staging, ignored);
}

}  // namespace ultrascale
